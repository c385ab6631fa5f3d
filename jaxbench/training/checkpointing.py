"""Write checkpoints of a training run."""

from collections.abc import Callable
from typing import Any

from jaxbench.checkpoints.checkpointer import Checkpoints
from jaxbench.clock import Clock
from jaxbench.distributed.signals import defer_signals
from jaxbench.training.run_progress import RunProgress


class CheckpointSaver:
    """Write a run's checkpoints: the state, the progress and the sizes of the records.

    Args:
      clock: the run's.
      checkpoints: writes them into a folder; None writes none.
      measure_records: returns the sizes of the files of records, once all records are in them.
    """

    def __init__(
        self,
        clock: Clock,
        checkpoints: Checkpoints | None = None,
        measure_records: Callable[[], dict[str, int]] = dict,
    ):
        self._clock = clock
        self._checkpoints = checkpoints
        self._measure_records = measure_records

    def is_due(self, epochs_done: int | None = None, last: bool = False) -> bool:
        """Return whether it is time for a checkpoint, see `Checkpoints.due`."""
        return self._checkpoints is not None and self._checkpoints.due(epochs_done, last)

    def save(self, state: Any, progress: RunProgress, score: float | None) -> None:
        """Write a checkpoint; nothing may be queued on the devices."""
        if self._checkpoints is None:
            return
        with self._clock.phase("checkpoint"), defer_signals():
            run = {"records": self._measure_records(), "totals_s": self._clock.totals_s()}
            self._checkpoints.save(state, progress.to_json() | run, score)

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        if self._checkpoints is not None:
            # A second signal must not take what the first one had saved.
            with self._clock.phase("checkpoint"), defer_signals():
                self._checkpoints.wait()

    @property
    def warnings(self) -> list[str]:
        return self._checkpoints.warnings if self._checkpoints else []
