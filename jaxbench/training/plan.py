"""The steps and evaluations of a run, and its end."""

import dataclasses
import math
from collections.abc import Sequence

from jaxbench.records.schema import EpochRecord
from jaxbench.training.target import AccuracyTarget


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """The steps of a run. Epochs count from 0, and the numbers of steps from 1.

    Attributes:
      total_steps: of the whole run, unless it reaches its target before.
      steps_per_epoch: of a complete epoch.
      eval_every_epochs: epochs from one evaluation to the next.
      target: the accuracy that ends the run; None for no such end.
    """

    total_steps: int
    steps_per_epoch: int
    eval_every_epochs: int = 1
    target: AccuracyTarget | None = None

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
