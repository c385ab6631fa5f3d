"""The records: a class for each kind, for run.json and for what a sweep records.

The fields say what they mean and how they are shown: the console, tables, the report, TensorBoard
and the reference take titles, units and curves from here. A name means the same in every class. It
is described where it first stands; `Here` is what it means in one class alone. Files are decoded
into these classes once, when they are read. A value of another type, or an impossible one, is an
error there, so no reader checks it.
"""

import functools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Required, TypedDict, get_args

import msgspec
from msgspec import Meta, Struct

from jaxbench.clock import Moment
from jaxbench.metrics import Here, Metric

SCHEMA_VERSION = 2
# A mean of float32 numbers may be a little more than the greatest of them.
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Above0 = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1.0001)]
if TYPE_CHECKING:  # the words are checked where files are read; a record keeps a date's text
    Date = str
    Status = str
    Scaling = str
    TrialStatus = str
else:
    Date = Annotated[Moment, Meta(tz=True)]
    Status = Literal[
        "running", "done", "failed", "oom", "interrupted", "preempted", "diverged", "invalid"
    ]
    Scaling = Literal["weak", "strong"]
    TrialStatus = Literal["done", "oom", "timeout", "failed", "invalid", "lost"]
# How a trial of a sweep may end.
TRIAL_STATUSES = get_args(TrialStatus)
# More than a float32 holds, such as a loss that diverges.
_TOO_LARGE = 1e40


class DataSettings(TypedDict, total=False):
    """The fields of `Settings.data` that a reader takes."""

    source: str
    feed: str
    sequence_length: Count


class Settings(TypedDict, total=False):
    """The fields of an experiment that a reader takes."""

    batch_size: Positive
    seed: int
    max_steps: Count
    precision: str
    replicas: str
    remat: str
    gradient_accumulation_steps: Positive
    data: DataSettings


class LoadedData(TypedDict, total=False):
    """The data set as loaded."""

    feed: str
    description: str
    train_examples: Count
    eval_examples: Count
    train_checksum: int
    eval_checksum: int


class Git(TypedDict, total=False):
    """The commit of jaxbench, and whether files differ from it."""

    commit: str
    dirty: bool


class BoardSettings(TypedDict, total=False):
    """What a GPU's board is and is set to, by NVML."""

    device: str
    mig: bool
    power_limit_w: Amount
    default_power_limit_w: Amount
    max_sm_clock_mhz: Amount
    max_memory_clock_mhz: Amount
    ecc: bool


class Environment(TypedDict, total=False):
    """What a run ran on, see hardware/environment.py."""

    versions: dict[str, str]
    python: str
    platform: str
    hostname: str
    backend: str
    devices: list[dict[str, Any]]
    device_kind: str
    num_devices: Positive
    num_processes: Positive
    num_local_devices: Count
    driver: str | None
    boards: list[BoardSettings]
    variables: dict[str, str]
    distorters: list[str]
    matmul_precision: str | None
    compile_cache: str | None
    git: Git | None
    cpu: str | None
    cpu_cores: Count | None
    cpu_quota: Above0 | None
    host_memory_bytes: Count | None


class RecordedPrice(TypedDict, total=False):
    """The price of the hardware, see `Price` in analysis/pricing.py."""

    offer: str
    hardware: str
    devices: Positive | None
    usd_per_hour: Required[Above0]
    date: str
    source: str


class Attempt(TypedDict, total=False):
    """A process of a training run: its time, see records/goodput.py, and on what it ran.

    What it ran on is from `describe_attempt` in records/attempts.py; of the first one it is in
    run.json itself. The others say what they resumed: from which step on, and the time of the work
    that they repeated.
    """

    versions: dict[str, str | None]
    XLA_FLAGS: str | None
    distorters: list[str] | None
    device_kind: str | None
    num_devices: Positive | None
    batch_norm_examples: Count | None
    price: RecordedPrice | None
    started_at: Required[Date]
    import_s: Required[float]
    resumed_phases_s: Required[dict[str, Amount]]
    phases_s: Required[dict[str, Amount]]
    doing: Required[str]
    step: Count
    lost_s: Amount
    branched: bool


class Readings(TypedDict, total=False):
    """The readings of a device or of the host."""

    samples: Amount
    load_percent_mean: Amount | None
    cpu_percent_mean: Amount | None
    other_cpu_percent_mean: Amount | None
    sm_clock_mhz_median: Amount | None
    memory_used_bytes_max: Amount | None
    temperature_c_max: float | None
    power_w_mean: Amount | None
    power_w_max: Amount | None
    throttle_reasons: dict[str, float] | None


class Telemetry(TypedDict, total=False):
    """Readings by device, and the energy of what was measured."""

    devices: dict[str, Readings]
    host_busy: bool | None
    energy_j: Amount | None
    energy_covers: str | None
    joules_per_image: Amount | None


class Peak(TypedDict, total=False):
    """A row of hardware/peaks.csv."""

    kind: Required[str]
    arithmetic: str
    source: Required[str]
    flops_per_s: Amount | None
    bytes_per_s: Amount | None


class Predicted(TypedDict, total=False):
    """The rate to expect of a step, see modes/predictions.py.

    The ends are those of 80 % intervals; `images_per_s_90` has its 90 % interval.
    """

    images_per_s: Required[Above0]
    images_per_s_low: Required[Above0]
    images_per_s_high: Required[Above0]
    images_per_s_90: Above0
    images_per_s_90_low: Above0
    images_per_s_90_high: Above0
    epoch_s: Amount
    epoch_s_low: Amount
    epoch_s_high: Amount
    training_s: Amount
    training_s_low: Amount
    training_s_high: Amount
    usd_per_million_images: Above0
    usd_per_million_images_low: Amount
    usd_per_million_images_high: Amount
    training_usd: Amount
    training_usd_low: Amount
    training_usd_high: Amount
    step_s: Amount
    bound_by: str
    parts_s: dict[str, Amount]
    origin: str
    basis: dict[str, Any]
    tokens_per_s: Amount
    efficiency: Amount
    usd_per_hour: Above0


class Efficiency(TypedDict):
    """The efficiency of a measured step."""

    scaling: Scaling
    num_devices: Positive
    efficiency: Amount | None


class Prediction(TypedDict):
    """An estimate of weak scaling, see analysis/scaling_model.py."""

    scaling: Scaling
    num_devices: Positive
    batch_per_device: Positive
    link_bytes_per_s: Amount
    link_source: str
    assumptions: str
    images_per_s_no_overlap: Amount
    images_per_s_full_overlap: Amount
    efficiency_no_overlap: Amount
    efficiency_full_overlap: Amount


class ModelMetrics(TypedDict, total=False):
    """The metrics of one of several models."""

    seed: Required[int]
    loss: float | None
    top1: Fraction | None
    dice: Fraction | None


class TargetAccuracy(TypedDict, total=False):
    """What reaching the target accuracy took; null if it never was reached."""

    score: str
    value: Fraction
    reached: bool
    epoch: Count | None
    steps: Count | None
    images: Count | None
    time_s: Amount | None
    epochs_time_s: Amount | None
    train_time_s: Amount | None
    energy_j: Amount | None
    energy_covers: str | None
    usd: Amount | None


@functools.cache
def required_fields(cls: type[Struct]) -> frozenset[str]:
    """Return the names of the fields that every record of a class has."""
    return frozenset(field.name for field in msgspec.structs.fields(cls) if field.required)


def stated_fields(record: Struct) -> dict[str, Any]:
    """Return the fields of a record, without optional ones that are unknown."""
    required = required_fields(type(record))
    fields = msgspec.structs.asdict(record)
    return {name: v for name, v in fields.items() if v is not None or name in required}


