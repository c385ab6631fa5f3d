"""The progress of a run: everything that a checkpoint needs beside the arrays."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxbench.records.schema import EpochRecord, record_from_json

# Fields that hold {metric: sums_R}.
_SUMS = ("total", "interval")


@dataclasses.dataclass
class EpochMetrics:
    """Sums over an epoch's steps in their order, so that a resumed epoch has the same sums.

    An interval is the steps since the last step record.
    """

    epoch: int  # 0 for the first
    total: dict[str, np.ndarray]  # {metric: sums_R}, over the epoch's steps and R models
    interval: dict[str, np.ndarray]
    steps: int = 0
    interval_steps: int = 0
    interval_time_s: float = 0.0
    images: int = 0  # as time_s, of the steps that were not profiled
    time_s: float = 0.0
    data_wait_s: float = 0.0  # the part of time_s spent waiting for data
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


@dataclasses.dataclass(kw_only=True)
class RunProgress:
    """The progress of a run since its first process."""

    step: int = 0  # the number of steps done
    # The epochs done; a checkpoint has their number only.
    epochs: list[EpochRecord] = dataclasses.field(default_factory=list)
    epoch_metrics: EpochMetrics | None = None  # None between two epochs
    learning_rate: float | None = None  # of the last step, the mean over the models
    # What the first process compiled, and the outcome for each of its programs.
    compile_s: float = 0.0
    compile_cache: list[str] = dataclasses.field(default_factory=list)
    first_step_s: float | None = None  # None where it was profiled
    # Seconds of the first process before its clock started, and up to the end of the first step.
    # They are in no checkpoint: the clock of a resumed run counts on.
    import_s: float | None = None
    startup_s: float | None = None
    # Figures that fail a sanity check.
    invalid: list[str] = dataclasses.field(default_factory=list)
    # {name: reason} of images that earlier processes could not decode.
    corrupt: dict[str, str] = dataclasses.field(default_factory=dict)
    # The numbers of the steps that the profiler has traced.
    traced: list[int] = dataclasses.field(default_factory=list)

    def end_first_step(self, step_time_s: float, wall_s: float) -> None:
        """Note the seconds of the first step, and those on the clock at its end."""
        self.first_step_s = step_time_s
        if self.import_s is not None:
            self.startup_s = self.import_s + wall_s

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        left_out = ("epochs", "import_s", "startup_s")
        # Copies: a thread writes them while the run continues.
        found = {
            name: copy.copy(value) for name, value in vars(self).items() if name not in left_out
        }
        metrics = self.epoch_metrics and self.epoch_metrics.to_json()
        return {**found, "epochs_done": len(self.epochs), "epoch_metrics": metrics}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], names: Sequence[str]) -> "RunProgress":
        """Read what `to_json` returned, and the `epochs` done; `names` are the task's metrics."""
        fields = [field.name for field in dataclasses.fields(cls)]
        metrics = found.get("epoch_metrics") or found.get("progress")  # its former name
        read = {
            "epochs": [record_from_json(epoch) for epoch in found["epochs"]],
            "epoch_metrics": metrics and EpochMetrics.from_json(metrics, names),
        }
        return cls(**{name: found[name] for name in fields if name in found} | read)
