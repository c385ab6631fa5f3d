"""How long JAX takes to start a program that computes next to nothing.

The program adds one to a scalar that is on the device. Its latency is timed call by call, from
Python's call until the result is ready. Asynchronous dispatch is timed in windows: calls queued
back to back, each with the result of the one before, and one wait at the end; seconds a call. It is
the shortest step whose dispatch is hidden behind the device's work.
"""

import jax
import jax.numpy as jnp

from jaxbench.analysis.scaling_model import Interval
from jaxbench.analysis.statistics import median_interval
from jaxbench.clock import Stopwatch
from jaxbench.microbench.interleaved import Calls, measure_in_turn


def measure_dispatch(
    device: jax.Device, *, calls: int = 1000, rounds: int = 11, window_s: float = 0.1
) -> tuple[Interval, Interval]:
    """Measure `calls` calls that are waited for, then `rounds` windows of queued ones.

    Returns:
      Of both, the median seconds of a call and its 95 % interval.
    """
    state = [jax.device_put(jnp.zeros(()), device)]
    add_one = jax.jit(lambda x: x + 1)

    def queue() -> jax.Array:
        state[0] = add_one(state[0])
        return state[0]

    jax.block_until_ready(queue())
    times_s = []
    for _ in range(calls):
        watch = Stopwatch()
        queue().block_until_ready()
        times_s.append(watch.elapsed_s())
    queued = Calls("dispatch", queue, [device], window_s, queued_on_cpu=True)
    measure_in_turn([queued], rounds)
    return median_interval(times_s), queued.call_s()