class Record(Struct, frozen=True, kw_only=True):
    """One line of metrics.jsonl. Units are in the names of the fields."""

    kind: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dict, `kind` first."""
        return {"kind": self.kind, **stated_fields(self)}

    def points(self) -> dict[str, float]:
        """Return {curve: value} for TensorBoard and Weights & Biases; unknown values are absent."""
        values: dict[str, float | None] = {}
        for name, curve in _curves(type(self)).items():
            value = getattr(self, name)
            if curve.endswith(("/", "_")):  # of the metrics of a custom task
                values |= {f"{curve}{metric}": one for metric, one in (value or {}).items()}
            else:
                values[curve] = value
        return {curve: v for curve, v in values.items() if v is not None and math.isfinite(v)}

    def custom_columns(self) -> dict[str, float]:
        """Return {CSV column: value} of the metrics of a custom task."""
        return {
            f"{field.removesuffix('metrics')}{name}": value
            for field in self.__struct_fields__
            if field.endswith("metrics")
            for name, value in (getattr(self, field) or {}).items()
        }


# fmt: off
# From here on a field is a line, however long. First the metrics that no record has; the others
# are added below.
METRICS = {
    "flops_per_s": Metric("peak arithmetic of a device, of hardware/peaks.csv", "peak", "GFLOP/s", better="higher"),
    "images_per_s_no_overlap": Metric("predicted images/s if nothing of the all-reduce overlaps with the step", "images/s, nothing hidden", better="higher"),
    "images_per_s_full_overlap": Metric("predicted images/s if all of it overlaps", "images/s, all hidden", better="higher"),
    "efficiency_no_overlap": Metric("predicted scaling efficiency if nothing of the all-reduce overlaps with the step", "efficiency, nothing hidden", "%", better="higher"),
    "efficiency_full_overlap": Metric("the same if all of it overlaps", "efficiency, all hidden", "%", better="higher"),
    "link_bytes_per_s": Metric("bandwidth of a link between two devices", "link", "GB/s", better="higher"),
    "images_per_s_per_usd_per_hour": Metric("images per second for each USD an hour", "images/s per USD/h", better="higher"),
    "usd_per_million_images": Metric("price of training on a million images", "USD per million images", better="lower"),
    "usd_per_billion_tokens": Metric("price of training on a billion tokens", "USD per billion tokens", better="lower"),
    "usd_per_hour": Metric("price of all hardware of a run", "price", "USD/h", better="lower"),
    "paid_s": Metric("seconds of all processes of a run", "paid, with the work that was lost", "s", better="lower"),
    "wall_usd": Metric("price of all processes of a run", "paid", "USD", better="lower"),
    "electricity_usd": Metric("price of the energy", "electricity", "USD", better="lower"),
    "score": Metric("top-1 or Dice of the last evaluation", "score", "%", better="higher"),
    "last_score": Metric("the same of one model", "last", "%", better="higher"),
    "best_score": Metric("best evaluation of a run or of one model", "best", "%", better="higher"),
    "measured_peak_share": Metric("arithmetic per device over the peak that a card measured", "of the measured peak", "%", better="higher"),
    "memory_used_bytes_max": Metric("most memory in use by telemetry", "memory, most", "MiB", better="lower"),
    "power_w_mean": Metric("mean power while training or measuring", "power, mean", "W", better="lower"),
    "power_w_max": Metric("most power of any reading", "most", "W", better="lower"),
    "joules_per_image": Metric("energy in joules for each image", "energy", "J/image", better="lower"),
    "time_s": Metric("seconds from the start to the target accuracy", "time", "s", better="lower"),
    "runs": Metric("number of runs", "runs", "count"),
    "n": Metric("how many values a statistic is of", "n", "count"),
    "seed": Metric("seed of a run", "seed", "count"),
    "failed_seeds": Metric("seeds whose run did not end well", "seeds that failed", "count", better="lower"),
    "reached": Metric("seeds that reached the target accuracy", "reached", "count", better="higher"),
    "duration_s": Metric("the same as a clock shows it", "time", "h:mm:ss", better="lower"),
    "epochs_s": Metric("seconds of epochs with their evaluations, without start-up and compilation", "epochs alone", "s", better="lower"),
    "initialise_s": Metric("seconds of finding devices, building and initialising", "initialise", "s", better="lower"),
    "read_data_s": Metric("seconds of reading the data set and placing it", "read data", "s", better="lower"),
    "measure_s": Metric("seconds of warm-up and measuring", "measure", "s", better="lower"),
    "checkpoint_s": Metric("seconds of saving and restoring checkpoints", "checkpoint", "s", better="lower"),
    "lost_work_s": Metric("seconds of steps that were done again after a resume", "lost work", "s", better="lower"),
    "down_s": Metric("seconds between two processes of a run", "down", "s", better="lower"),
    "other_s": Metric("seconds of nothing else", "other", "s", better="lower"),
    "sum_s": Metric("sum of all parts", "sum", "s", better="lower"),
    "energy_kwh": Metric("energy in kilowatt-hours", "energy", "kWh", better="lower"),
    "load": Metric("mean load of a device, or of a host's processor", "load", "%"),
    "sm_clock_mhz_median": Metric("median clock of a GPU's multiprocessors", "SM clock, median", "MHz", better="higher"),
    "temperature_c_max": Metric("highest temperature of any reading", "temperature, most", "°C", better="lower"),
    "minutes_taken": Metric("minutes that a card took", "minutes", better="lower"),
    "value": Metric("a metric of a card, in the unit of its name", "value", "any"),
    "nominal": Metric("what the maker publishes of it", "published peak", "any"),
    "share_of_nominal": Metric("value over the published peak", "of it", "%", better="higher"),
    "exchanged_bytes": Metric("bytes of all collectives of a step", "exchanged", "MB", better="lower"),
}


class Summary(Record, frozen=True, kw_only=True):
    """The last record of a run, however it ended."""

    status: Annotated[Status, Metric("how it ended: done, failed, oom, interrupted, preempted, diverged or invalid; a run that has not ended is running")]
    phases_s: Annotated[dict[str, float] | None, Metric("seconds of each phase of the run; they add up to `wall_s`")] = None
    telemetry: Annotated[Telemetry | None, Metric("readings of devices and host over what was measured; absent if nothing was read")] = None
    invalid: Annotated[list[str], Metric("reasons why metrics fail a sanity check")] = msgspec.field(default_factory=list)
    compile_s: Annotated[Amount | None, Here("seconds of lowering and compiling, over all programs; what is compiled at the same time counts once")] = None
    peak_memory_bytes: Annotated[Count | None, Metric("most memory in use on a device while the run compiled, when XLA tries kernels on a GPU, and ran; absent if the device does not report it, or if its process had used as much before", "memory, most", "MiB", better="lower")] = None
    host_peak_memory_bytes: Annotated[Count | None, Metric("most memory that the process used on the host", "host memory, most", "MiB", better="lower")] = None
    warnings: Annotated[list[str], Metric("reasons to read the metrics with care")] = msgspec.field(default_factory=list)
    wall_s: Annotated[Amount | None, Metric("seconds from the start of the run's clock to its end", "wall", "s", better="lower")] = None
    usd: Annotated[Amount | None, Metric("cost of the time of all processes in USD, if a price is known; imports are left out", "whole run", "USD", better="lower", shown="trial")] = None

    def points(self) -> dict[str, float]:
        """Return nothing: curves are over the training step."""
        return {}


class CompileRecord(Record, frozen=True, kw_only=True):
    """A step that was lowered and compiled, and the compiler's estimates for one device. XLA counts a loop's body once."""

    function: Annotated[str, Metric("name of the step")]
    num_devices: Annotated[Positive | None, Metric("devices that take part", "devices", "count")] = None
    device_ids: Annotated[list[int] | None, Metric("the devices, of --mode=scaling")] = None
    batch_size: Annotated[Positive | None, Metric("global batch, in images", "global batch", "count", shown="device")] = None
    device_memory_bytes: Annotated[Count | None, Metric("memory of a device that a program may use", "usable", "GiB")] = None
    xla_flops_per_device: Annotated[float | None, Metric("floating-point operations of a step, by XLA's count")] = None
    xla_bytes_per_device: Annotated[float | None, Metric("bytes of memory traffic of a step, by XLA's count")] = None
    lower_s: Annotated[Amount, Metric("seconds of tracing and lowering")]
    compile_s: Annotated[Amount, Here("seconds of compiling; after a cache hit, of fetching the program. A training run compiles both steps and the initialisation at the same time (not on a GPU)")]
    compile_cache: Annotated[str, Here("compilation cache: hit, miss or off")]
    memory: Annotated[dict[str, int] | None, Metric("estimated memory (XLA) on one device in bytes, by purpose")] = None
    collectives: Annotated[dict[str, dict[str, int]] | None, Metric("collectives of the compiled step by kind: `count`, `bytes` and `largest_bytes` on each device")] = None
    cold_compile_s: Annotated[Amount | None, Metric("seconds without a program in the cache, of --mode=throughput")] = None
    warm_compile_s: Annotated[Amount | None, Metric("seconds with a program in the cache, of --mode=throughput")] = None


class StepRecord(Record, frozen=True, kw_only=True):
    """Training steps since the last record of this kind: means over them and over the models. If several models train, with the standard deviation, minimum and maximum over them."""

    epoch: Annotated[Positive, Metric("epoch, from 1", "epoch", "count", shown="epoch")]
    loss: Annotated[float | None, Metric("mean loss", "loss", better="lower", curve="train/loss")] = None
    top1: Annotated[Fraction | None, Metric("top-1 accuracy on the training batches; of sequences, of the next token", "top-1", "%", better="higher", curve="train/top1")] = None
    top1_std: Annotated[Fraction | None, Metric("standard deviation over the models", curve="train/top1_std")] = None
    top1_min: Annotated[Fraction | None, Metric("least of the models", curve="train/top1_min")] = None
    top1_max: Annotated[Fraction | None, Metric("greatest of the models", curve="train/top1_max")] = None
    dice: Annotated[Fraction | None, Metric("Dice on the training batches", "Dice", "%", better="higher", curve="train/dice")] = None
    dice_std: Annotated[Fraction | None, Metric("standard deviation over the models", curve="train/dice_std")] = None
    dice_min: Annotated[Fraction | None, Metric("least of the models", curve="train/dice_min")] = None
    dice_max: Annotated[Fraction | None, Metric("greatest of the models", curve="train/dice_max")] = None
    bits_per_byte: Annotated[float | None, Metric("mean loss in bits, of sequences of bytes", "bits/byte", better="lower", curve="train/bits_per_byte")] = None
    metrics: Annotated[dict[str, float | None] | None, Metric("{name: value} of the metrics of a custom task", curve="train/")] = None
    step: Annotated[Count, Metric("training steps done, from 1", "step", "count")]
    models: Annotated[list[ModelMetrics] | None, Metric("seed and metrics of each model")] = None
    images_per_s: Annotated[Amount | None, Here("images per second; with `step_log`")] = None
    learning_rate: Annotated[float | None, Here("learning rate of the last of these steps", "train/learning_rate")] = None
    loss_scale: Annotated[Amount | None, Here("loss scale, under precision=fp16", "train/loss_scale")] = None
    skipped_steps: Annotated[Count | None, Here("steps skipped since the start for overflowing gradients, under precision=fp16", "train/skipped_steps")] = None
    loss_scale_models: Annotated[list[dict[str, Any]] | None, Metric("seed, loss scale and skipped steps of each model")] = None
    elapsed_s: Annotated[Amount, Here("seconds since the run's start")]
    profiled: Annotated[bool | None, Metric("whether these steps were profiled; they have no times")] = None
    step_time_s: Annotated[Amount | None, Metric("seconds of a step; with `step_log`", "step", "ms", better="lower")] = None


class EpochRecord(Record, frozen=True, kw_only=True):
    """One epoch: training, and the evaluation if one followed."""

    epoch: Positive
    epochs: Annotated[Count, Metric("epochs of the whole run", "epochs", "count")]
    step: Count
    complete: Annotated[bool, Metric("false if max_steps cut the epoch short or steps were profiled")]
    train_loss: Annotated[float | None, Metric("mean training loss", "train loss", better="lower", curve="train/epoch_loss", shown="epoch")] = None
    train_top1: Annotated[Fraction | None, Metric("mean top-1 accuracy on the training batches", "train top-1", "%", better="higher", curve="train/epoch_top1", shown="epoch")] = None
    train_top1_std: Annotated[Fraction | None, Metric("standard deviation over the models", "train std", "%", curve="train/epoch_top1_std", shown="epoch")] = None
    train_top1_min: Annotated[Fraction | None, Metric("least of the models", curve="train/epoch_top1_min")] = None
    train_top1_max: Annotated[Fraction | None, Metric("greatest of the models", curve="train/epoch_top1_max")] = None
    train_dice: Annotated[Fraction | None, Metric("mean Dice on the training batches", "train Dice", "%", better="higher", curve="train/epoch_dice", shown="epoch")] = None
    train_dice_std: Annotated[Fraction | None, Metric("standard deviation over the models", "train std", "%", curve="train/epoch_dice_std", shown="epoch")] = None
    train_dice_min: Annotated[Fraction | None, Metric("least of the models", curve="train/epoch_dice_min")] = None
    train_dice_max: Annotated[Fraction | None, Metric("greatest of the models", curve="train/epoch_dice_max")] = None
    train_bits_per_byte: Annotated[float | None, Metric("mean training loss in bits, of sequences of bytes", "train bits/byte", better="lower", curve="train/epoch_bits_per_byte")] = None
    train_metrics: Annotated[dict[str, float | None] | None, Metric("{name: value} of the metrics of a custom task", curve="train/epoch_", shown="epoch")] = None
    train_models: Annotated[list[ModelMetrics] | None, Metric("seed and metrics of each model")] = None
    eval_loss: Annotated[float | None, Metric("mean loss over the evaluation split", "test loss", better="lower", curve="eval/loss", shown="epoch")] = None
    eval_top1: Annotated[Fraction | None, Metric("fraction of images whose class the network puts first; of sequences, fraction of tokens", "top-1", "%", better="higher", curve="eval/top1", shown="epoch trial seeds")] = None
    eval_top5: Annotated[Fraction | None, Metric("fraction of images whose class is among the network's first five", "top-5", "%", better="higher", curve="eval/top5")] = None
    eval_top1_std: Annotated[Fraction | None, Metric("standard deviation over the models", "std", "%", curve="eval/top1_std", shown="epoch")] = None
    eval_top1_tta: Annotated[Fraction | None, Metric("top-1 with test-time augmentation", "top-1 with TTA", "%", better="higher", curve="eval/top1_tta", shown="epoch seeds")] = None
    eval_dice: Annotated[Fraction | None, Metric("Dice over all pixels of the split at once", "Dice", "%", better="higher", curve="eval/dice", shown="epoch trial seeds")] = None
    eval_iou: Annotated[Fraction | None, Metric("intersection over union over all pixels of the split at once", "IoU", "%", better="higher", curve="eval/iou")] = None
    eval_pixel_accuracy: Annotated[Fraction | None, Metric("pixel accuracy over all pixels of the split at once", "pixel accuracy", "%", better="higher", curve="eval/pixel_accuracy")] = None
    eval_dice_per_image: Annotated[Fraction | None, Metric("mean of the images' own Dice", "Dice per image", "%", better="higher", curve="eval/dice_per_image")] = None
    eval_top1_min: Annotated[Fraction | None, Metric("least of the models", curve="eval/top1_min")] = None
    eval_top1_max: Annotated[Fraction | None, Metric("greatest of the models", curve="eval/top1_max")] = None
    eval_dice_std: Annotated[Fraction | None, Metric("standard deviation over the models", "std", "%", curve="eval/dice_std", shown="epoch")] = None
    eval_dice_min: Annotated[Fraction | None, Metric("least of the models", curve="eval/dice_min")] = None
    eval_dice_max: Annotated[Fraction | None, Metric("greatest of the models", curve="eval/dice_max")] = None
    eval_metrics: Annotated[dict[str, float | None] | None, Metric("{name: value} of the metrics of a custom task", curve="eval/", shown="epoch")] = None
    eval_bits_per_byte: Annotated[float | None, Metric("mean loss in bits, of sequences of bytes", "bits/byte", better="lower", curve="eval/bits_per_byte", shown="epoch trial seeds")] = None
    eval_models: Annotated[list[ModelMetrics] | None, Metric("seed and metrics of each model")] = None
    eval_count: Annotated[Count | None, Metric("number of images evaluated, or of sequences", "test examples", "count")] = None
    images_per_s: Annotated[Amount | None, Here("`images` over `train_time_s`", "throughput/images_per_s")] = None
    images_per_s_per_device: Annotated[Amount | None, Here("the same for each device", "throughput/images_per_s_per_device")] = None
    tokens_per_s: Annotated[Amount | None, Here("tokens per second, of sequences", "throughput/tokens_per_s")] = None
    epoch_time_s: Annotated[Amount, Metric("`train_time_s` and `eval_time_s` together", "time", "s", better="lower", curve="time/epoch_s", shown="epoch")]
    learning_rate: Annotated[float | None, Metric("learning rate of the last step", "learning rate", shown="epoch")] = None
    gradient_norm: Annotated[float | None, Metric("norm of the gradients of all parameters, before they are clipped; mean over the epoch's updates", "gradient norm", curve="train/gradient_norm")] = None
    update_norm: Annotated[float | None, Metric("norm of what an update adds to the parameters; mean over the epoch's updates", "update norm", curve="train/update_norm")] = None
    parameter_norm: Annotated[float | None, Metric("norm of all parameters; mean over the epoch's updates", "parameter norm", curve="train/parameter_norm")] = None
    loss_scale: Annotated[Amount | None, Metric("loss scale, under precision=fp16", "loss scale", shown="epoch")] = None
    skipped_steps: Annotated[Count | None, Metric("steps skipped since the start for overflowing gradients, under precision=fp16", "skipped steps", "count", better="lower")] = None
    loss_scale_models: list[dict[str, Any]] | None = None
    train_time_s: Annotated[Amount, Here("seconds of training; compilation and profiled steps excluded")]
    data_wait_s: Annotated[Amount, Metric("seconds of `train_time_s` in which the training loop waited for data", "data wait", "s", better="lower", curve="time/data_wait_s")]
    eval_time_s: Annotated[Amount, Here("seconds of the evaluation, 0 without one")]
    images: Annotated[Count, Metric("images trained on, or sequences; profiled steps excluded", "images", "count")]
    peak_memory_bytes: Annotated[Count | None, Here("most memory in use on a device so far in the run", "memory/peak_bytes")] = None
    process_memory_bytes: Annotated[Count | None, Metric("memory of the process on the host", "process memory", "MiB", better="lower")] = None
    elapsed_s: Annotated[Amount, Metric("seconds from the run's start to the end of the evaluation", "elapsed", "s")]
    mfu: Annotated[Amount | None, Metric("model FLOPs utilization: the fraction of the peak that the network's own operations use", "MFU", "%", better="higher", shown="throughput input trial")] = None
    profiled_steps: Annotated[Count, Metric("number of profiled steps")]

    def evaluated(self, name: str) -> float | None:
        """Return an evaluation's metric by its task's name for it."""
        if has_field(EpochRecord, "eval_", name):
            return getattr(self, f"eval_{name}")
        return (self.eval_metrics or {}).get(name)


class ThroughputRecord(Record, frozen=True, kw_only=True):
    """One stage of --mode=throughput: train_step or forward. Latencies are of single steps, each waited for, in the stage train_step."""

    stage: Annotated[str, Metric("name of the stage", "stage", "text", shown="throughput input")]
    num_devices: Positive
    batch_size: Positive
    precision: Annotated[str, Metric("what the network computes in")]
    images_per_step: Annotated[Positive | None, Metric("images of a step, over all models")] = None
    images_counted: Annotated[Count | None, Metric("images that the last step counted itself; must equal `images_per_step`")] = None
    flops_per_byte: Annotated[Amount | None, Metric("operations of a step for each byte of memory traffic that XLA counts", "FLOP/byte")] = None
    flops_per_byte_at_ridge: Annotated[Amount | None, Metric("the same ratio at which the device's arithmetic and memory are in balance", "at the ridge")] = None
    bound_by: Annotated[str | None, Metric("what bounds the step: arithmetic or memory", "bound by", "text")] = None
    warmup_steps: Annotated[Count, Metric("steps before the measurement")]
    warmup_settled: Annotated[bool, Metric("whether throughput stabilised during warm-up")]
    sync_residual_s: Annotated[Amount, Metric("seconds that work continued after the windows' ends, in sum")]
    images_per_s: Annotated[Amount | None, Metric("images per second over all devices: the steady state", "images/s", better="higher", shown="epoch throughput input device conv2d trial seeds")] = None
    images_per_s_per_device: Annotated[Amount, Metric("images per second of each device", "images/s per device", better="higher")]
    images_per_s_low: Annotated[Amount | None, Metric("lower end of its 95 % interval; unknown of fewer than six epochs or windows", "images/s, low end", shown="throughput input device trial")] = None
    images_per_s_high: Annotated[Amount | None, Metric("upper end of its 95 % interval; unknown of fewer than six epochs or windows", "images/s, high end")] = None
    images_per_s_mean: Annotated[Amount | None, Metric("harmonic mean of the windows' rates")] = None
    images_per_s_standard_error: Annotated[Amount | None, Metric("standard error of that mean, wider if windows are correlated")] = None
    autocorrelation: Annotated[float | None, Metric("correlation of each window's rate with the next one's. Independent windows have about 0; the interval and the standard error are wider if it is more")] = None
    jitter: Annotated[Amount | None, Metric("relative deviation of the windows' rates: 1.4826 times the median absolute deviation, over the median", "jitter", "%", better="lower")] = None
    windows_s: Annotated[list[float] | None, Metric("seconds of each window, in order")] = None
    step_s: Annotated[Amount | None, Metric("seconds of a step, from the median rate", "step", "ms", better="lower")] = None
    steps_per_window: Annotated[Count | None, Metric("steps in a window")] = None
    tokens_per_image: Annotated[Count | None, Metric("tokens of a sequence, if images are sequences")] = None
    tokens_per_s: Annotated[Amount | None, Metric("tokens per second, if images are sequences", "tokens/s", better="higher", shown="epoch throughput input device trial seeds")] = None
    flops_per_image: Annotated[Count | None, Metric("floating-point operations of training for an image, by the network's own count")] = None
    flops_per_s_per_device: Annotated[Amount | None, Metric("floating-point operations per second of each device", "arithmetic per device", "GFLOP/s", better="higher")] = None
    mfu: Amount | None = None
    mfu_by_6n: Annotated[Amount | None, Metric("the same by the usual count of a language model, 6 N for a token and attention; N are all parameters, embeddings too", "MFU by 6 N", "%", better="higher", shown="throughput")] = None
    peak: Annotated[Peak | None, Metric("the row of hardware/peaks.csv that the device was judged by")] = None
    feed: Annotated[str, Metric("where the batches come from: synthetic, resident or stream")]
    latency_p50_s: Annotated[Amount | None, Metric("median latency of a step", "p50", "ms", better="lower", shown="throughput input trial")] = None
    latency_p95_s: Annotated[Amount | None, Metric("95th percentile of a step's latency", "p95", "ms", better="lower", shown="throughput input")] = None
    latency_p99_s: Annotated[Amount | None, Metric("99th percentile of a step's latency", "p99", "ms", better="lower", shown="throughput input trial")] = None
    latency_steps: Annotated[Count | None, Metric("number of latencies measured", "steps", "count")] = None
    host_share: Annotated[float | None, Metric("fraction of a latency that queueing steps ahead hides", "hidden by queueing", "%")] = None


class InputRecord(Record, frozen=True, kw_only=True):
    """One stage of --mode=input: prepare, prepare_and_send or train_step."""

    stage: str
    num_devices: Positive
    batch_size: Positive
    images_per_s: Amount | None = None
    images_per_s_low: Amount | None = None
    images_per_s_high: Amount | None = None
    windows_images_per_s: Annotated[list[float], Metric("images per second of each window, in order")]
    cores: Annotated[Count, Metric("processor cores that the process may use")]
    images_per_s_per_core: Annotated[Amount | None, Metric("images per second of each core; absent for the devices' stage", "images/s per core", better="higher")] = None
    tokens_per_s: Amount | None = None
    windows_storage_read_bytes: Annotated[list[int | None] | None, Metric("bytes that storage delivered in each window; 0 if the page cache held everything")] = None


class ScalingRecord(Record, frozen=True, kw_only=True):
    """A step of --mode=scaling and its efficiency against one device."""

    status: Annotated[Status, Here("done, or why there is no rate: oom or failed")]
    num_devices: Positive
    batch_size: Positive
    batch_per_device: Annotated[Positive, Metric("images of a step on each device", "batch per device", "count")]
    precision: str
    images_per_step: Positive
    images_counted: Count | None = None
    warmup_steps: Count | None = None
    warmup_settled: bool | None = None
    steps: Annotated[Count, Metric("training steps done", "steps", "count")]
    scaling: Annotated[Scaling, Metric("weak: each device keeps its batch; strong: the global batch is kept", "scaling", "text")]
    images_per_s: Amount | None = None
    images_per_s_low: Amount | None = None
    images_per_s_high: Amount | None = None
    images_per_s_mean: Amount | None = None
    images_per_s_standard_error: Amount | None = None
    autocorrelation: float | None = None
    jitter: Amount | None = None
    windows_s: list[float] | None = None
    step_s: Amount | None = None
    steps_per_window: Count | None = None
    tokens_per_image: Count | None = None
    tokens_per_s: Amount | None = None
    reason: Annotated[str | None, Metric("why it is not done")] = None
    efficiency: Annotated[Amount | None, Metric("rate on N devices over N times the rate on one", "efficiency", "%", better="higher")] = None
    efficiency_low: Annotated[Amount | None, Metric("lower end of its 95 % interval", "efficiency, low end", "%")] = None
    efficiency_high: Annotated[Amount | None, Metric("upper end of its 95 % interval", "efficiency, high end", "%")] = None
    gradient_bytes: Annotated[Count, Metric("size of the gradient that the devices exchange", "gradient bytes", "count")]
    collectives: dict[str, dict[str, int]] | None = None
    flops_per_image: Count | None = None
    flops_per_s_per_device: Amount | None = None
    mfu: Amount | None = None
    mfu_by_6n: Amount | None = None
    peak: Peak | None = None
    replicas_equal_after_steps: Annotated[bool | None, Metric("whether all devices hold the same state at the end, bit for bit; null on one device")] = None
    unequal: Annotated[list[str] | None, Metric("names of the arrays that differ")] = None


class DeviceRecord(Record, frozen=True, kw_only=True):
    """One device alone, with its part of the batch."""

    status: Status
    device_id: Annotated[Count, Metric("the device, as JAX numbers it", "device", "count", shown="device")]
    device_kind: Annotated[str, Here("the device, as JAX names it")]
    num_devices: Positive
    batch_size: Positive
    batch_per_device: Positive
    precision: str
    images_per_step: Positive
    images_counted: Count | None = None
    warmup_steps: Count | None = None
    warmup_settled: bool | None = None
    steps: Count
    images_per_s: Amount | None = None
    images_per_s_low: Amount | None = None
    images_per_s_high: Amount | None = None
    images_per_s_mean: Amount | None = None
    images_per_s_standard_error: Amount | None = None
    autocorrelation: float | None = None
    jitter: Amount | None = None
    windows_s: list[float] | None = None
    step_s: Amount | None = None
    steps_per_window: Count | None = None
    tokens_per_image: Count | None = None
    tokens_per_s: Amount | None = None
    reason: str | None = None
    flops_per_image: Count | None = None
    flops_per_s_per_device: Amount | None = None
    mfu: Amount | None = None
    mfu_by_6n: Amount | None = None
    peak: Peak | None = None


class AllReduceRecord(Record, frozen=True, kw_only=True):
    """The sum over devices of a buffer as large as the gradient."""

    num_devices: Positive
    bytes: Annotated[Count, Metric("size of the buffer", "bytes", "count")]
    all_reduce_s: Annotated[Amount, Metric("seconds of one all-reduce, median", "all-reduce", "ms", better="lower")]
    all_reduce_s_low: Annotated[Amount | None, Metric("lower end of its 95 % interval; unknown of fewer than six windows")] = None
    all_reduce_s_high: Annotated[Amount | None, Metric("upper end of its 95 % interval; unknown of fewer than six windows")] = None
    bus_bytes_per_s: Annotated[Amount, Metric("bus bandwidth: bytes that a ring sends over each link, per second", "bus", "GB/s", better="higher")]
    bus_bytes_per_s_low: Annotated[Amount | None, Metric("lower end of its 95 % interval; unknown of fewer than six windows")] = None
    bus_bytes_per_s_high: Annotated[Amount | None, Metric("upper end of its 95 % interval; unknown of fewer than six windows")] = None
    share_of_weak_step: Annotated[Amount | None, Metric("its time over that of the weak-scaling step on as many devices", "of the weak step", "%", better="lower")] = None
    calls_per_window: Annotated[Count, Metric("all-reduces in a window")]
    windows_s: list[float]


class Conv2dRecord(Record, frozen=True, kw_only=True):
    """One convolution on a number of devices, its time in parts."""

    kernel: Annotated[Count, Metric("side of the square kernel, in pixels", "kernel", "count", shown="conv2d")]
    channels: Annotated[Count, Metric("input channels", "channels", "count", shown="conv2d")]
    filters: Annotated[Count, Metric("output channels", "filters", "count")]
    devices: Annotated[Positive, Metric("devices that share the images", "devices", "count", shown="conv2d")]
    lower_s: Amount
    first_use_s: Annotated[Amount, Metric("seconds of the first use, from placing the images to the result on the host, compilation included", "first use", "ms", better="lower")]
    host_to_device_s: Annotated[Amount, Metric("seconds to place kernel and images on the devices, median", "to device", "ms", better="lower")]
    compute_s: Annotated[Amount, Metric("seconds of a call among several queued ones, median", "compute", "ms", better="lower", shown="conv2d")]
    call_s: Annotated[Amount, Metric("seconds of a single call that is waited for, median", "one call", "ms", better="lower")]
    device_to_host_s: Annotated[Amount, Metric("seconds to fetch the result, median", "to host", "ms", better="lower")]
    steady_total_s: Annotated[Amount, Metric("host to device, compute and device to host together", "steady total", "ms", better="lower")]
    compile_s: Annotated[Amount, Metric("seconds of lowering and compiling", "compile", "s", better="lower", shown="trial")]
    images_per_s: Annotated[Amount, Here("images per second of the computation only")]
    gflop_per_s: Annotated[Amount, Metric("1e9 floating-point operations per second of the computation only", "GFLOP/s", better="higher")]
    speedup: Annotated[Amount | None, Metric("compute time on one device over this one", "speed-up", better="higher")] = None
    scipy_s: Annotated[Amount | None, Metric("seconds that SciPy takes on one CPU thread, median", "SciPy", "ms", better="lower")] = None
    scipy_per_compute: Annotated[Amount | None, Metric("SciPy's time over `compute_s`")] = None
    scipy_per_steady_total: Annotated[Amount | None, Metric("SciPy's time over `steady_total_s`")] = None
    max_relative_error: Annotated[Amount | None, Metric("largest difference from SciPy's result, relative to its largest value")] = None
    memory: dict[str, int] | None = None
    samples: Annotated[dict[str, list[float]], Metric("every single measurement, by part")]
    images: Annotated[Count, Here("number of images")]
    height: Annotated[Count, Metric("height of an image, in pixels", "height", "count")]
    width: Annotated[Count, Metric("width of an image, in pixels", "width", "count")]


class TargetRecord(Record, frozen=True, kw_only=True):
    """A training step for a target: what is predicted, and what its compiler reports."""

    target: Annotated[str, Metric("the machine that is compiled for, as `gpu:h100:8`")]
    origin: Annotated[str, Metric("compiled, or predicted if the compiler is not installed")]
    compiler: Annotated[str | None, Metric("the package and version that compiled")] = None
    device_kind: Annotated[str, Metric("the devices, as JAX names them", "device kind", "text", shown="device")]
    num_devices: Positive
    batch_size: Positive
    batch_per_device: Positive
    precision: str
    device_memory_bytes: Count
    fits: Annotated[bool | None, Metric("whether the compiler accepts the step and its estimated memory is no more than that; without a compiler false if the least that it needs is more, else unknown; null if the compiler does not support the step")] = None
    needed_bytes: Annotated[Count | None, Metric("estimated memory on each device, as the compiler reports it, even if it refuses", "needed", "GiB", better="lower")] = None
    refusal: Annotated[str | None, Metric("the compiler's message if it refuses")] = None
    scaling: Scaling | None = None
    lower_s: Amount | None = None
    compile_s: Amount | None = None
    memory: dict[str, int] | None = None
    state_donated: Annotated[bool | None, Metric("whether the new state takes the place of the old one, whole")] = None
    collectives: dict[str, dict[str, int]] | None = None
    flops_per_image: Count | None = None
    custom_calls: Annotated[dict[str, int] | None, Metric("calls of libraries by name")] = None
    estimated_cycles: Annotated[Count | None, Metric("cycles of a step on one device, the sum of what a TPU's compiler estimates for its fusions; nothing is fitted")] = None
    estimated_images_per_s: Annotated[Amount | None, Metric("the rate if a step takes these cycles at the device's clock; it is shown beside the predicted rate, and no part of it")] = None
    predicted: Annotated[Predicted | None, Metric("the rate to expect with its intervals, the times and prices that follow, and what they rest on")] = None
    not_predicted: Annotated[str | None, Metric("why no rate is predicted")] = None


class TrainSummary(Summary, frozen=True, kw_only=True):
    """A training run. Evaluation metrics are those of the last evaluation. Published first epochs usually include compilation, as `first_epoch_with_compile_s` does. Utilization is that of `images_per_s`."""

    eval_loss: float | None = None
    eval_top1: Fraction | None = None
    eval_top5: Fraction | None = None
    eval_top1_std: Fraction | None = None
    eval_top1_tta: Fraction | None = None
    eval_dice: Fraction | None = None
    eval_iou: Fraction | None = None
    eval_pixel_accuracy: Fraction | None = None
    eval_dice_per_image: Fraction | None = None
    eval_top1_min: Fraction | None = None
    eval_top1_max: Fraction | None = None
    eval_dice_std: Fraction | None = None
    eval_dice_min: Fraction | None = None
    eval_dice_max: Fraction | None = None
    eval_metrics: dict[str, float | None] | None = None
    eval_bits_per_byte: float | None = None
    eval_models: list[ModelMetrics] | None = None
    eval_count: Count | None = None
    epochs_done: Annotated[Count, Metric("epochs done", "epochs", "count")]
    first_step_s: Annotated[Amount | None, Metric("seconds of the first step, compilation excluded", "first step", "s", better="lower")] = None
    import_s: Annotated[Amount | None, Metric("seconds from the process's start to that of the run's clock", "imports", "s", better="lower")] = None
    startup_s: Annotated[Amount | None, Metric("seconds from the process's start to the end of the first step", "start-up", "s", better="lower")] = None
    first_epoch_with_compile_s: Annotated[Amount | None, Metric("`first_epoch_s` and `compile_s` together", "1st epoch, with compile", "s", better="lower")] = None
    steady_epochs: Annotated[Count, Metric("number of epochs whose median `images_per_s` is: the complete ones from the second on")]
    best_eval_top1: Annotated[Fraction | None, Metric("best evaluation", "best top-1", "%", better="higher")] = None
    best_eval_dice: Annotated[Fraction | None, Metric("best evaluation", "best Dice", "%", better="higher")] = None
    best_eval_loss: Annotated[float | None, Metric("least loss of an evaluation, of a task that is judged by it", "least loss", better="lower", shown="trial")] = None
    best_eval_metrics: Annotated[dict[str, float | None] | None, Metric("the best of these metrics")] = None
    best_epoch: Annotated[Count | None, Metric("epoch of the best evaluation")] = None
    diverged_seeds: Annotated[list[int] | None, Metric("seeds of the models that diverged, if several train")] = None
    profile: Annotated[dict[str, Any] | None, Metric("steps that were profiled, and the folder of the trace")] = None
    num_resumes: Annotated[Count | None, Metric("how often the run was resumed", "resumes", "count", better="lower")] = None
    goodput: Annotated[Amount | None, Metric("fraction of `total_wall_s` that was steps whose result is in the final state", "goodput", "%", better="higher")] = None
    badput_s: Annotated[dict[str, float] | None, Metric("seconds of the rest by cause: startup, compile, data_wait, eval, checkpoint, lost_work (done again after a resume), down (from a process's end to the next one's start) and other")] = None
    total_wall_s: Annotated[Amount | None, Metric("seconds from the start of the run's first process to now, all resumes included", "total wall", "s", better="lower")] = None
    target_accuracy: Annotated[TargetAccuracy | None, Here("with --target_accuracy: the accuracy, and the epochs, steps, images and seconds that it took; its cost includes work that was lost in kills")] = None
    steps: Count
    compile_cache: Annotated[str | None, Metric("compilation cache: hit only if all programs were fetched from it; miss or off")] = None
    first_epoch_s: Annotated[Amount | None, Metric("seconds of the first epoch, compilation excluded", "first epoch", "s", better="lower", shown="trial")] = None
    median_epoch_s: Annotated[Amount | None, Metric("median seconds of the later epochs that end with an evaluation", "2nd on, median", "s", better="lower", shown="trial")] = None
    images_per_s: Amount | None = None
    images_per_s_per_device: Amount | None = None
    images_per_s_low: Amount | None = None
    images_per_s_high: Amount | None = None
    images_per_s_range: Annotated[list[float] | None, Metric("least and greatest `images_per_s` of two to five steady epochs, which are too few for an interval", "range")] = None
    tokens_per_image: Count | None = None
    images_per_s_whole_run: Annotated[Amount | None, Metric("mean images per second over all training, first epoch included", "whole run images/s", better="higher", shown="trial")] = None
    tokens_per_s: Amount | None = None
    loss_scale: Amount | None = None
    skipped_steps: Count | None = None
    loss_scale_models: list[dict[str, Any]] | None = None
    train_time_s: Annotated[Amount, Metric("seconds of training", "training", "s", better="lower", shown="seeds")]
    eval_time_s: Annotated[Amount, Metric("seconds of evaluation", "evaluation", "s", better="lower")]
    flops_per_image: Count | None = None
    flops_per_s_per_device: Amount | None = None
    mfu: Amount | None = None
    mfu_by_6n: Amount | None = None
    peak: Peak | None = None


class ThroughputSummary(Summary, frozen=True, kw_only=True):
    """--mode=throughput; the rate is that of the stage train_step."""

    first_step_s: Amount | None = None
    first_loss: Annotated[float | None, Metric("loss of the first window's last step")] = None
    last_loss: Annotated[float | None, Metric("loss of the last window's last step")] = None
    images_per_s: Amount | None = None
    images_per_s_low: Amount | None = None
    images_per_s_high: Amount | None = None
    loss_scale: Amount | None = None
    skipped_steps: Count | None = None


class InputSummary(Summary, frozen=True, kw_only=True):
    """--mode=input: whether the host or the devices bound a run."""

    verdict: Annotated[str | None, Metric("the bottleneck, in words; null unless all stages were measured")] = None


class ScalingSummary(Summary, frozen=True, kw_only=True):
    """--mode=scaling: efficiencies, what the devices exchange, predictions."""

    devices: Annotated[dict[str, Any] | None, Here("how far apart single devices are, and what even and uneven splits could reach")] = None
    efficiencies: Annotated[list[Efficiency], Metric("efficiency of each measured step, with its interval")]
    exchange: Annotated[dict[str, Any] | None, Metric("gradient bytes and collectives on the most devices")] = None
    predictions: Annotated[list[Prediction], Metric("estimated weak scaling on more devices")]
    tokens_per_image: Count | None = None


class MemorySummary(Summary, frozen=True, kw_only=True):
    """--mode=memory: the larger step's estimated memory on each device, and the host's."""

    planned_bytes_per_device: Annotated[Count | None, Metric("estimated memory (XLA) of the larger of the two steps", "estimated memory", "MiB", better="lower")] = None
    private_memory_before_bytes: Annotated[Count | None, Metric("private memory of the process on the host before the steps ran", "private memory before", "MiB", better="lower")] = None


class Conv2dSummary(Summary, frozen=True, kw_only=True):
    """--mode=conv2d: how many trials were measured, and the conclusions."""

    cells: Annotated[Count, Metric("number of trials")]
    findings: Annotated[list[str], Metric("conclusions, in words")]


class CompileSummary(Summary, frozen=True, kw_only=True):
    """--target: what is predicted, and what the compiler reports, of the step on the whole machine."""

    planned_bytes_per_device: Count | None = None
    device_memory_bytes: Count | None = None
    predicted_images_per_s: Annotated[Amount | None, Metric("the images/s to expect, predicted from published rates", "predicted images/s", better="higher", shown="trial")] = None
    predicted_images_per_s_low: Annotated[Amount | None, Metric("lower end of its 80 % interval", "predicted images/s, low end", shown="trial")] = None
    predicted_images_per_s_high: Annotated[Amount | None, Metric("upper end of its 80 % interval", "predicted images/s, high end")] = None


class RunDocument(Struct, frozen=True, kw_only=True):
    """What a run is, on what it ran, and how it ended.

    Optional fields are absent if they are unknown: `finished_at` and `summary` until the end,
    and what belongs to other modes.
    """

    experiment: Annotated[str, Metric("what followed `--experiment=`")]
    mode: Annotated[str, Metric("what the run did, as in `--mode`; compile with --target")]
    status: Status
    target: str | None = None
    task: Annotated[str | None, Metric("what the network predicts")] = None
    model: Annotated[str | None, Metric("name of the network's configuration class")] = None
    models: Annotated[Count | None, Here("number of models that train at once")] = None
    seeds: Annotated[list[int] | None, Metric("seed of each model")] = None
    parameters: Annotated[Count | None, Metric("number of parameters of one model", "parameters", "count")] = None
    trained_parameters: Annotated[Count | None, Metric("how many of them training changes; all but frozen ones", "trained parameters", "count")] = None
    forward_macs_per_image: Annotated[Count | None, Metric("multiply-accumulates of the forward pass for one image")] = None
    forward_macs_by_dtype: Annotated[dict[str, int] | None, Metric("the same by the type of the operands, in the traced network")] = None
    training_flops_per_image: Annotated[Count | None, Metric("floating-point operations of a training step for one image")] = None
    attention: Annotated[str | None, Metric("implementation of attention: xla, cudnn or flash; of networks of transformer blocks")] = None
    attention_reason: Annotated[str | None, Metric("why: the times of a layer, forward and backward; what failed; what cannot be; or that it was chosen without timing, for a compiler, a prediction or --deterministic. Null if model.attention asks for it")] = None
    batch_per_device: Positive | None = None
    batch_norm_examples: Annotated[Count | None, Metric("images over which a batch-norm layer takes its statistics; null without one")] = None
    data: Annotated[LoadedData | None, Metric("the data set as loaded, and how it reaches the devices")] = None
    config: Annotated[Settings, Metric("all fields of the experiment")]
    target_accuracy: Annotated[Fraction | None, Metric("value of the flag of this name", "target accuracy", "%")] = None
    rounds: Annotated[Count | None, Metric("value of the flag of this name")] = None
    scaling: Annotated[str | None, Here("value of the flag of this name")] = None
    reason: str | None = None
    started_at: Annotated[Date, Metric("date and time of the start (UTC, ISO 8601)")]
    finished_at: Annotated[str | None, Metric("date and time of the end (UTC, ISO 8601)")] = None
    device_counts: Annotated[list[int] | None, Metric("numbers of devices that were measured")] = None
    link_gb_per_s: Annotated[Amount | None, Metric("value of the flag of this name")] = None
    problems: Annotated[list[dict[str, Any]] | None, Metric("the convolutions of --mode=conv2d: shapes and multiply-accumulates")] = None
    telemetry_s: Annotated[Amount, Metric("seconds between readings of devices and host; 0 is off")]
    price: Annotated[RecordedPrice | None, Metric("price of the hardware that was stated; absent if none was")] = None
    command_line: Annotated[list[str], Metric("the command, as a list of arguments")]
    working_directory: Annotated[str, Metric("folder in which the command ran")]
    pid: Annotated[Count, Metric("process id")]
    environment: Annotated[Environment, Metric("hardware, driver, versions, environment variables and commit")]
    attempts: Annotated[list[Attempt] | None, Metric("one entry for each process of a training run, in order: when it started and its time by phase (see records/goodput.py); if it resumed the run, also what it ran on and the work that was lost")] = None
    summary: Annotated[dict[str, Any] | None, Metric("the summary record, without its kind")] = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json, `schema_version` first."""
        return {"schema_version": SCHEMA_VERSION, **stated_fields(self)}


