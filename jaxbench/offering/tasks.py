"""Tasks for SkyPilot: what each rents, installs and runs."""

import dataclasses
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from jaxbench.offering.accelerators import Accelerator
from jaxbench.terminal import printable

# What SkyPilot brings to the machine, beside the tasks; its folder for the source code there.
SENT, ARCHIVE, SOURCE = "sent", "jaxbench.tar.gz", "src"
_PYTHON = "~/jaxbench-env/bin/python"  # there
# The images of TPU VMs as Google names them.
_RUNTIMES = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}


@dataclasses.dataclass(frozen=True)
class Work:
    """What every offer does."""

    label: str  # the experiment, or qualify
    module: str  # the command's, `jaxbench.main`
    arguments: Sequence[str]  # its flags, without `folder_flag`
    folder_flag: str  # names the folder of the results
    extras: Sequence[str]  # of the package, beside that of the accelerator
    requirement: str | None  # what pip installs jaxbench from; None for the archive that is sent
    idle_minutes: int  # how long a machine waits after its run before it is given back


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of SkyPilot."""

    file: str
    document: Mapping[str, Any]  # as YAML holds it
    commands: Sequence[str]  # launch, fetch the results, give the machine back

    def text(self, title: str) -> str:
        """Return the file's text, with the commands at its head."""
        # YAML ends a comment at a line break, and takes no control characters.
        head = [printable(title)]
        head += ["In this folder: launch, fetch the results, give the machine back.", ""]
        head += [f"  {command}" for command in self.commands]
        lines = [f"# {line}".rstrip() for line in head]
        body = yaml.dump(
            dict(self.document), Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True
        )
        return "\n".join([*lines, body])


class _Dumper(yaml.SafeDumper):
    """Write scripts as blocks of lines, as people do."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def skypilot_task(work: Work, accelerator: Accelerator) -> Task:
    """Return the task for `sky launch`."""
    name, folder = _name(work, accelerator), accelerator.folder
    resources: dict[str, Any] = {"accelerators": accelerator.skypilot}
    if accelerator.is_tpu:
        runtime = _RUNTIMES[accelerator.target.specs["name"]]
        resources |= {"infra": "gcp", "accelerator_args": {"runtime_version": runtime}}
    # A machine that is only stopped still costs its disk, and TPU slices cannot be stopped.
    resources["autostop"] = {"idle_minutes": work.idle_minutes, "down": True}
    # The machine's own Python may be too old for JAX.
    setup = [
        "set -e",
        'export PATH="$HOME/.local/bin:$PATH"',
        # Newer systems keep their own Python from being changed.
        "command -v uv >/dev/null || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q uv",
        "[ -d ~/jaxbench-env ] || uv venv -q --seed --python 3.12 ~/jaxbench-env",
        *_install(work, accelerator),
    ]
    # A folder of its own for a task that is launched again on the same machine.
    results = '"$HOME/results/$(date +%Y%m%d-%H%M%S)"'
    arguments = shlex.join([*work.arguments, work.folder_flag])
    document = {
        "name": name,
        "resources": resources,
        "workdir": SENT,
        "setup": "\n".join(setup) + "\n",
        "run": f"{_PYTHON} -u -m {work.module} {arguments}={results}\n",
    }
    file = f"{folder}.sky.yaml"
    fetch = f"rsync -a {name}:results/ {folder}/"
    return Task(file, document, [f"sky launch -c {name} {file}", fetch, f"sky down {name}"])


def _install(work: Work, accelerator: Accelerator) -> list[str]:
    # CUDA 12 serves older drivers and all GPUs of the table.
    extras = ",".join(["tpu" if accelerator.is_tpu else "cuda12", *work.extras])
    pip = f"{_PYTHON} -m pip install -q"
    if work.requirement is not None:
        return [f"{pip} {shlex.quote(f'jaxbench[{extras}] @ {work.requirement}')}"]
    # Editable, so that the run records the commit, which stands in the archive.
    unpack = f"rm -rf {SOURCE} && mkdir {SOURCE} && tar -xzf {ARCHIVE} -C {SOURCE}"
    return [unpack, f"{pip} -e {shlex.quote(f'{SOURCE}[{extras}]')}"]


def _name(work: Work, accelerator: Accelerator) -> str:
    """Return a name of this work that SkyPilot takes for a cluster; clouds take few characters."""
    label = "-".join(re.findall("[a-z0-9]+", work.label.lower()))[:13].strip("-")
    work_hash = hashlib.sha256(repr(work).encode()).hexdigest()[:6]
    return "-".join(filter(None, ("jb", label, work_hash, accelerator.folder)))
