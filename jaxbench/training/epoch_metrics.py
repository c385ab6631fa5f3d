"""How far an epoch's training has come: what its record will be made of."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class EpochProgress:
    """Sums over an epoch's steps so far, in their order: a resumed epoch adds on to the same ones.

    Letters: R models, M metrics.

    Attributes:
      epoch: its number, 0 is the first.
      total_RxM: metrics summed over its steps.
      interval_RxM: over those since the last step record.
      steps, interval_steps: how many these are.
      interval_time_s: what the latter took.
      images, time_s: of the steps that were not profiled.
      data_wait_s: what of that time was spent waiting for data.
      profiled_steps: how many were profiled.
    """

    epoch: int
    total_RxM: np.ndarray
    interval_RxM: np.ndarray
    steps: int = 0
    interval_steps: int = 0
    interval_time_s: float = 0.0
    images: int = 0
    time_s: float = 0.0
    data_wait_s: float = 0.0
    profiled_steps: int = 0

    def add(self, metrics_RxM: np.ndarray) -> None:
        """Adds one more step."""
        self.total_RxM += metrics_RxM
        self.interval_RxM += metrics_RxM
        self.steps += 1
        self.interval_steps += 1

    def begin_interval(self) -> None:
        """A step record has just been written."""
        self.interval_RxM = np.zeros_like(self.interval_RxM)
        self.interval_steps, self.interval_time_s = 0, 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it; floats come back as they were."""
        return {
            field.name: value.tolist() if isinstance(value, np.ndarray) else value
            for field in dataclasses.fields(self)
            for value in [getattr(self, field.name)]
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "EpochProgress":
        arrays = {name: np.array(found[name]) for name in ("total_RxM", "interval_RxM")}
        return cls(**{**found, **arrays})
