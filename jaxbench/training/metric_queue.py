"""Steps that were queued on the devices but may not have run yet."""

import collections
import math
from collections.abc import Iterator

import jax
import numpy as np

from jaxbench.clock import Stopwatch, wait_until
from jaxbench.parallel.mesh import all_ready

# Deep enough that the device never waits for the host, shallow enough that the console is recent
# and that few steps' outputs are alive at once.
_DEPTH = 16
# Of slow steps fewer, because the end of a run waits for all that are queued.
_DEPTH_OF_SLOW = 3
# Polling answers Ctrl-C at once, but on a CPU it takes processor time from the step (8 % of
# quickstart's). Waits shorter than this block in the runtime instead.
_BLOCKING_WAIT_S = 0.5
# Calls queued on simulated devices.
_MAX_SIMULATED_CALLS = 4


class DispatchLimiter:
    """Keep calls from piling up on simulated devices.

    Simulated devices share one pool of threads. When many calls are queued, replicas that wait for
    one another can hold the whole pool, and XLA ends the process after 40 s (seen with 2 devices on
    2 busy cores). Real devices have a queue each, and no limit here.
    """

    def __init__(self) -> None:
        self._results: collections.deque[jax.Array] = collections.deque()

    def add(self, result: jax.Array) -> None:
        """Note a call's result, which must not be donated; wait while too many are queued."""
        devices = result.devices()
        if len(devices) == 1 or next(iter(devices)).platform != "cpu":
            return
        self._results.append(result)
        if len(self._results) > _MAX_SIMULATED_CALLS:
            self._results.popleft().block_until_ready()


class MetricsQueue:
    """A queue of steps' metrics; returns them in order once they have been computed.

    Args:
      one_by_one: return each as soon as it has been computed, so that its arrival is the end of its
        step. Otherwise several may come together, which takes less of the host's time.
    """

    def __init__(self, one_by_one: bool = False):
        self._one_by_one = one_by_one
        self._queue: collections.deque[jax.Array] = collections.deque()
        self._limiter = DispatchLimiter()
        self._last_wait_s = math.inf

    def push(self, metrics: jax.Array) -> list[np.ndarray]:
        """Add the metrics of a step just queued on the devices; return those that are computed.

        It waits only while more than `_DEPTH` steps, or `_DEPTH_OF_SLOW` slow ones, are queued; on
        simulated devices as `DispatchLimiter` does.
        """
        metrics.copy_to_host_async()
        self._limiter.add(metrics)
        self._queue.append(metrics)
        slow = self._last_wait_s >= _BLOCKING_WAIT_S
        if len(self._queue) > (_DEPTH_OF_SLOW if slow else _DEPTH):
            self._wait()
        return self._take_finished()

    def drain(self) -> Iterator[np.ndarray]:
        """Wait for every queued step; yield each one's metrics as it finishes."""
        while self._queue:
            self._wait()
            yield from self._take_finished()

    def _wait(self) -> None:
        """Wait for the oldest step or, where steps are quick, for half the queue at once."""
        watch = Stopwatch()
        if self._last_wait_s < _BLOCKING_WAIT_S:
            self._queue[0 if self._one_by_one else len(self._queue) // 2].block_until_ready()
        else:
            wait_until(lambda: all_ready(self._queue[0]))
        self._last_wait_s = watch.elapsed_s()

    def _take_finished(self) -> list[np.ndarray]:
        finished = []
        while self._queue and all_ready(self._queue[0]):
            finished.append(jax.device_get(self._queue.popleft()))
        return finished
