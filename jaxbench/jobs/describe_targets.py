"""Ask compilers about machines that are not here: --mode=describe --target=NAME,NAME.

Each target is compiled for in a process of its own: its variables must be set before JAX is
imported, libtpu takes a lock, and a compiler's crash is a result.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from jaxbench.clock import Stopwatch
from jaxbench.config import Config, Experiment
from jaxbench.distributed.child import run_child
from jaxbench.errors import BadInput
from jaxbench.geometry import BatchGeometry
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.hardware.targets.topology import compiler_version, environment
from jaxbench.terminal import printable, warn, wrap

# As XLA's compiler for TPUs words it: `(11.13G) exceeds available HBM (7.48G)`.
_ASKED = re.compile(r"\(([\d.]+)G\) exceeds available \w+ \(([\d.]+)G\)")
# Set in a process that compiles for one target: the file for what it finds.
_RESULT = "JAXBENCH_TARGET_RESULT"


def describe_targets(
    experiment: Experiment, names: str, arguments: Sequence[str], *, as_json: bool
) -> int:
    """Compile a training step for each target, one after the other, and print what was found.

    Args:
      experiment: a valid one.
      names: the targets, with commas between them.
      arguments: --experiment and its overrides, as for `jaxbench.main`.
      as_json: print a list of objects with the fields of `TargetRecord`, not a table.

    Returns:
      The exit code: 1 where a compiler crashed.

    Raises:
      BadInput: see `_parse`.
    """
    targets = _parse(names, experiment)
    if result := os.environ.get(_RESULT):
        from jaxbench.jobs.target_step import compile_for_target

        [target] = targets
        pathlib.Path(result).write_text(json.dumps(compile_for_target(experiment, target)))
        return 0
    found = []
    for target in targets:
        watch = Stopwatch()
        warn(f"compiling for {target.name} ...")
        found.append(_describe(arguments, target))
        warn(f"compiling for {target.name}: {watch.elapsed_s():.1f} s")
    if as_json:
        print(json.dumps(found))
    else:
        _print(found)
    return int(any("failed" in record for record in found))


def _parse(names: str, experiment: Experiment) -> list[Target]:
    """Return the targets of these names.

    Raises:
      BadInput: an unknown or impossible target, one that is named twice, no compiler for it, a
        batch that does not split over its devices, or an experiment without a network.
    """
    if not isinstance(experiment, Config):
        raise BadInput(f"--target: {experiment.name} trains no network; only those are compiled")
    listed = names.split(",")
    for name in listed:
        if listed.count(name) > 1:
            raise BadInput(f"--target={names}: names {name} twice")
    targets = [parse_target(name) for name in listed]
    for target in targets:
        compiler_version(target)
        BatchGeometry.create(experiment, target.num_devices)
    return targets


def _describe(arguments: Sequence[str], target: Target) -> dict[str, Any]:
    """Return a target's fields; where its compiler crashed, `target` and the reason, `failed`."""
    own = ["--mode=describe", f"--target={target.name}", "--compile_cache=off"]
    command = [sys.executable, "-m", "jaxbench.main", *arguments, *own]
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        result = pathlib.Path(folder, "result.json")
        variables = environment(target) | {_RESULT: str(result)}
        ended = run_child(command, pathlib.Path(folder, "log"), variables=variables)
        if ended.exit_code or not result.is_file():
            return {"target": target.name, "failed": ended.reason or "it said nothing"}
        return json.loads(result.read_text())


def _print(found: Sequence[dict[str, Any]]) -> None:
    """Print a table of what was found, and what the compilers refused."""
    console = Console(highlight=False, markup=False)
    title = "Compiled, not measured. The ceilings are predicted."
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("target", no_wrap=True)
    for heading in ("batch", "fits", "memory", "ceiling", "bound by", "compile"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in found:
        table.add_row(*_row(record))
    console.print(table)
    console.print("memory: GiB planned for each device / GiB that a program may use")
    console.print("ceiling: images/s that this step cannot exceed; bound by: what sets it")
    for record in found:
        if refused := record.get("failed") or record.get("refusal"):
            told = wrap(f"{record['target']}: {printable(refused)}")
            console.print("\n".join(told), soft_wrap=True)


def _row(record: dict[str, Any]) -> list[str]:
    if "failed" in record:
        return [record["target"], "", "failed"]
    row = [record["target"], f"{record['batch_size']:,}", "yes" if record["fits"] else "no"]
    usable = f"{record['device_memory_bytes'] / 2**30:.1f}"
    if record["memory"] is None:
        asked = _ASKED.search(record["refusal"])
        return [*row, " / ".join(asked.groups()) if asked else f"> {usable}"]
    rate = record["ceiling"]["images_per_s"]
    return [
        *row,
        f"{record['memory']['total_bytes'] / 2**30:.2f} / {usable}",
        f"{rate:,.0f}" if rate else "unknown",
        record["ceiling"]["bound_by"] or "",
        f"{record['compile_s']:.0f} s",
    ]
