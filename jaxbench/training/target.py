"""The accuracy that ends a run."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxbench.records.schema import EpochRecord


@dataclasses.dataclass(frozen=True)
class AccuracyTarget:
    """A figure of an evaluation and the value at which the run ends.

    Attributes:
      figure: `top1` or `dice`.
      value: a share, 0.94 for 94 %.
    """

    figure: str
    value: float

    def is_reached(self, epoch: EpochRecord) -> bool:
        return comparable(getattr(epoch, f"eval_{self.figure}")) >= self.value

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
