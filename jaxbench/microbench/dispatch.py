"""How long JAX takes to start a program that computes next to nothing.

The program adds one to a scalar that is on the device. Its latency is timed call by call, from
Python's call until the result is ready.
"""

import jax
import jax.numpy as jnp

from jaxbench.analysis.scaling_model import Interval
from jaxbench.analysis.statistics import median_interval
from jaxbench.clock import Stopwatch


def measure_dispatch(device: jax.Device, calls: int) -> Interval:
    """Return the median seconds of some calls that are waited for, and its 95 % interval."""
    state, add_one = jax.device_put(jnp.zeros(()), device), jax.jit(lambda x: x + 1)
    times_s = []
    for _ in range(calls + 1):
        watch = Stopwatch()
        state = add_one(state).block_until_ready()
        times_s.append(watch.elapsed_s())
    return median_interval(times_s[1:])  # the first one compiles
