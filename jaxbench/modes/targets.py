"""Machines that are not here: check their names, ask their compilers, print the answers.

A compiler runs in a child process: its variables must be set before JAX is imported, and its crash
is a result. JAX is not imported here.
"""

import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.batch_layout import BatchLayout
from jaxbench.config import Config, Experiment
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.hardware.targets.topology import compiler_version, environment
from jaxbench.parallel.child import run_child
from jaxbench.records.schema import TargetRecord, decode_record
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.targets import compiled_facts, target_table


def check_target(experiment: Experiment, name: str) -> Target:
    """Return the target of this name.

    Raises:
      BadInput: an unknown or impossible target, no compiler for it, a batch that does not split
        over its devices, or an experiment without a network.
    """
    if not isinstance(experiment, Config):
        raise BadInput(f"--target: {experiment.name} trains no network; only those are compiled")
    experiment.validate()
    target = parse_target(name)
    compiler_version(target)
    BatchLayout.create(experiment, target.num_devices)
    return target


def split_targets(names: str) -> list[str]:
    """Return names that commas separate.

    Raises:
      BadInput: a name is given twice.
    """
    listed = names.split(",")
    if not all(listed):
        raise BadInput(f"--target={names}: must name machines; --target=list shows all")
    for name in listed:
        if listed.count(name) > 1:
            raise BadInput(f"--target={names}: names {name} twice")
    return listed


# A process that compiles for a target has it: the file for its answer.
RESULT_VARIABLE = "JAXBENCH_TARGET_RESULT"


class Answer(NamedTuple):
    """A compiler's answer.

    Attributes:
      record: None if the compiler failed.
      network: run.json's fields of the network, see `describe_program`, and its `layers`.
      failed: how it failed.
    """

    record: TargetRecord | None = None
    network: Mapping[str, Any] = {}
    failed: str | None = None


def ask_compiler(arguments: Sequence[str], target: Target, *, strict: bool) -> Answer:
    """Return a compiler's answer.

    Args:
      arguments: of `jaxbench.main`: the experiment, its overrides, and flags for XLA.
      target: the machine.
      strict: whether a machine that the compiler does not know raises BadInput; else it is a
        failure, and no reason to lose the answers about other machines.
    """
    command = [sys.executable, "-m", "jaxbench.main", *arguments]
    command += ["--mode=describe", f"--target={target.name}"]
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        result = pathlib.Path(folder, "result.json")
        variables = environment(target) | {RESULT_VARIABLE: str(result)}
        ended = run_child(command, pathlib.Path(folder, "log"), variables=variables)
        if ended.exit_code == 2 and strict:
            raise BadInput(ended.reason)
        if not result.is_file():
            return Answer(failed=ended.reason or "no answer")
        answer = Answer(**json.loads(result.read_text()))
    return answer._replace(record=answer.record and decode_record(answer.record))


def describe_targets(
    experiment: Experiment, names: str, arguments: Sequence[str], *, as_json: bool
) -> int:
    """Compile a training step for each target, one after the other, and print the answers.

    Args:
      experiment: a valid one.
      names: the targets, with commas between them.
      arguments: see `ask_compiler`.
      as_json: print a list of objects with the fields of `TargetRecord`, not a table.

    Returns:
      The exit code: 1 if a compiler failed.

    Raises:
      BadInput: see `check_target` and `split_targets`; also for a single machine that its compiler
        does not know.
    """
    targets = [check_target(experiment, name) for name in split_targets(names)]
    answers: dict[str, Answer] = {}
    console = Console(sys.stderr)  # standard output is for the answers
    for target in targets:
        with console.phase(f"compiling for {target.name}"):
            answers[target.name] = ask_compiler(arguments, target, strict=len(targets) == 1)
    failed = {name: answer.failed for name, answer in answers.items() if answer.failed}
    compiled = [answer for answer in answers.values() if answer.record]
    if as_json:
        rows = [
            answer.record.to_json() if answer.record else {"target": name, "failed": answer.failed}
            for name, answer in answers.items()
        ]
        print(json.dumps(rows))
        return int(bool(failed))
    from jaxbench.modes.describe import print_network  # imports JAX

    console = create_console()
    if compiled:
        print_network(compiled[0].network)
        print()
    records = [answer.record for answer in compiled]
    for line in [*target_table(records), *compiled_facts(records)]:
        console.say(line)
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    return int(bool(failed))
