"""Where the processes of a run meet: given by flags, or detected by JAX."""

import dataclasses
import os
import re

from jaxbench.errors import BadInput
from jaxbench.parallel.signals import defer_signals


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """How process `index` of `count` joins the others of a run.

    Attributes:
      address: HOST:PORT of process 0, whose coordination service listens there; None where JAX
        detects the cluster (Cloud TPU, Slurm and others that `jax.distributed` knows).
      initialization_timeout_s: how long the processes wait for one another.
      heartbeat_timeout_s: a process that is silent for so long is lost.
    """

    address: str | None
    count: int
    index: int
    initialization_timeout_s: int
    heartbeat_timeout_s: int


def check_coordinator(
    distributed: str | None, address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Raise BadInput where the flags of these names are incomplete or contradict each other."""
    names = ("--coordinator_address", "--num_processes", "--process_id")
    values = (address, num_processes, process_id)
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    if len(missing) == len(names):
        return
    if distributed:
        raise BadInput(
            f"--distributed={distributed} with {next(n for n in names if n not in missing)}: give "
            "one of them; auto detects what the three flags say"
        )
    if missing:
        raise BadInput(f"{' and '.join(missing)} missing: {', '.join(names)} go together")
    match = re.fullmatch(r"(.+):(\d{1,5})", address)
    if not match or not 0 < int(match[2]) < 2**16:
        raise BadInput(
            f"--coordinator_address={address}: must be HOST:PORT of process 0, such as "
            "10.0.0.1:8476"
        )
    if not 0 <= process_id < num_processes:
        raise BadInput(
            f"--process_id={process_id} with --num_processes={num_processes}: must be 0 to "
            f"{num_processes - 1}"
        )


_ON_ALL_HOSTS = "start the same command with --distributed=auto on all of them"


def check_single_host(todo: str = _ON_ALL_HOSTS) -> None:
    """Raise BadInput on one of several hosts of a TPU slice, where one process alone would hang.

    For runs without flags about processes: `--distributed=off` skips it.

    Args:
      todo: what the message tells the user to do.
    """
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    # Whoever has set these has separated the host's own chips from the slice.
    separated = "TPU_PROCESS_BOUNDS" in os.environ or "TPU_VISIBLE_CHIPS" in os.environ
    if len(hosts) > 1 and not separated and os.environ.get("JAX_PLATFORMS") != "cpu":
        raise BadInput(
            f"this is one of {len(hosts)} hosts of a TPU slice (TPU_WORKER_HOSTNAMES), whose chips "
            f"wait for one another: {todo}"
        )


def detect_cluster(
    initialization_timeout_s: int, heartbeat_timeout_s: int
) -> CoordinatorConfig | None:
    """Return how to join the processes of the cluster that JAX detects; None for a single process.

    Raises:
      BadInput: JAX detects no cluster.
    """
    with defer_signals():
        from jax._src.clusters import ClusterEnv

    # JAX's public way to ask connects at once, and would wait for processes that do not exist.
    try:
        found = [env for env in ClusterEnv._cluster_types if not env.opt_in_only_method]
        cluster = next((env for env in found if env.is_env_present()), None)
        num_processes = cluster and int(cluster.get_process_count())
    except Exception as error:
        raise BadInput(
            f"--distributed=auto: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    if cluster is None:
        raise BadInput(
            "--distributed=auto: JAX finds no Cloud TPU slice, Slurm step or Open MPI job here; "
            "give --coordinator_address, --num_processes and --process_id, or leave it out on a "
            "single machine"
        )
    if num_processes == 1:
        return None
    index = int(cluster.get_process_id())
    timeouts_s = (initialization_timeout_s, heartbeat_timeout_s)
    return CoordinatorConfig(None, num_processes, index, *timeouts_s)
