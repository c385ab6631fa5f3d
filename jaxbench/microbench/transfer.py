"""Transfers between the host's memory and a device's, and how long a program takes to start.

Each transfer is timed alone, from the call until it is done, as bytes / seconds. This is what
NVIDIA's bandwidthTest (CUDA samples) measures with blocking copies, pageable and pinned; here JAX's
own call is timed, with all that it does.

  host_to_device: `jax.device_put` of a NumPy array (pageable), or of an array in pinned memory.
  device_to_host: `np.asarray` of an array that was never on the host (JAX keeps a copy of one that
    was), or `jax.device_put` to pinned memory.

On CPU nothing is measured: its device memory is the host's, and JAX copies or shares arrays as it
likes.
"""

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxbench.analysis.rate import Estimate, estimate
from jaxbench.clock import Stopwatch

PINNED = "pinned_host"


def measure_transfers(
    device: jax.Device, *, num_bytes: int, rounds: int, show: Callable[[str], object]
) -> dict[tuple[str, str], Estimate]:
    """Return {(direction, host memory): the median bytes/s}; nothing on CPU devices.

    Both directions and both kinds of host memory are measured, as far as the backend has them.
    """
    if device.platform == "cpu":
        return {}
    rates: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for number in range(rounds + 1):
        show(f"transfers, round {number} of {rounds}")
        for direction, host_memory, start in _transfers(device, num_bytes):
            watch = Stopwatch()
            jax.block_until_ready(start())
            elapsed_s = watch.elapsed_s()
            if number:  # the first round warms up
                rates[direction, host_memory].append(num_bytes / elapsed_s)
    return {key: estimate(values) for key, values in rates.items()}


def measure_dispatch(device: jax.Device, calls: int) -> Estimate:
    """Return the median seconds of some calls of a program.

    It adds one to a scalar that is on the device. A call is timed from Python's call until the
    result is ready.
    """
    state, add_one = jax.device_put(jnp.zeros(()), device), jax.jit(lambda x: x + 1)
    times_s = []
    for _ in range(calls + 1):
        watch = Stopwatch()
        state = add_one(state).block_until_ready()
        times_s.append(watch.elapsed_s())
    return estimate(times_s[1:])  # the first one compiles


def _transfers(device: jax.Device, size: int) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield direction, host memory and what starts a transfer of new arrays."""
    host_N = np.ones(size // 4, np.float32)
    put, on_device = jax.device_put, SingleDeviceSharding(device)
    yield "host_to_device", "pageable", functools.partial(put, host_N, on_device)
    device_N = jax.block_until_ready(put(host_N, on_device))
    yield "device_to_host", "pageable", functools.partial(np.asarray, device_N)
    if PINNED in {memory.kind for memory in device.addressable_memories()}:
        pinned = SingleDeviceSharding(device, memory_kind=PINNED)
        pinned_N = jax.block_until_ready(put(host_N, pinned))
        yield "host_to_device", PINNED, functools.partial(put, pinned_N, on_device)
        device_N = jax.block_until_ready(put(host_N, on_device))
        yield "device_to_host", PINNED, functools.partial(put, device_N, pinned)
