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

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.aliases import Step
from jaxbench.analysis.rate import Estimate
from jaxbench.hardware.system import host_memory_bytes, last_level_cache_bytes
from jaxbench.hardware.targets.target import l2_bytes
from jaxbench.microbench.interleaved import Calls, measure_in_turn

_SCALAR = 3.0  # STREAM's
OPERATIONS = {
    "copy": (2, lambda b, c: b),
    "scale": (2, lambda b, c: _SCALAR * b),
    "triad": (3, lambda b, c: b + _SCALAR * c),
}
# STREAM's rule; and what is large enough for every accelerator's cache known so far.
_TIMES_CACHE, _LARGEST_BYTES = 4, 2**30
# There are three arrays.
_SHARE_OF_MEMORY = 1 / 16
_WIDTH = np.dtype(np.float32).itemsize


def memory_bytes(device: jax.Device) -> int:
    """Return the memory that one device may use; simulated devices share the host's."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    alike = [other for other in jax.local_devices() if other.platform == device.platform]
    return host_memory_bytes()[1] // len(alike)


def choose_array_bytes(device: jax.Device) -> int:
    """Return how large an array should be on each device."""
    if device.platform == "cpu":
        wanted = _TIMES_CACHE * (last_level_cache_bytes() or 2**25)
    else:
        wanted = max(_LARGEST_BYTES, _TIMES_CACHE * (l2_bytes(device.device_kind) or 0))
    return int(min(wanted, memory_bytes(device) * _SHARE_OF_MEMORY)) // _WIDTH * _WIDTH


def compile_operation(operation: str) -> Step:
    """Return a jitted function of the arrays a, b and c that writes its result over a."""
    _, function = OPERATIONS[operation]

    def write(a_N, b_N, c_N):
        # Writes all of it: XLA computes the result in the memory of a.
        return lax.dynamic_update_slice(a_N, function(b_N, c_N), (0,))

    return jax.jit(write, donate_argnums=0)


def measure_bandwidth(
    device: jax.Device,
    array_bytes: int,
    *,
    rounds: int,
    window_s: float,
    show: Callable[[str], object],
) -> dict[str, Estimate]:
    """Return {operation: median bytes/s, as STREAM counts}, with arrays of this size."""
    size = array_bytes // _WIDTH
    arrays_N = [jnp.full(size, value, jnp.float32, device=device) for value in (1.0, 2.0, 0.5)]

    def queue(compiled: Step) -> jax.Array:
        arrays_N[0] = compiled(*arrays_N)
        return arrays_N[0]

    turns = {}
    for operation in OPERATIONS:
        show(f"{operation}, compiling")
        call = functools.partial(queue, compile_operation(operation))
        jax.block_until_ready(call())
        turns[operation] = Calls(operation, call, [device], window_s)
    measure_in_turn([*turns.values()], rounds, show)
    return {name: calls.per_s(OPERATIONS[name][0] * array_bytes) for name, calls in turns.items()}
