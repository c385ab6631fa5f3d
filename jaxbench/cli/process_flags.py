"""The flags that state which processes work together, for every entry point that has them."""

import re
from typing import Any

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.errors import BadInput
from jaxbench.modes.options import COORDINATOR_FLAGS
from jaxbench.parallel.processes import (
    CoordinatorConfig,
    ExitStatus,
    check_single_host,
    check_started_once,
    detect_cluster,
)

DISTRIBUTED, COORDINATOR_ADDRESS, NUM_PROCESSES, PROCESS_ID, LOCAL_PROCESSES, *_TIMEOUTS_S = (
    define_flags("processes")
)


def check_processes() -> None:
    """Raise BadInput if these flags are incomplete or contradict each other."""
    values: dict[str, Any] = {name: flags.FLAGS[name].value for name in COORDINATOR_FLAGS}
    distributed = values.pop("distributed")
    missing = [f"--{name}" for name, value in values.items() if value is None]
    if LOCAL_PROCESSES.value and (distributed or len(missing) < 3):
        raise BadInput(
            f"--local_processes={LOCAL_PROCESSES.value}: "
            "starts the others itself; leave out --" + ", --".join(COORDINATOR_FLAGS)
        )
    if len(missing) == 3:
        return
    names = ", ".join(f"--{name}" for name in values)
    if distributed:
        raise BadInput(f"--distributed={distributed}: it detects {names}; give either")
    if missing:
        raise BadInput(f"{' and '.join(missing)} missing: {names} go together")
    address, num_processes, process_id = values.values()
    match = re.fullmatch(r".+:(\d{1,5})", address)
    if not match or not 0 < int(match[1]) < 2**16:
        raise BadInput(
            f"--coordinator_address={address}: must be HOST:PORT of process 0, such as "
            "10.0.0.1:8476"
        )
    if not 0 <= process_id < num_processes:
        raise BadInput(
            f"--process_id={process_id} with --num_processes={num_processes}: must be 0 to "
            f"{num_processes - 1}"
        )


def coordinator_config(one_host: bool = True) -> CoordinatorConfig | None:
    """Return how this process joins the others; None for a single process.

    With `one_host` a single process is refused if it is one of several, or on a TPU slice's host.
    """
    timeouts_s = [timeout_s.value for timeout_s in _TIMEOUTS_S]
    if DISTRIBUTED.value == "auto":
        return detect_cluster(*timeouts_s)
    address = COORDINATOR_ADDRESS.value
    if address is not None:
        return CoordinatorConfig(address, NUM_PROCESSES.value, PROCESS_ID.value, *timeouts_s)
    if DISTRIBUTED.value is None and one_host:
        check_single_host()
        check_started_once()
    return None


def exit_status(error: BaseException) -> ExitStatus:
    """Return how a process ends by an error, for the other processes."""
    from jaxbench.records.recorder import classify

    code, line = entry_point.exit_code(error)
    status, reason = ("failed", str(error)) if isinstance(error, BadInput) else classify(error)
    return ExitStatus(status, reason, code, line)