class TrialFigures(Struct, frozen=True, kw_only=True):
    """The metrics of a trial. Each has a column in sweep.csv."""

    eval_top1: Fraction | None = None
    eval_top1_tta: Fraction | None = None
    eval_dice: Fraction | None = None
    eval_bits_per_byte: float | None = None
    epochs_done: Count | None = None
    steady_epochs: Count | None = None
    best_eval_top1: Fraction | None = None
    best_eval_dice: Fraction | None = None
    best_eval_loss: float | None = None
    planned_bytes_per_device: Count | None = None
    private_memory_before_bytes: Count | None = None
    device_memory_bytes: Count | None = None
    compile_s: Amount | None = None
    compile_cache: str | None = None
    first_epoch_s: Amount | None = None
    median_epoch_s: Amount | None = None
    images_per_s: Amount | None = None
    images_per_s_per_device: Amount | None = None
    images_per_s_low: Amount | None = None
    images_per_s_high: Amount | None = None
    images_per_s_whole_run: Amount | None = None
    tokens_per_s: Amount | None = None
    train_time_s: Amount | None = None
    peak_memory_bytes: Count | None = None
    host_peak_memory_bytes: Count | None = None
    mfu: Amount | None = None
    latency_p50_s: Amount | None = None
    latency_p95_s: Amount | None = None
    latency_p99_s: Amount | None = None
    predicted_images_per_s: Amount | None = None
    predicted_images_per_s_low: Amount | None = None
    predicted_images_per_s_high: Amount | None = None
    prepare_images_per_s: Annotated[Amount | None, Metric("images per second that the host prepares", "prepare images/s", better="higher")] = None
    training_flops: Annotated[Count | None, Metric("floating-point operations of the network (forward and backward) in all training", "training", "TFLOP", shown="seeds")] = None
    target_value: Annotated[Fraction | None, Metric("target accuracy")] = None
    target_reached: Annotated[bool | None, Metric("whether it was reached; null if the run was broken off before")] = None
    target_s: Annotated[Amount | None, Metric("seconds from the start to the target accuracy", "to target", "s", better="lower", shown="trial seeds")] = None
    target_epoch: Annotated[Count | None, Metric("epochs that it took", "epochs to the target", "count", better="lower", shown="seeds")] = None
    target_images: Annotated[Count | None, Metric("images that it took", "images to the target", "count", better="lower", shown="seeds")] = None
    target_flops: Annotated[Count | None, Metric("floating-point operations of the network up to the target", "training to the target", "TFLOP", better="lower", shown="seeds")] = None
    target_energy_j: Annotated[Amount | None, Metric("energy in joules that it took", "to the target", "J", better="lower", shown="seeds")] = None
    target_usd: Annotated[Amount | None, Metric("cost in USD that it took", "to the target", "USD", better="lower", shown="seeds")] = None
    usd: Amount | None = None
    energy_j: Annotated[Amount | None, Metric("energy in joules of the devices that telemetry covers", "energy", "J", better="lower")] = None
    total_s: Annotated[Amount | None, Metric("seconds of compilation and of all epochs", "total", "s", better="lower", shown="trial")] = None
    weak_efficiency: Annotated[Amount | None, Metric("weak-scaling efficiency on the most devices", "weak", "%", better="higher", shown="trial")] = None
    strong_efficiency: Annotated[Amount | None, Metric("strong-scaling efficiency on the most devices", "strong", "%", better="higher", shown="trial")] = None
    prepare_and_send_images_per_s: Annotated[Amount | None, Metric("images per second that the host prepares and sends", "host images/s", better="higher", shown="trial")] = None
    train_step_images_per_s: Annotated[Amount | None, Metric("images per second that the devices train", "device images/s", better="higher", shown="trial")] = None
    conv2d_compute_s: Annotated[Amount | None, Metric("seconds of the convolution on the devices", "compute", "ms", better="lower", shown="trial")] = None
    conv2d_scipy_s: Annotated[Amount | None, Metric("seconds of the convolution with SciPy on one CPU thread", "SciPy", "ms", better="lower", shown="trial")] = None
    needed_bytes_per_device: Annotated[Count | None, Metric("memory on each device of a target, as its compiler says", "needed", "GiB", better="lower", shown="trial")] = None

    def value(self, name: str) -> Any:
        """Return a metric; a target that was never reached takes and costs without end."""
        value = getattr(self, name)
        takes = {"target_usd": self.usd, "target_flops": self.training_flops}
        takes |= dict.fromkeys(("target_s", "target_epoch", "target_images"), 0)
        endless = self.target_reached is False and takes.get(name) is not None
        return math.inf if endless and value is None else value


