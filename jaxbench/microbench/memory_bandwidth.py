"""Memory bandwidth by copy, scale and triad, as STREAM defines them.

    copy   a = b            2 arrays
    scale  a = s b          2 arrays
    triad  a = b + s c      3 arrays

J. D. McCalpin, "Memory bandwidth and machine balance in current high performance computers" (1995),
and stream.c: bytes are those of the arrays named above, once each. A cache that fetches a line
before it is written moves more, which STREAM does not count either. Arrays are at least four times
as large as the last cache, which is STREAM's rule.

The result is written over the array that the call before has written (it is donated), as STREAM's
is: with a new array for each call, a CPU would mostly measure how the system hands out pages.
Elements are fp32, where STREAM has fp64. Calls are queued one behind the other; a call takes far
longer than its dispatch.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import psutil
from jax import lax

from jaxbench.analysis.scaling_model import Interval
from jaxbench.hardware.system import last_level_cache_bytes
from jaxbench.hardware.targets.target import l2_bytes
from jaxbench.microbench.interleaved import Calls, measure_in_turn, show_nothing
from jaxbench.parallel.mesh import DataMesh

_SCALAR = 3.0  # STREAM's
OPERATIONS = {
    "copy": (2, lambda b, c: b),
    "scale": (2, lambda b, c: _SCALAR * b),
    "triad": (3, lambda b, c: b + _SCALAR * c),
}
# STREAM's rule; and what is large enough for every accelerator's cache known so far.
_TIMES_CACHE, _LARGEST_BYTES = 4, 2**30
# There are six arrays, three for one device and three for all.
_SHARE_OF_MEMORY = 1 / 16
_WIDTH = np.dtype(np.float32).itemsize


def memory_bytes(device: jax.Device) -> int:
    """Return the memory that one device may use; simulated devices share the host's."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    alike = [other for other in jax.local_devices() if other.platform == device.platform]
    return psutil.virtual_memory().available // len(alike)


def choose_array_bytes(device: jax.Device) -> int:
    """Return how large an array should be on each device."""
    if device.platform == "cpu":
        wanted = _TIMES_CACHE * (last_level_cache_bytes() or 2**25)
    else:
        wanted = max(_LARGEST_BYTES, _TIMES_CACHE * (l2_bytes(device.device_kind) or 0))
    return int(min(wanted, memory_bytes(device) * _SHARE_OF_MEMORY)) // _WIDTH * _WIDTH


class Arrays:
    """The arrays a, b and c of some devices; each operation writes a."""

    def __init__(self, mesh: DataMesh, array_bytes: int):
        self.mesh, rows = mesh, len(mesh.local_devices)
        # By broadcasting, so that the host holds no whole array.
        self._a, self._b, self._c = (
            self.mesh.shard(np.broadcast_to(np.float32(value), (rows, array_bytes // _WIDTH)))
            for value in (1.0, 2.0, 0.5)
        )

    def compile(self, operation: str) -> Any:
        """Return a jitted function of a, b and c that writes its result over a."""
        _, function = OPERATIONS[operation]

        def write(a_N, b_N, c_N):
            # Writes all of it: XLA computes the result in the memory of a.
            return lax.dynamic_update_slice(a_N, function(b_N, c_N), (0,))

        return self.mesh.pmap(write, sharded=(True,) * 3, sharded_output=True, donate=(0,))

    def run(self, compiled: Any) -> jax.Array:
        """Queue one call of what `compile` returned; return a."""
        self._a = compiled(self._a, self._b, self._c)
        return self._a

    def calls(self, operation: str, window_s: float) -> Calls:
        """Return the calls of an operation, compiled and run once."""
        call = functools.partial(self.run, self.compile(operation))
        jax.block_until_ready(call())
        devices = self.mesh.devices
        return Calls(f"{operation} on {len(devices)} device(s)", call, devices, window_s)


def measure_bandwidth(
    mesh: DataMesh,
    array_bytes: int,
    *,
    rounds: int = 11,
    window_s: float = 0.2,
    show: Callable[[str], object] = show_nothing,
) -> dict[tuple[str, int], Interval]:
    """Measure each operation on this process's first device, and on all devices at once.

    `array_bytes` are of each array on each device, see `choose_array_bytes`.

    Returns:
      {(operation, number of devices): bytes/s of all these devices together, as STREAM counts: the
      median of the windows, and its 95 % interval}.
    """
    turns = {}
    first = dataclasses.replace(mesh, devices=(mesh.local_devices[0],))
    for group in (first, mesh) if mesh.num_devices > 1 else (mesh,):
        arrays = Arrays(group, array_bytes)
        for operation in OPERATIONS:
            show(f"{operation}, compiling")
            turns[operation, group.num_devices] = arrays.calls(operation, window_s)
    measure_in_turn([*turns.values()], rounds, show)
    return {
        (operation, count): calls.per_s(OPERATIONS[operation][0] * array_bytes * count)
        for (operation, count), calls in turns.items()
    }
