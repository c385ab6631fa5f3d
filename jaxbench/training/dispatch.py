"""Results of steps that were queued but may not have run yet."""

import collections
import math
from collections.abc import Iterator

import jax
import numpy as np

from jaxbench.clock import Stopwatch, wait_until
from jaxbench.distributed.mesh import all_ready

# Deep enough that the device never waits for the host, shallow enough that what is shown is
# recent and that few steps' outputs are alive at once.
_DEPTH = 16
# Of steps that take long: who is asked to end waits for all that are queued.
_DEPTH_OF_SLOW = 3
# Looking again and again answers Ctrl-C at once, but on a CPU it takes processor time from the
# step (8 % of quickstart's). Waits that were shorter than this block in the runtime instead.
_BLOCKING_WAIT_S = 0.5


class MetricsQueue:
    """A queue of steps' metrics, handed back in order once they have been computed.

    Args:
      one_by_one: hand each back as soon as it is there, so that its arrival tells when the step
        was done; else some may come together, which takes less of the host's time.
    """

    def __init__(self, one_by_one: bool = False):
        self._one_by_one = one_by_one
        self._queue: collections.deque[jax.Array] = collections.deque()
        self._last_wait_s = math.inf

    def push(self, metrics: jax.Array) -> list[np.ndarray]:
        """Adds the metrics of a step just queued on the device; returns those that have finished.

        Waits only while more than `_DEPTH` steps are outstanding, of slow ones `_DEPTH_OF_SLOW`.
        """
        metrics.copy_to_host_async()
        self._queue.append(metrics)
        slow = self._last_wait_s >= _BLOCKING_WAIT_S
        if len(self._queue) > (_DEPTH_OF_SLOW if slow else _DEPTH):
            self._wait()
        return self._take_finished()

    def drain(self) -> Iterator[np.ndarray]:
        """Waits for every outstanding step; yields each one's metrics as it finishes."""
        while self._queue:
            self._wait()
            yield from self._take_finished()

    def _wait(self) -> None:
        """Waits for the oldest step, or, where steps are quick, for half the queue at once."""
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
