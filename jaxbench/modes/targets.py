"""Machines that are not here: check their names, ask their compilers, print the answers.

A compiler runs in a child process: its variables must be set before JAX is imported, and its crash
is a result. JAX is not imported here. For GPUs XLA refuses no step for its memory: it warns on
stderr and plans more than there is.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxbench.batch_layout import BatchLayout
from jaxbench.config import Config, Experiment
from jaxbench.errors import OUT_OF_MEMORY, BadInput
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.hardware.targets.topology import compiler_version, environment
from jaxbench.parallel.child import run_child
from jaxbench.records.schema import TargetRecord, decode_record
from jaxbench.records.writers.console import PlainConsole, create_console
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


# `7.48G`: XLA counts in powers of 1024.
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ASKED, _AVAILABLE = (rf"(?P<{name}>[\d.]+[KMGT]?)" for name in ("asked", "available"))
# XLA checks a step several times, in other words each time.
_EXCEEDED = (
    re.compile(rf"\({_ASKED}\) exceeds available (?P<memory>\w+) \({_AVAILABLE}\)"),
    re.compile(rf"memory space (?P<memory>\w+)\. Used {_ASKED} of {_AVAILABLE}"),
    re.compile(rf"memory space (?P<memory>\w+) .*with size {_ASKED} and limit {_AVAILABLE}"),
    re.compile(
        rf"size={_ASKED}\) would exceed memory \(size={_AVAILABLE}\).*space=(?P<memory>\w+)"
    ),
)
_UNSUPPORTED = re.compile(r"\bUNIMPLEMENTED\b|needs more blocks .* than allowed by hardware")


class Refusal(NamedTuple):
    """Why a compiler does not compile a step.

    Attributes:
      kind: `memory` where the device's memory is too small; `on-chip memory` where a TPU's vector
        or scalar memory is, for one of the step's operations; `unsupported` where the compiler
        cannot express an operation or a size.
      asked_bytes, available_bytes: as the compiler states them; None where it does not.
    """

    kind: str
    asked_bytes: int | None
    available_bytes: int | None


def read_refusal(text: str) -> Refusal | None:
    """Return what a compiler's error, on one line, says; None where it is not a refusal."""
    for found in filter(None, (pattern.search(text) for pattern in _EXCEEDED)):
        kind = "memory" if found["memory"].lower() == "hbm" else "on-chip memory"
        return Refusal(kind, _bytes(found["asked"]), _bytes(found["available"]))
    if OUT_OF_MEMORY.search(text):
        return Refusal("memory", None, None)
    return Refusal("unsupported", None, None) if _UNSUPPORTED.search(text) else None


def _bytes(size: str) -> int:
    return int(float(size.rstrip("KMGT")) * _UNITS.get(size[-1], 1))


# Set in the process that compiles: the file for its answer.
RESULT_VARIABLE = "JAXBENCH_TARGET_RESULT"


class Answer(NamedTuple):
    """What was found, or why nothing was.

    Attributes:
      record: None where the compiler failed.
      network: run.json's fields of the network, see `describe_program`, and its `layers`.
      failed: how it failed.
    """

    record: TargetRecord | None
    network: dict[str, Any]
    failed: str | None


def ask_compiler(arguments: Sequence[str], target: Target) -> Answer:
    """Return a compiler's answer.

    Args:
      arguments: of `jaxbench.main`: the experiment, its overrides, and flags for XLA.
      target: the machine.

    Raises:
      BadInput: the compiler does not know this machine.
    """
    own = ["--mode=describe", f"--target={target.name}"]
    command = [sys.executable, "-m", "jaxbench.main", *arguments, *own]
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        result = pathlib.Path(folder, "result.json")
        variables = environment(target) | {RESULT_VARIABLE: str(result)}
        ended = run_child(command, pathlib.Path(folder, "log"), variables=variables)
        if ended.exit_code == 2:
            raise BadInput(ended.reason)
        if not result.is_file():
            return Answer(None, {}, ended.reason or "it said nothing")
        found = json.loads(result.read_text())
    record = found["record"] and decode_record(found["record"])
    return Answer(record, found["network"], found["failed"])


def is_asked() -> bool:
    """Return whether this process is to compile for a target and write its answer."""
    return RESULT_VARIABLE in os.environ


def describe_targets(
    experiment: Experiment, names: str, arguments: Sequence[str], *, as_json: bool
) -> int:
    """Compile a training step for each target, one after the other, and print what was found.

    Args:
      experiment: a valid one.
      names: the targets, with commas between them.
      arguments: see `ask_compiler`.
      as_json: print a list of objects with the fields of `TargetRecord`, not a table.

    Returns:
      The exit code: 1 where a compiler failed.

    Raises:
      BadInput: see `check_target` and `split_targets`; also a machine that its compiler does not
        know, where it is the only one.
    """
    targets = [check_target(experiment, name) for name in split_targets(names)]
    answers: dict[str, Answer] = {}
    # Standard output is for what was found.
    console = PlainConsole(sys.stderr)
    for target in targets:
        with console.phase(f"compiling for {target.name}"):
            try:
                answers[target.name] = ask_compiler(arguments, target)
            except BadInput as error:
                if len(targets) == 1:
                    raise
                answers[target.name] = Answer(None, {}, str(error))
    failed = {name: answer.failed for name, answer in answers.items() if answer.failed}
    if as_json:
        shown = [
            answer.record.to_json() if answer.record else {"target": name, "failed": answer.failed}
            for name, answer in answers.items()
        ]
        print(json.dumps(shown))
        return int(bool(failed))
    from jaxbench.modes.describe import print_network  # imports JAX

    console = create_console()
    if network := next((answer.network for answer in answers.values() if answer.record), None):
        print_network(network)
    records = [answer.record for answer in answers.values() if answer.record]
    for line in [*target_table(records), *compiled_facts(records)]:
        console.say(line)
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    return int(bool(failed))
