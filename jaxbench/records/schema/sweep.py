"""What a sweep records: a line of results.jsonl for each trial, and its tables' columns."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxbench.records.schema.base import figure, stated_fields


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
    """The figures of a trial, one column each in sweep.csv.

    Attributes:
      compile_s: seconds of lowering and compiling.
      compile_cache: compilation cache: hit only if all programs were fetched from it; miss or off.
      first_epoch_s, median_epoch_s: seconds of the first epoch, and median of the later ones.
      total_s: seconds of compilation and of all epochs.
      train_time_s: seconds of training.
      images_per_s: images per second: the steady state.
      images_per_s_low, images_per_s_high: ends of its 95 % interval.
      steady_epochs: epochs that the interval is taken over.
      images_per_s_whole_run: mean images per second, first epoch included.
      images_per_s_per_device: images per second of each device.
      tokens_per_s: tokens per second, where images are sequences.
      weak_efficiency, strong_efficiency: scaling efficiency on the most devices.
      prepare_images_per_s: images per second that the host prepares.
      prepare_and_send_images_per_s: images per second that the host prepares and sends.
      train_step_images_per_s: images per second that the devices train.
      conv2d_compute_s, conv2d_scipy_s: seconds of the convolution on the devices, and with SciPy.
      latency_p50_s, latency_p95_s, latency_p99_s: percentiles of a step's latency, in seconds.
      mfu: model FLOPs utilization.
      needed_bytes_per_device: memory on each device of a target, as its compiler says.
      ceiling_images_per_s: most images per second of a target, predicted.
      ceiling_bound_by: what bounds it: compute, memory or links.
      eval_top1, eval_top1_tta, eval_dice, eval_bits_per_byte: last evaluation.
      best_eval_top1, best_eval_dice: best evaluation.
      epochs_done: epochs done.
      target_value: target accuracy.
      target_reached: whether it was reached; null where the run was broken off before.
      target_s, target_epoch, target_images: seconds, epochs and images that it took.
      training_flops, target_flops: floating-point operations of the network (forward and backward)
        in all training, and up to the target.
      target_energy_j, target_usd: energy in joules, and cost in USD, that it took.
      usd: cost of the whole run in USD.
      energy_j: energy in joules of the devices that telemetry covers.
      planned_bytes_per_device: estimated memory (XLA) of the larger step.
      device_memory_bytes: memory of a device that JAX may use.
      peak_memory_bytes: most memory in use on a device.
      private_memory_before_bytes: private memory of the process on the host before the steps ran.
      host_peak_memory_bytes: most memory that the process used on the host.
    """

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
    """How one trial of a sweep ended: a line of results.jsonl, a row of sweep.csv.

    Attributes:
      place: {field: value} by the grid's fields, as text.
      status: one of reader.TRIAL_STATUSES.
      figures: the figures; in sweep.csv each has a column.
      reason: why it is not done.
      warnings: what is doubtful about the figures.
      wall_s: seconds of the whole trial.
      num_devices: devices that took part.
      device_kind: the devices, as JAX names them.
      run: the run directory, as a path in the sweep's folder; null where none was made.
      log: the trial's output, as a path in the sweep's folder.
      key: identity of the trial, see sweeps/grid.py.
      experiment: what follows `--experiment=`.
      exit_code: exit code of the trial's process; null where there was none.
      finished_at: date and time (UTC, ISO 8601).
      backend: platform of the devices: cpu, gpu or tpu.
      hostname: name of the host.
      versions: versions of Python, JAX and others.
      commit: commit of jaxbench.
    """

    place: dict[str, str]
    status: str = figure()
    figures: TrialFigures = figure()
    reason: str | None = figure()
    warnings: tuple[str, ...] = dataclasses.field(default=(), metadata={"csv": True})
    wall_s: float = figure()
    num_devices: int | None = figure()
    device_kind: str | None = figure()
    run: str | None = figure()
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

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "TrialResult":
        """Return the result that `to_json` wrote. Raises TypeError for any other field."""
        return cls(**{**line, "figures": TrialFigures(**line["figures"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaxBatchResult:
    """The largest batch of a trial's experiment that fits in memory: a row of max_batch.csv.

    Attributes:
      place: {field: value} by the grid's fields, as text.
      status: done, oom (not even the smallest batch fits) or failed.
      max_batch: largest global batch that fits, in images.
      max_batch_per_device: the same for each device.
      smallest_too_large: smallest batch tried that does not fit.
      num_devices: devices that took part.
      device_kind: the devices, as JAX names them.
      planned_bytes_per_device: estimated memory (XLA) at the largest batch.
      device_memory_bytes: memory of a device that JAX may use.
      peak_memory_bytes: most memory in use on a device at the largest batch.
      host_peak_memory_bytes: most memory that the process used on the host.
      memory_limit_mb: value of --memory_limit_mb.
      trials: number of batches tried.
      reason: why the search ended.
    """

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
