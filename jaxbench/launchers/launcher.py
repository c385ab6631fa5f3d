"""What a launcher is: it starts trials, says how they stand, and brings their files here."""

import dataclasses
import importlib
import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from jaxbench.errors import BadInput, one_of
from jaxbench.files import read_text, replace_file
from jaxbench.parallel.child import ProcessResult

# {launcher: its options, which are arguments of the class in its module}
LAUNCHERS = {
    "local": (),
    "ray": ("ray_address", "ray_resources", "ray_hosts", "ray_checkpoints"),
    "slurm": ("slurm", "slots"),
}
# The status of a process that was lost with its machine: its trial is run once more.
LOST = "lost"
Content = TypeVar("Content")


class Limits(NamedTuple):
    """What a trial may take, see `run_child`; None is no limit."""

    timeout_s: float | None = None
    memory_limit_mb: float | None = None


@dataclasses.dataclass(frozen=True)
class TrialJob:
    """One attempt of a trial."""

    key: str
    arguments: tuple[str, ...]  # of jaxbench.main, without --workdir
    run_path: pathlib.Path  # the run directory on this machine, not made yet
    log: pathlib.Path

    @property
    def note_path(self) -> pathlib.Path:
        """Where a launcher notes what it needs to take the attempt up again."""
        return self.log.with_suffix(".job.json")

    @property
    def command(self) -> list[str]:
        """The command that runs it on this machine."""
        program = [sys.executable, "-m", "jaxbench.main"]
        return [*program, *self.arguments, f"--workdir={self.run_path}"]


class Ended(NamedTuple):
    """An attempt that has ended; its files are on this machine."""

    key: str
    process: ProcessResult  # its status is LOST if the trial is to be run once more
    host: str | None  # where it ran; None where that is not known


class Launcher(Protocol):
    """Runs trials."""

    slots: int  # how many trials run at once; 0 if none can run any more
    # What was asked for, as a part of each trial's key; empty for this machine.
    hardware: tuple[str, ...]

    def start(self, job: TrialJob) -> None:
        """Start an attempt. It first writes the note, if it can take attempts up again."""

    def attach(self, job: TrialJob) -> bool:
        """Take up an attempt that an earlier sweeping process has noted, as if it were started now.

        Return False if no note is known: the trial is then run once more.
        """
        return False

    def wait(self) -> list[Ended]:
        """Return the attempts that have ended; it waits a poll interval at most for one."""

    def last_line(self, key: str) -> str:
        """Return the last line of a running attempt's output, as far as it is known here."""

    def close(self) -> None:
        """End the attempts that still run, unless they can be taken up again."""


def create_launcher(
    name: str, limits: Limits, say: Callable[[str], None], options: Mapping[str, Any]
) -> Launcher:
    """Make a launcher that is ready to start trials.

    Raises:
      BadInput: no such launcher, another one's option, or what an option names is not usable.
    """
    if name not in LAUNCHERS:
        raise BadInput(f"--launcher={name}: {one_of(name, LAUNCHERS)}")
    for option in options:
        if option not in LAUNCHERS[name]:
            names = [f"--launcher={one}" for one in LAUNCHERS if option in LAUNCHERS[one]]
            hint = f"it needs {' or '.join(names)}" if names else "there is no such option"
            raise BadInput(f"--{option} with --launcher={name}: {hint}")
    module = importlib.import_module(f"jaxbench.launchers.{name}")
    return getattr(module, f"{name.title()}Launcher")(limits, say, **options)


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file whole."""
    replace_file(path, json.dumps(content, indent=2) + "\n")


def read_json(path: pathlib.Path, kind: type[Content]) -> Content | None:
    """Return what `write_json` wrote; None if there is no such file, or it holds something else."""
    try:
        return msgspec.json.decode(read_text(path), type=kind)
    except (OSError, ValueError, RecursionError):
        return None