class TrialResult(Struct, frozen=True, kw_only=True):
    """How one trial of a sweep ended: a line of results.jsonl, a row of sweep.csv."""

    experiment: str
    place: Annotated[dict[str, str], Metric("{field: value} by the grid's fields, as text")]
    status: Annotated[TrialStatus, Here("done, oom, timeout, failed, invalid or lost")]
    device_kind: str | None = None
    run: Annotated[str | None, Metric("the run directory, as a path in the sweep's folder; null if none was made")] = None
    log: Annotated[str, Metric("the trial's output, as a path in the sweep's folder")]
    key: Annotated[str, Metric("identity of the trial, see sweeps/grid.py")]
    exit_code: Annotated[int | None, Metric("exit code of the trial's process; null if there was none")] = None
    figures: Annotated[TrialFigures, Metric("the metrics; in sweep.csv each has a column")]
    num_devices: Positive | None = None
    reason: str | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    wall_s: Annotated[Amount, Here("seconds of the whole trial")]
    finished_at: str
    backend: Annotated[str | None, Metric("platform of the devices: cpu, gpu or tpu")] = None
    hostname: Annotated[str | None, Metric("name of the host")] = None
    versions: Annotated[dict[str, str] | None, Metric("versions of Python, JAX and others")] = None
    commit: Annotated[str | None, Metric("commit of jaxbench")] = None

    def row(self) -> dict[str, Any]:
        """Return the row of sweep.csv; a field of the grid takes the place of a column."""
        parts = (self, self.figures)
        row = {name: getattr(one, name) for one in parts for name in columns_of(type(one))}
        return self.place | row | {"warnings": "; ".join(self.warnings)} | self.place

    def to_json(self) -> dict[str, Any]:
        """Return the line of results.jsonl."""
        return msgspec.structs.asdict(self) | {"figures": stated_fields(self.figures)}


