"""The steps and evaluations of a run, and its end."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxbench.records.schema import EpochRecord


@dataclasses.dataclass(frozen=True)
class AccuracyTarget:
    """A figure of an evaluation and the value at which the run ends."""

    figure: str  # top1, dice, or the headline of a task of the user's own
    value: float  # a share, 0.94 for 94 %

    def is_reached(self, epoch: EpochRecord) -> bool:
        return comparable(epoch.evaluated(self.figure)) >= self.value

    def describe(self, epochs: Sequence[EpochRecord], images_per_step: int) -> dict[str, Any]:
        """Return the summary's `target`: what reaching it took; null where it was never reached."""
        reached = next((epoch for epoch in epochs if self.is_reached(epoch)), None)
        return {
            "score": self.figure,
            "value": self.value,
            "reached": reached is not None,
            "epoch": reached and reached.epoch,
            "steps": reached and reached.step,
            "images": reached and reached.step * images_per_step,
            "time_s": reached and reached.elapsed_s,
            # Without compilation, reading and start-up: with evaluations, then without them.
            "epochs_time_s": reached and sum(epoch.epoch_time_s for epoch in epochs),
            "train_time_s": reached and sum(epoch.train_time_s for epoch in epochs),
        }


def comparable(figure: float | None) -> float:
    """Return a figure for comparison: nan, or None in its place in a record, is the lowest."""
    return -math.inf if figure is None or math.isnan(figure) else figure


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """The steps of a run. Epochs count from 0, and the numbers of steps from 1."""

    total_steps: int  # of the whole run, unless it reaches its target before
    steps_per_epoch: int  # of a complete epoch
    eval_every_epochs: int = 1  # from one evaluation to the next
    target: AccuracyTarget | None = None  # the accuracy that ends the run

    @property
    def num_epochs(self) -> int:
        return math.ceil(self.total_steps / self.steps_per_epoch)

    def steps(self, epoch: int) -> range:
        """Return the numbers of an epoch's steps; `max_steps` may cut the last epoch short."""
        start = epoch * self.steps_per_epoch + 1
        return range(start, min(start + self.steps_per_epoch, self.total_steps + 1))

    def is_evaluated(self, epoch: int) -> bool:
        """Return whether an evaluation follows this epoch; one always follows the last."""
        return (epoch + 1) % self.eval_every_epochs == 0 or epoch + 1 == self.num_epochs

    def num_evaluations(self, epochs_done: int) -> int:
        """Return how many evaluations are left in a run that is not done."""
        every, num_epochs = self.eval_every_epochs, self.num_epochs
        return num_epochs // every - epochs_done // every + bool(num_epochs % every)

    def is_done(self, epochs: Sequence[EpochRecord]) -> bool:
        """Return whether these epochs are the whole run."""
        if len(epochs) == self.num_epochs:
            return True
        return bool(epochs and self.target and self.target.is_reached(epochs[-1]))
