"""The flags that state which processes work together, for every entry point that has them."""

import re

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.modes.options import COORDINATOR_FLAGS
from jaxbench.parallel.processes import (
    CoordinatorConfig,
    ExitStatus,
    check_single_host,
    detect_cluster,
)

DISTRIBUTED = flags.DEFINE_enum(
    "distributed",
    None,
    ["auto", "off"],
    "auto: this is one of many processes on a Cloud TPU slice or under Slurm, which find one "
    "another; off: a single process, even on a host of a slice.",
)
COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address",
    None,
    "HOST:PORT that process 0 listens on, for many processes on hosts of any kind.",
)
NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "With --coordinator_address: the number of processes.", lower_bound=1
)
PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "With --coordinator_address: which process this is, from 0."
)
LOCAL_PROCESSES = flags.DEFINE_integer(
    "local_processes",
    None,
    "Starts this many processes on this machine, which share its work; each gets one GPU.",
    lower_bound=2,
)
INITIALIZATION_TIMEOUT_S = flags.DEFINE_integer(
    "initialization_timeout_s",
    300,
    "How long processes wait for one another at their start.",
    lower_bound=1,
)
HEARTBEAT_TIMEOUT_S = flags.DEFINE_integer(
    "heartbeat_timeout_s",
    30,
    "How long a process may be silent before it counts as lost and the others end.",
    lower_bound=2,
)


def check_processes() -> None:
    """Raise BadInput if these flags are incomplete or contradict each other."""
    values = {name: flags.FLAGS[name].value for name in COORDINATOR_FLAGS}
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
        raise BadInput(f"--distributed={distributed}: auto detects what {names} say; give either")
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


def coordinator_config(*todo: str, one_host: bool = True) -> CoordinatorConfig | None:
    """Return how this process joins the others; None for a single process.

    Args:
      todo: advice for a single process on a host of a TPU slice, see `check_single_host`.
      one_host: whether such a process is refused.
    """
    timeouts_s = (INITIALIZATION_TIMEOUT_S.value, HEARTBEAT_TIMEOUT_S.value)
    if DISTRIBUTED.value == "auto":
        return detect_cluster(*timeouts_s)
    address = COORDINATOR_ADDRESS.value
    if address is not None:
        return CoordinatorConfig(address, NUM_PROCESSES.value, PROCESS_ID.value, *timeouts_s)
    if DISTRIBUTED.value is None and one_host:
        check_single_host(*todo)
    return None


def exit_status(error: BaseException) -> ExitStatus:
    """Return how a process ends by an error, for the other processes."""
    from jaxbench.records.recorder import classify

    code, line = entry_point.exit_code(error)
    status, reason = ("failed", str(error)) if isinstance(error, BadInput) else classify(error)
    return ExitStatus(status, reason, code, line)