class MaxBatchResult(Struct, frozen=True, kw_only=True):
    """The largest batch of a trial's experiment that fits in memory: a row of max_batch.csv."""

    place: dict[str, str]
    status: Annotated[Status, Here("done, oom (not even the smallest batch fits) or failed")]
    device_kind: str | None = None
    planned_bytes_per_device: Annotated[Count | None, Here("estimated memory (XLA) at the largest batch")] = None
    max_batch: Annotated[Count | None, Metric("largest global batch that fits, in images", "largest batch", "count", better="higher")] = None
    max_batch_per_device: Annotated[Count | None, Metric("the same for each device", "largest batch per device", "count", better="higher")] = None
    smallest_too_large: Annotated[Count | None, Metric("smallest batch tried that does not fit", "too large", "count")] = None
    num_devices: Positive | None = None
    device_memory_bytes: Count | None = None
    peak_memory_bytes: Annotated[Count | None, Here("most memory in use on a device at the largest batch")] = None
    host_peak_memory_bytes: Count | None = None
    memory_limit_mb: Annotated[Amount | None, Metric("value of --memory_limit_mb")] = None
    trials: Annotated[Count, Metric("number of batches tried", "trials", "count")]
    reason: Annotated[str, Here("why the search ended")]

    def row(self) -> dict[str, Any]:
        """Return the row of max_batch.csv; a field of the grid takes the place of a column."""
        columns = msgspec.structs.asdict(self)
        return columns.pop("place") | columns | self.place
