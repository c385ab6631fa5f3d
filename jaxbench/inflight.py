"""Results of steps that were queued but may not have run yet."""

import collections
from collections.abc import Iterator

import jax
import numpy as np

from jaxbench.clock import wait_until
from jaxbench.devices import all_ready

# Deep enough that the device never waits for the host, shallow enough that what is shown is
# recent and that few steps' outputs are alive at once.
_DEPTH = 8


class InFlight:
    """A queue of steps' metrics, handed back in order once they have been computed."""

    def __init__(self):
        self._queue: collections.deque[jax.Array] = collections.deque()

    def push(self, metrics: jax.Array) -> list[np.ndarray]:
        """Adds the metrics of a step just queued on the device; returns those that have finished.

        Waits only while more than `_DEPTH` steps are outstanding.
        """
        metrics.copy_to_host_async()
        self._queue.append(metrics)
        if len(self._queue) > _DEPTH:
            self._wait_for_oldest()
        return self._take_finished()

    def drain(self) -> Iterator[np.ndarray]:
        """Waits for every outstanding step; yields each one's metrics as it finishes."""
        while self._queue:
            self._wait_for_oldest()
            yield from self._take_finished()

    def _wait_for_oldest(self) -> None:
        wait_until(lambda: all_ready(self._queue[0]))

    def _take_finished(self) -> list[np.ndarray]:
        finished = []
        while self._queue and all_ready(self._queue[0]):
            finished.append(jax.device_get(self._queue.popleft()))
        return finished
