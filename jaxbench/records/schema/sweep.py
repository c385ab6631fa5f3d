"""What a sweep records: a line of results.jsonl for each trial, and its tables' columns."""

import dataclasses
import math
from typing import Any

from jaxbench.records.schema.base import column, stated_fields


def _column(title: str | None = None, form: str | None = None, *, over_seeds: str = "") -> Any:
    """Declare a figure that is absent where a trial does not have it.

    Args:
      title: its column in the table on the console; None for no column.
      form: how the table shows it, see sweeps/tables.py.
      over_seeds: what people call it where several seeds are summed up; "" where it is not.
    """
    metadata = {"title": title, "form": form, "over_seeds": over_seeds}
    return dataclasses.field(default=None, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """The figures of a trial, one column each in sweep.csv."""

    compile_s: float | None = _column("compile", "s")
    compile_cache: str | None = None
    first_epoch_s: float | None = _column("first epoch", "s")
    median_epoch_s: float | None = _column("median epoch", "s")
    total_s: float | None = _column("total", "s")
    train_time_s: float | None = _column(over_seeds="seconds of training")
    images_per_s: float | None = _column("images/s", "rate", over_seeds="images/s")
    images_per_s_low: float | None = _column("95 % interval", "rate")
    images_per_s_high: float | None = None
    steady_epochs: int | None = None
    images_per_s_whole_run: float | None = _column("whole run images/s", "rate")
    images_per_s_per_device: float | None = None
    tokens_per_s: float | None = _column("tokens/s", "rate", over_seeds="tokens/s")
    weak_efficiency: float | None = _column("weak", "share")
    strong_efficiency: float | None = _column("strong", "share")
    prepare_images_per_s: float | None = None
    prepare_and_send_images_per_s: float | None = _column("host images/s", "rate")
    train_step_images_per_s: float | None = _column("device images/s", "rate")
    conv2d_compute_s: float | None = _column("compute", "ms")
    conv2d_scipy_s: float | None = _column("SciPy", "ms")
    latency_p50_s: float | None = _column("p50", "ms")
    latency_p95_s: float | None = None
    latency_p99_s: float | None = _column("p99", "ms")
    mfu: float | None = _column("MFU", "share")
    needed_bytes_per_device: int | None = _column("GiB needed", "gib")
    ceiling_images_per_s: float | None = _column("ceiling images/s", "rate")
    ceiling_bound_by: str | None = _column("bound by", "text")
    eval_top1: float | None = _column("top-1", "score", over_seeds="top-1")
    eval_top1_tta: float | None = _column(over_seeds="top-1 with test-time augmentation")
    eval_dice: float | None = _column("Dice", "score", over_seeds="Dice")
    eval_bits_per_byte: float | None = _column("bits/byte", "bits", over_seeds="bits per byte")
    best_eval_top1: float | None = None
    best_eval_dice: float | None = None
    epochs_done: int | None = None
    training_flops: int | None = _column(over_seeds="training FLOPs")
    target_value: float | None = None
    target_reached: bool | None = None
    target_s: float | None = _column("to target", "s", over_seeds="seconds to the target")
    target_epoch: int | None = _column(over_seeds="epochs to the target")
    target_images: int | None = _column(over_seeds="images to the target")
    target_flops: int | None = _column(over_seeds="training FLOPs to the target")
    target_energy_j: float | None = _column(over_seeds="joules to the target")
    target_usd: float | None = _column(over_seeds="USD to the target")
    usd: float | None = _column("USD", "usd")
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
    status: str = column()
    figures: TrialFigures = column()
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
            value = getattr(self, field.name)
            value = "; ".join(value) if field.name == "warnings" else value
            if field.metadata.get("csv"):
                row |= vars(value) if field.name == "figures" else {field.name: value}
        return row | self.place

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