# fmt: on


# The classes of lines of metrics.jsonl. A run that breaks before its mode can sum it up has the
# plain Summary.
RECORDS: dict[str, type[Record]] = {}
_HERE: dict[tuple[Any, str], Here] = {}
for _cls in (*Record.__subclasses__(), *Summary.__subclasses__()):
    _words = re.findall("[A-Z][a-z0-9]*", _cls.__name__.removesuffix("Record"))
    RECORDS["_".join(_words).lower()] = _cls
    _cls.kind = "summary" if issubclass(_cls, Summary) else "_".join(_words).lower()
for _class in (*RECORDS.values(), RunDocument, TrialFigures, TrialResult, MaxBatchResult):
    for _name, _hint in _class.__annotations__.items():
        for _one in getattr(_hint, "__metadata__", ()):
            if isinstance(_one, Metric):
                METRICS[_name] = _one
            elif isinstance(_one, Here):
                _HERE[_class, _name] = _one
# {lower end: the heading of a column with both}.
_INTERVALS = {
    "images_per_s_low": "95 % interval",
    "predicted_images_per_s_low": "80 % interval (predicted)",
    "efficiency_low": "its interval [%]",
}
# The metrics that networks are judged by, one for each task, and their titles.
SCORES = {name: METRICS[name].title for name in ("top1", "dice")}
# The metrics of tasks that have fields; those of custom tasks are in `metrics`.
_TASK_METRICS = {one.curve[len("eval/") :] for one in METRICS.values() if "eval/" in one.curve}


