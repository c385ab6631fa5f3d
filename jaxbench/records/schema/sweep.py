"""What a sweep records: a line of results.jsonl for each trial, and its tables' columns."""

import dataclasses
import math
from typing import Any, Literal

from jaxbench.records.schema.base import column, stated_fields

TrialStatus = Literal["done", "oom", "timeout", "failed", "invalid", "lost"]


def _figure(*shown_in: str) -> Any:
    """Declare a metric that is None if a trial does not have it.

    Args:
      shown_in: `table` for a column on the console, `seeds` for statistics over seeds.
    """
    return dataclasses.field(default=None, metadata=dict.fromkeys(shown_in, True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """The figures of a trial, one column each in sweep.csv."""

    compile_s: float | None = _figure("table")
    compile_cache: str | None = None
    first_epoch_s: float | None = _figure("table")
    median_epoch_s: float | None = _figure("table")
    total_s: float | None = _figure("table")
    train_time_s: float | None = _figure("seeds")
    images_per_s: float | None = _figure("table", "seeds")
    images_per_s_low: float | None = _figure("table")
    images_per_s_high: float | None = None
    steady_epochs: int | None = None
    images_per_s_whole_run: float | None = _figure("table")
    images_per_s_per_device: float | None = None
    tokens_per_s: float | None = _figure("table", "seeds")
    weak_efficiency: float | None = _figure("table")
    strong_efficiency: float | None = _figure("table")
    prepare_images_per_s: float | None = None
    prepare_and_send_images_per_s: float | None = _figure("table")
    train_step_images_per_s: float | None = _figure("table")
    conv2d_compute_s: float | None = _figure("table")
    conv2d_scipy_s: float | None = _figure("table")
    latency_p50_s: float | None = _figure("table")
    latency_p95_s: float | None = None
    latency_p99_s: float | None = _figure("table")
    mfu: float | None = _figure("table")
    needed_bytes_per_device: int | None = _figure("table")
    ceiling_images_per_s: float | None = _figure("table")
    ceiling_bound_by: str | None = _figure("table")
    eval_top1: float | None = _figure("table", "seeds")
    eval_top1_tta: float | None = _figure("seeds")
    eval_dice: float | None = _figure("table", "seeds")
    eval_bits_per_byte: float | None = _figure("table", "seeds")
    best_eval_top1: float | None = None
    best_eval_dice: float | None = None
    epochs_done: int | None = None
    training_flops: int | None = _figure("seeds")
    target_value: float | None = None
    target_reached: bool | None = None
    target_s: float | None = _figure("table", "seeds")
    target_epoch: int | None = _figure("seeds")
    target_images: int | None = _figure("seeds")
    target_flops: int | None = _figure("seeds")
    target_energy_j: float | None = _figure("seeds")
    target_usd: float | None = _figure("seeds")
    usd: float | None = _figure("table")
    energy_j: float | None = None
    planned_bytes_per_device: int | None = None
    device_memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    private_memory_before_bytes: int | None = None
    host_peak_memory_bytes: int | None = None

    def value(self, name: str) -> Any:
        """Return a figure; a target that was never reached takes and costs without end."""
        value = getattr(self, name)
        takes = {"target_usd": self.usd, "target_flops": self.training_flops}
        takes |= dict.fromkeys(("target_s", "target_epoch", "target_images"), 0)
        endless = self.target_reached is False and takes.get(name) is not None
        return math.inf if endless and value is None else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How one trial of a sweep ended: a line of results.jsonl, a row of sweep.csv."""

    place: dict[str, str]
    status: TrialStatus = column()
    figures: TrialFigures
    reason: str | None = column()
    warnings: tuple[str, ...] = dataclasses.field(default=(), metadata={"csv": True})
    wall_s: float = column()
    num_devices: int | None = column()
    device_kind: str | None = column()
    run: str | None = column()
    log: str
    key: str
    experiment: str
    exit_code: int | None
    finished_at: str
    backend: str | None
    hostname: str | None
    versions: dict[str, str] | None
    commit: str | None

    def row(self) -> dict[str, Any]:
        """Return the row of sweep.csv; a field of the grid takes the place of a column."""
        row: dict[str, Any] = dict(self.place)
        for field in dataclasses.fields(self):
            if field.name == "figures":
                names = self.figures.__dataclass_fields__
                row |= {name: getattr(self.figures, name) for name in names}
            elif field.metadata.get("csv"):
                row[field.name] = getattr(self, field.name)
        return row | {"warnings": "; ".join(self.warnings)} | self.place

    def to_json(self) -> dict[str, Any]:
        """Return the line of results.jsonl."""
        return vars(self) | {"figures": stated_fields(self.figures)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaxBatchResult:
    """The largest batch of a trial's experiment that fits in memory: a row of max_batch.csv."""

    place: dict[str, str]
    status: str
    max_batch: int | None = None
    max_batch_per_device: int | None = None
    smallest_too_large: int | None = None
    num_devices: int | None = None
    device_kind: str | None = None
    planned_bytes_per_device: int | None = None
    device_memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    host_peak_memory_bytes: int | None = None
    memory_limit_mb: float | None
    trials: int
    reason: str

    def row(self) -> dict[str, Any]:
        """Return the row of max_batch.csv; a field of the grid takes the place of a column."""
        columns = {name: value for name, value in vars(self).items() if name != "place"}
        return self.place | columns | self.place
