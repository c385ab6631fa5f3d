"""The metrics and times of the epoch under way."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Fields that hold {metric: sums_R}.
_SUMS = ("total", "interval")


@dataclasses.dataclass
class EpochMetrics:
    """Sums over an epoch's steps in their order, so that a resumed epoch has the same sums.

    Attributes:
      epoch: its number, 0 for the first.
      total: {metric: sums_R}, over the epoch's steps and R models.
      interval: the same, over the steps since the last step record.
      steps: of the epoch so far.
      interval_steps: since the last step record.
      interval_time_s: seconds since the last step record.
      images, time_s: of the steps that were not profiled.
      data_wait_s: the part of `time_s` spent waiting for data.
      profiled_steps: steps trained under the profiler.
    """

    epoch: int
    total: dict[str, np.ndarray]
    interval: dict[str, np.ndarray]
    steps: int = 0
    interval_steps: int = 0
    interval_time_s: float = 0.0
    images: int = 0
    time_s: float = 0.0
    data_wait_s: float = 0.0
    profiled_steps: int = 0

    @classmethod
    def zeros(cls, epoch: int, names: Sequence[str], num_models: int) -> "EpochMetrics":
        total, interval = ({name: np.zeros(num_models) for name in names} for _ in _SUMS)
        return cls(epoch, total, interval)

    def add(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Add one more step."""
        for sums in (self.total, self.interval):
            for name in sums:
                sums[name] += metrics[name]
        self.steps += 1
        self.interval_steps += 1

    def begin_interval(self) -> None:
        """Begin a new interval after a step record."""
        self.interval = {name: np.zeros_like(sums_R) for name, sums_R in self.interval.items()}
        self.interval_steps, self.interval_time_s = 0, 0.0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; `from_json` makes the same floats of them."""
        sums = {
            field: {name: sums_R.tolist() for name, sums_R in getattr(self, field).items()}
            for field in _SUMS
        }
        return {**vars(self), **sums}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], names: Sequence[str]) -> "EpochMetrics":
        """Read what `to_json` returned; `names` are the task's metrics."""
        found = dict(found)
        for field in _SUMS:
            if f"{field}_RxM" in found:  # written when metrics had places in place of names
                columns = np.array(found.pop(f"{field}_RxM")).T
                found[field] = dict(zip(names, columns, strict=True))
            found[field] = {name: np.array(sums_R) for name, sums_R in found[field].items()}
        return cls(**found)
