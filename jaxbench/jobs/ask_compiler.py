"""Ask a compiler about a training step on a machine that is not here, in a process of its own.

Its variables must be set before JAX is imported, and its crash is a result.
"""

import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxbench.clock import Clock
from jaxbench.config import Config
from jaxbench.distributed.child import run_child
from jaxbench.errors import BadInput, first_line
from jaxbench.hardware.targets.target import Target
from jaxbench.hardware.targets.topology import environment
from jaxbench.records.schema import TargetRecord, record_from_json

# Set in the process that compiles: the file for its answer.
_RESULT = "JAXBENCH_TARGET_RESULT"


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
        variables = environment(target) | {_RESULT: str(result)}
        ended = run_child(command, pathlib.Path(folder, "log"), variables=variables)
        if ended.exit_code == 2:
            raise BadInput(ended.reason)
        if not result.is_file():
            return Answer(None, {}, ended.reason or "it said nothing")
        found = json.loads(result.read_text())
    record = found["record"] and record_from_json(found["record"])
    return Answer(record, found["network"], found["failed"])


def is_asked() -> bool:
    """Return whether this process is to compile for a target and write its answer."""
    return _RESULT in os.environ


def write_answer(config: Config, target: Target) -> None:
    """Compile in this process, and write the answer.

    Raises:
      BadInput: the compiler does not know this machine.
    """
    from jaxbench.jobs.target_step import compile_for_target

    try:
        answer = compile_for_target(config, target, Clock())
        found = {"record": answer[0].to_json(), "network": answer[1], "failed": None}
    except BadInput:
        raise
    except Exception as error:  # a compiler raises errors of any kind
        failed = f"{type(error).__name__}: {first_line(error)}"
        found = {"record": None, "network": {}, "failed": failed}
    pathlib.Path(os.environ[_RESULT]).write_text(json.dumps(found))