def metric_of(cls: type[Struct], name: str) -> Metric:
    """Return a metric as a class means it. Raise KeyError if there is none."""
    here = next((_HERE[base, name] for base in cls.__mro__ if (base, name) in _HERE), None)
    return METRICS[name]._replace(**here._asdict()) if here else METRICS[name]


@functools.cache
def _curves(cls: type[Record]) -> dict[str, str]:
    curves = {name: metric_of(cls, name).curve for name in cls.__struct_fields__}
    return {name: curve for name, curve in curves.items() if curve}


@functools.cache
def shown_in(table: str) -> list[str]:
    """Return the metrics that a table has columns for, in their order."""
    names = RECORDS.get(table, TrialFigures).__struct_fields__
    return [name for name in names if table in METRICS[name].shown.split()]


def column_heading(name: str) -> str:
    """Return the heading of a metric's column; tables show both ends in that of the lower one."""
    return _INTERVALS.get(name) or METRICS[name].heading


def columns_of(cls: type[Struct]) -> list[str]:
    """Return the fields of a class that have a column in its CSV file: numbers and words."""
    from msgspec import inspect

    words = (inspect.StrType, inspect.LiteralType, inspect.DateTimeType, inspect.NoneType)
    types = (inspect.BoolType, inspect.IntType, inspect.FloatType, *words)
    info: Any = inspect.type_info(cls)
    fields = {field.name: field.type for field in info.fields}
    return [
        name
        for name, one in fields.items()
        if all(isinstance(part, types) for part in getattr(one, "types", (one,)))
    ]


