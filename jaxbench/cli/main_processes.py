"""How a process of `python -m jaxbench.main` joins the others, and what all of them share."""

import dataclasses
from typing import Any

from absl import flags

from jaxbench.cli import entry_point, main_flags
from jaxbench.config import Experiment
from jaxbench.distributed import coordination
from jaxbench.distributed.coordinator import (
    CoordinatorConfig,
    check_single_host,
    detect_cluster,
)
from jaxbench.distributed.signals import defer_signals
from jaxbench.distributed.watch import ExitStatus
from jaxbench.errors import BadInput
from jaxbench.records.reader import flat


def coordinator(mode: str) -> CoordinatorConfig | None:
    """Return how this process joins the others; None for a single process."""
    timeouts = {
        "initialization_timeout_s": main_flags.INITIALIZATION_TIMEOUT_S.value,
        "heartbeat_timeout_s": main_flags.HEARTBEAT_TIMEOUT_S.value,
    }
    if main_flags.DISTRIBUTED.value == "auto":
        return detect_cluster(**timeouts)
    if main_flags.COORDINATOR_ADDRESS.value is None:
        if main_flags.DISTRIBUTED.value is None and mode != "describe":
            check_single_host()
        return None
    return CoordinatorConfig(
        main_flags.COORDINATOR_ADDRESS.value,
        main_flags.NUM_PROCESSES.value,
        main_flags.PROCESS_ID.value,
        **timeouts,
    )


def common_facts(experiment: Experiment, mode: str) -> dict[str, Any]:
    """Return, by name, everything that must be the same in all processes of a run."""
    with defer_signals():
        from jaxbench.hardware.environment import describe_code
    fields = flat(dataclasses.asdict(experiment))
    own = {f"data.{name}" for name in main_flags.OF_EACH}
    return {
        "--num_processes": coordination.count(),
        "--mode": mode,
        **{f"--{name}": flags.FLAGS[name].value for name in main_flags.OF_ALL},
        **{f"--experiment.{name}": value for name, value in fields if name not in own},
        **describe_code(),
    }


def exit_status(error: BaseException) -> ExitStatus:
    """Return how a process ends by an error, for the other processes."""
    from jaxbench.records.recorder import classify

    code, line = entry_point.exit_code(error)
    if isinstance(error, BadInput):
        return ExitStatus("failed", str(error), code, line)
    return ExitStatus(*classify(error), code, line)
