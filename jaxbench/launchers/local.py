"""Run trials on this machine, one at a time; on Linux each ends with the sweep."""

import os
import platform
import sys
from collections.abc import Callable

from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import GPU_MEMORY_FRACTION
from jaxbench.launchers.launcher import Ended, Launcher, Limits, TrialJob
from jaxbench.parallel.child import Child, last_line


class LocalLauncher(Launcher):
    """See `Launcher`."""

    slots = 1
    hardware = ()

    def __init__(self, limits: Limits, say: Callable[[str], None]):
        _check_memory_is_free()
        self._limits = limits
        self._running: dict[str, Child] = {}

    def start(self, job: TrialJob) -> None:
        self._running[job.key] = Child(job.command, job.log, **self._limits._asdict())

    def wait(self) -> list[Ended]:
        ended = []
        for key, child in [*self._running.items()]:
            if (result := child.wait()) is not None:
                del self._running[key]
                ended.append(Ended(key, result, platform.node()))
        return ended

    def last_line(self, key: str) -> str:
        return last_line(self._running[key].log)

    def close(self) -> None:
        for child in self._running.values():
            child.end()
        self._running.clear()


def _check_memory_is_free() -> None:
    """Raise BadInput if this process holds GPU memory that trials need.

    JAX keeps what it has taken from a GPU. A trial would fail, or the largest batch be too small.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if not (bridge and bridge.backends_are_initialized()):
        return
    import jax

    names = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
    fraction = float(next(filter(None, map(os.environ.get, names)), GPU_MEMORY_FRACTION))
    reserves = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") not in ("false", "False", "0")
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        if device.platform != "gpu" or not (limit_bytes := stats.get("bytes_limit")):
            continue
        held_bytes = stats.get("pool_bytes", limit_bytes if reserves else stats["bytes_in_use"])
        if held_bytes > limit_bytes / fraction - limit_bytes:
            raise BadInput(
                f"this process holds {held_bytes / 2**30:.3g} GiB of the GPU's memory, which the "
                "trials need: restart it (in a notebook, the kernel) and run the sweep first, or "
                "set XLA_PYTHON_CLIENT_PREALLOCATE=false before JAX starts"
            )