def value_of(record: Struct, name: str) -> Any:
    """Return a metric of a record; None if only other kinds have it. Raise KeyError if none has."""
    if name not in METRICS:
        raise KeyError(name)
    return getattr(record, name, None)


def has_field(cls: type[Record], prefix: str, name: str) -> bool:
    """Return whether a record has a field for a task's metric, or for its spread."""
    return name in _TASK_METRICS and f"{prefix}{name}" in cls.__struct_fields__


def metric_fields(
    cls: type[Record], prefix: str, metrics: Mapping[str, float | None]
) -> dict[str, Any]:
    """Return a task's metrics as the fields of a record; those without a field go into one."""
    custom = {name: v for name, v in metrics.items() if not has_field(cls, prefix, name)}
    fields = {f"{prefix}{name}": v for name, v in metrics.items() if name not in custom}
    return fields | ({f"{prefix}metrics": custom} if custom else {})


def decode_record(line: Mapping[str, Any]) -> Any:
    """Return the record that a line of metrics.jsonl holds. Fields that are unknown are dropped.

    Which mode's summary it is follows from its fields.

    Raises:
      ValueError: no such kind, or a field is missing or has a wrong value.
    """
    kinds = [cls for cls in RECORDS.values() if cls.kind == line.get("kind")]
    if not kinds:
        raise ValueError(f"no kind of record: {line.get('kind')!r}")
    complete = [cls for cls in kinds if required_fields(cls) <= line.keys()] or kinds[:1]
    # The one with most fields of the line, and fewest others.
    return _decode(
        line, max(complete, key=lambda cls: (len(_NAMES[cls] & line.keys()), -len(_NAMES[cls])))
    )


def decode_document(document: Mapping[str, Any]) -> RunDocument:
    """Return the content of a run.json; raise ValueError for a missing field or a wrong value."""
    # It would be dropped as unknown, and so the time that was lost.
    if "resumes" in document:
        raise ValueError("`resumes` was written by a jaxbench between two releases; run it again")
    decoded = _decode(document, RunDocument)
    if f"{decoded.mode}_summary" not in RECORDS:
        raise ValueError(f"no such mode: {decoded.mode!r} - at `$.mode`")
    if decoded.summary:
        try:
            decode_record({"kind": "summary", **decoded.summary})
        except ValueError as error:
            raise ValueError(f"summary: {error}") from error
    return decoded


def _decode(content: Mapping[str, Any], cls: type[Struct]) -> Any:
    """Return an instance of a class, its texts and parts as they are in the file."""
    check_numbers(content, "$")
    decoded = msgspec.convert(content, cls)
    for name in cls.__struct_fields__:
        if type(content.get(name)) in (str, dict, list):
            msgspec.structs.force_setattr(decoded, name, content[name])
    return decoded


def check_numbers(part: Any, path: str) -> None:
    """Raise ValueError for a number that is not finite, or that arithmetic would overflow with."""
    is_list = type(part) is list
    for name, value in enumerate(part) if is_list else part.items():
        kind = type(value)
        if kind is dict or kind is list:
            check_numbers(value, f"{path}[...]" if is_list else f"{path}.{name}")
        elif (kind is float or kind is int) and not -_TOO_LARGE < value < _TOO_LARGE:
            where = f"{path}[...]" if is_list else f"{path}.{name}"
            raise ValueError(f"Expected a number below {_TOO_LARGE:g} - at `{where}`")


_NAMES = {cls: {*cls.__struct_fields__} for cls in RECORDS.values()}
