"""The records of a run, one dataclass a kind: what metrics.jsonl, CSV files and curves hold.

Units are in the names. A field without a default is in every record of its kind, null where it is
unknown. A field with a default is left out where it has that default.
"""

import dataclasses
from typing import Any, ClassVar

SCHEMA_VERSION = 2
MODES = ("train", "throughput", "scaling", "input", "memory", "conv2d")


def _figure(tag: str | None = None, *, csv: bool = True, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field's place outside metrics.jsonl.

    Args:
      tag: its curve in TensorBoard and Weights & Biases; None for no curve.
      csv: whether the CSV file of its kind has a column for it.
      default: the value that is left out of the record.
    """
    return dataclasses.field(default=default, metadata={"tag": tag, "csv": csv})


def _optional(tag: str | None = None, *, csv: bool = True) -> Any:
    return _figure(tag, csv=csv, default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One line of metrics.jsonl."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dict, `kind` first."""
        own = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.default is dataclasses.MISSING or getattr(self, field.name) != field.default
        }
        return {"kind": self.kind, **own}

    @classmethod
    def csv_columns(cls) -> list[str]:
        """Return the columns of this kind's CSV file, in order."""
        return [field.name for field in dataclasses.fields(cls) if field.metadata.get("csv")]

    @classmethod
    def tags(cls) -> dict[str, str]:
        """Return {field: name of its curve}."""
        tags = {field.name: field.metadata.get("tag") for field in dataclasses.fields(cls)}
        return {name: tag for name, tag in tags.items() if tag}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate(Record):
    """A rate from windows of work, with its 95 % interval (see analysis/statistics.py)."""

    images_per_s: float | None = _figure()
    images_per_s_low: float | None = _figure()
    images_per_s_high: float | None = _figure()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Utilization(Record):
    """Arithmetic of a rate beside the devices' peak; None where no table has the devices."""

    flops_per_image: int | None = None
    flops_per_s_per_device: float | None = None
    mfu: float | None = None
    peak: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileRecord(Record):
    """A step that was lowered and compiled, and the compiler's estimates for one device.

    `compile_cache` is hit, miss or off; after a hit `compile_s` is the time to fetch the program.
    XLA counts a loop's body once. `cold_compile_s` and `warm_compile_s` are of --mode=throughput;
    the devices and the batch are of --mode=scaling.
    """

    kind = "compile"
    function: str
    lower_s: float
    compile_s: float
    compile_cache: str
    memory: dict[str, int] | None
    device_memory_bytes: int | None
    xla_flops_per_device: float | None
    xla_bytes_per_device: float | None
    collectives: dict[str, dict[str, int]] | None
    cold_compile_s: float | None = None
    warm_compile_s: float | None = None
    num_devices: int | None = None
    device_ids: list[int] | None = None
    batch_size: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord(Record):
    """Training steps since the last record of this kind: means over them and over the models.

    `step_time_s` and `images_per_s` are there under `step_log`. Profiled steps have no times.
    """

    kind = "step"
    step: int
    epoch: int
    loss: float = _figure("train/loss")
    top1: float | None = _optional("train/top1")
    top1_std: float | None = None
    top1_min: float | None = None
    top1_max: float | None = None
    dice: float | None = _optional("train/dice")
    dice_std: float | None = None
    dice_min: float | None = None
    dice_max: float | None = None
    models: list[dict[str, Any]] | None = None
    learning_rate: float = _figure("train/learning_rate")
    loss_scale: float | None = _optional("train/loss_scale")
    skipped_steps: int | None = _optional("train/skipped_steps")
    loss_scale_models: list[dict[str, Any]] | None = None
    elapsed_s: float
    profiled: bool = False
    step_time_s: float | None = None
    images_per_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The figures of an evaluation: means over the models, spread where there are several."""

    eval_loss: float | None = _optional("eval/loss")
    eval_top1: float | None = _optional("eval/top1")
    eval_top5: float | None = _optional("eval/top5")
    eval_top1_tta: float | None = _optional("eval/top1_tta")
    eval_dice: float | None = _optional("eval/dice")
    eval_iou: float | None = _optional("eval/iou")
    eval_pixel_accuracy: float | None = _optional("eval/pixel_accuracy")
    eval_dice_per_image: float | None = _optional("eval/dice_per_image")
    eval_top1_std: float | None = _optional()
    eval_top1_min: float | None = _optional()
    eval_top1_max: float | None = _optional()
    eval_dice_std: float | None = _optional()
    eval_dice_min: float | None = _optional()
    eval_dice_max: float | None = _optional()
    eval_models: list[dict[str, Any]] | None = None
    eval_count: int | None = _optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Evaluation):
    """One epoch: training, and the evaluation where one followed.

    `complete` is False where max_steps cut the epoch short or steps were profiled: profiled steps
    are in neither times nor images. `elapsed_s` counts from the run's start to the evaluation's
    end.
    """

    kind = "epoch"
    epoch: int = _figure()
    epochs: int
    step: int = _figure()
    complete: bool = _figure()
    epoch_time_s: float = _figure("time/epoch_s")
    train_time_s: float = _figure()
    data_wait_s: float = _figure("time/data_wait_s")
    eval_time_s: float = _figure()
    images: int = _figure()
    images_per_s: float | None = _figure("throughput/images_per_s")
    images_per_s_per_device: float | None = _figure("throughput/images_per_s_per_device")
    mfu: float | None = _figure()
    profiled_steps: int = _figure()
    train_loss: float = _figure("train/epoch_loss")
    train_top1: float | None = _optional("train/epoch_top1")
    train_top1_std: float | None = _optional()
    train_top1_min: float | None = _optional()
    train_top1_max: float | None = _optional()
    train_dice: float | None = _optional("train/epoch_dice")
    train_dice_std: float | None = _optional()
    train_dice_min: float | None = _optional()
    train_dice_max: float | None = _optional()
    train_models: list[dict[str, Any]] | None = None
    learning_rate: float | None = _figure()
    loss_scale: float | None = _optional()
    skipped_steps: int | None = _optional()
    loss_scale_models: list[dict[str, Any]] | None = None
    peak_memory_bytes: int | None = _figure("memory/peak_bytes")
    process_memory_bytes: int | None = _figure()
    elapsed_s: float = _figure()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows(Rate):
    """What the windows of a measurement say beside their rate."""

    images_per_s_mean: float | None = None
    images_per_s_standard_error: float | None = None
    jitter: float | None = None
    windows_s: list[float] | None = None
    step_s: float | None = None
    steps_per_window: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputRecord(Windows, Utilization):
    """One stage of --mode=throughput: train_step, train_step_xN or forward.

    Latencies are of steps closed one by one, in the stage train_step. `host_share` is the part of
    a latency that queueing ahead hides. `sync_residual_s` is how long work went on after its
    windows.
    """

    kind = "throughput"
    stage: str
    feed: str
    precision: str
    batch_size: int
    num_devices: int
    images_per_s_per_device: float
    steps_per_call: int
    warmup_steps: int
    warmup_settled: bool
    sync_residual_s: float
    images_per_step: int | None = None
    images_counted: int | None = None
    flops_per_byte: float | None = None
    flops_per_byte_at_ridge: float | None = None
    bound_by: str | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    latency_steps: int | None = None
    host_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputRecord(Rate):
    """One stage of --mode=input: prepare, prepare_and_send or train_step."""

    kind = "input"
    stage: str
    windows_images_per_s: list[float]
    batch_size: int
    num_devices: int
    cores: int
    images_per_s_per_core: float | None = None
    windows_storage_read_bytes: list[int | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial(Windows, Utilization):
    """A step measured on some devices with some batch; rates are null where nothing was."""

    precision: str
    num_devices: int = _figure()
    batch_size: int = _figure()
    batch_per_device: int = _figure()
    images_per_step: int
    images_counted: int | None
    steps: int = _figure()
    warmup_steps: int | None
    warmup_settled: bool | None
    status: str = _figure()
    reason: str | None = _figure()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingRecord(Trial):
    """A trial of --mode=scaling and its efficiency against one device.

    `replicas_equal_after_steps` is null on one device; `unequal` names the arrays that differ.
    """

    kind = "scaling"
    scaling: str = _figure()
    efficiency: float | None = _figure()
    efficiency_low: float | None = _figure()
    efficiency_high: float | None = _figure()
    gradient_bytes: int
    collectives: dict[str, dict[str, int]] | None
    replicas_equal_after_steps: bool | None = _figure()
    unequal: list[str] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceRecord(Trial):
    """One device alone, with its part of the batch."""

    kind = "device"
    device_id: int
    device_kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceRecord(Record):
    """The sum over devices of a buffer as large as the gradient."""

    kind = "all_reduce"
    num_devices: int
    bytes: int
    all_reduce_s: float
    all_reduce_s_low: float
    all_reduce_s_high: float
    bus_bytes_per_s: float
    bus_bytes_per_s_low: float
    bus_bytes_per_s_high: float
    share_of_weak_step: float | None
    calls_per_window: int
    windows_s: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dRecord(Record):
    """One convolution on a number of devices, its time in parts."""

    kind = "conv2d"
    kernel: int = _figure()
    channels: int = _figure()
    filters: int = _figure()
    images: int = _figure()
    height: int = _figure()
    width: int = _figure()
    devices: int = _figure()
    lower_s: float = _figure()
    compile_s: float = _figure()
    first_use_s: float = _figure()
    host_to_device_s: float = _figure()
    compute_s: float = _figure()
    call_s: float = _figure()
    device_to_host_s: float = _figure()
    steady_total_s: float = _figure()
    images_per_s: float = _figure()
    gflop_per_s: float = _figure()
    speedup: float | None = _figure()
    scipy_s: float | None = _figure()
    scipy_per_compute: float | None = _figure()
    scipy_per_steady_total: float | None = _figure()
    max_relative_error: float = _figure()
    memory: dict[str, int] | None
    samples: dict[str, list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """The last record of a run, however it ended.

    `status` is one of run_dir.STATUSES. `invalid` says which figures fail a sanity check. `usd` is
    what the whole run cost, where a price is known. `telemetry` is null where nothing was read.
    """

    kind = "summary"
    status: str
    phases_s: dict[str, float] | None = None
    wall_s: float | None = None
    peak_memory_bytes: int | None = None
    host_peak_memory_bytes: int | None = None
    compile_s: float | None = None
    telemetry: dict[str, Any] | None = None
    usd: float | None = None
    corrupt: dict[str, str] | None = None
    invalid: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSummary(Summary, Evaluation, Utilization):
    """A training run. Evaluation figures are those of the last evaluation.

    `first_epoch_s` and `median_epoch_s` (of the later evaluated epochs) leave compilation out;
    published first epochs usually include it, as `first_epoch_with_compile_s` does. `startup_s`
    is from the process's start to the end of the first step, `import_s` its part before the
    run's clock started. `compile_cache` is hit only where all programs were fetched.
    """

    steps: int
    epochs_done: int
    compile_cache: str | None
    first_step_s: float | None
    import_s: float | None
    startup_s: float | None
    first_epoch_s: float | None
    first_epoch_with_compile_s: float | None
    median_epoch_s: float | None
    train_time_s: float
    eval_time_s: float
    images_per_s: float | None
    images_per_s_per_device: float | None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    loss_scale_models: list[dict[str, Any]] | None = None
    best_eval_top1: float | None = None
    best_eval_dice: float | None = None
    best_epoch: int | None = None
    diverged_seeds: list[int] | None = None
    target: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputSummary(Summary):
    """--mode=throughput; the rate is that of the stage train_step."""

    images_per_s: float | None = None
    images_per_s_low: float | None = None
    images_per_s_high: float | None = None
    first_step_s: float | None
    first_loss: float | None
    last_loss: float | None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    profile: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingSummary(Summary):
    """--mode=scaling: efficiencies, what the devices exchange, predictions."""

    efficiencies: list[dict[str, Any]]
    exchange: dict[str, Any] | None
    devices: dict[str, Any] | None
    predictions: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSummary(Summary):
    """--mode=input: whether the host or the devices bound a run."""

    verdict: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySummary(Summary):
    """--mode=memory: the larger step's estimated memory on each device, and the host's."""

    planned_bytes_per_device: int | None
    private_memory_before_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dSummary(Summary):
    """--mode=conv2d: how many trials were measured and what they say."""

    cells: int
    findings: list[str]
