"""Ask compilers about machines that are not here: --mode=describe --target=NAME,NAME.

Each target is compiled for in a process of its own: its variables must be set before JAX is
imported, and a compiler's crash is a result.
"""

import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from jaxbench.config import Experiment
from jaxbench.distributed.child import run_child
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import Target
from jaxbench.hardware.targets.topology import environment
from jaxbench.jobs.targets import check_target, split_targets
from jaxbench.records.reader import load_run
from jaxbench.records.schema import TargetRecord, record_from_json
from jaxbench.records.writers.console import PlainConsole, create_console
from jaxbench.records.writers.targets import target_table


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
      BadInput: see `check_target` and `split_targets`; also a machine that its compiler does not
        know, where it is the only one.
    """
    found, failed = [], {}
    # Standard output is for what was found.
    console = PlainConsole(sys.stderr)
    targets = [check_target(experiment, name) for name in split_targets(names)]
    for target in targets:
        with console.phase(f"compiling for {target.name}"):
            try:
                record = _describe(arguments, target)
            except BadInput as error:
                if len(targets) == 1:
                    raise
                record = str(error)
        if isinstance(record, TargetRecord):
            found.append(record)
        else:
            failed[target.name] = record
    if as_json:
        lines = [{"target": name, "failed": reason} for name, reason in failed.items()]
        print(json.dumps([*(record.to_json() for record in found), *lines]))
        return int(bool(failed))
    console = create_console()
    for line in target_table(found) if found else ():
        console.say(line)
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    return int(bool(failed))


def _describe(arguments: Sequence[str], target: Target) -> TargetRecord | str:
    """Return a target's record; where its compiler crashed, the reason.

    Raises:
      BadInput: the compiler does not know this machine.
    """
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        run = pathlib.Path(folder, "run")
        own = ["--mode=memory", f"--target={target.name}", f"--workdir={run}"]
        command = [sys.executable, "-m", "jaxbench.main", *arguments, *own]
        ended = run_child(command, pathlib.Path(folder, "log"), variables=environment(target))
        if ended.exit_code == 2:
            raise BadInput(ended.reason)
        records = load_run(str(run)).of_kind("target") if run.exists() else []
        return record_from_json(records[0]) if records else ended.reason or "it said nothing"
