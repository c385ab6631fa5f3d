"""What a training run records: compiled steps, training steps, epochs, its summary."""

import dataclasses
from typing import Any, TypedDict

from jaxbench.records.schema.base import (
    Rate,
    Record,
    Summary,
    Utilization,
    column,
    custom_metrics,
    group,
)

# The figures that networks are judged by, one for each task, and their names for people.
SCORES = {"top1": "top-1", "dice": "Dice"}
# The figures with fields of their own; those of a user's own task are in `figures`.
_FIGURES = ("loss", "top1", "top5", "top1_tta", "dice", "iou", "pixel_accuracy", "dice_per_image")
_FIGURES += ("bits_per_byte",)
_SPREAD = ("", "_std", "_min", "_max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileRecord(Record):
    """A step that was lowered and compiled, and the compiler's estimates for one device.

    XLA counts a loop's body once.
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

    Standard deviation, minimum and maximum over the models are there where several train.
    """

    kind = "step"
    step: int
    epoch: int
    loss: float | None = column()
    top1: float | None = column()
    top1_std: float | None = column()
    top1_min: float | None = column()
    top1_max: float | None = column()
    dice: float | None = column()
    dice_std: float | None = column()
    dice_min: float | None = column()
    dice_max: float | None = column()
    bits_per_byte: float | None = column()
    metrics: dict[str, float | None] | None = custom_metrics()
    models: list[dict[str, Any]] | None = None
    learning_rate: float | None = column()
    loss_scale: float | None = column()
    skipped_steps: int | None = column()
    loss_scale_models: list[dict[str, Any]] | None = None
    elapsed_s: float
    profiled: bool = False
    step_time_s: float | None = None
    images_per_s: float | None = None


@group
class EpochTraining(Record):
    """The training of one epoch: means over its steps and over the models."""

    epoch: int = column()
    epochs: int
    step: int = column()
    complete: bool = column()
    epoch_time_s: float = column()
    train_time_s: float = column()
    data_wait_s: float = column()
    eval_time_s: float = column()
    images: int = column()
    images_per_s: float | None = column()
    images_per_s_per_device: float | None = column()
    tokens_per_s: float | None = column()
    mfu: float | None = column()
    profiled_steps: int = column()
    train_loss: float | None = column()
    train_top1: float | None = column()
    train_top1_std: float | None = column()
    train_top1_min: float | None = column()
    train_top1_max: float | None = column()
    train_dice: float | None = column()
    train_dice_std: float | None = column()
    train_dice_min: float | None = column()
    train_dice_max: float | None = column()
    train_bits_per_byte: float | None = column()
    train_metrics: dict[str, float | None] | None = custom_metrics()
    train_models: list[dict[str, Any]] | None = None


@group
class Evaluation(Record):
    """The figures of an evaluation: means over the models, spread where there are several."""

    eval_loss: float | None = column()
    eval_top1: float | None = column()
    eval_top5: float | None = column()
    eval_top1_tta: float | None = column()
    eval_dice: float | None = column()
    eval_iou: float | None = column()
    eval_pixel_accuracy: float | None = column()
    eval_dice_per_image: float | None = column()
    eval_top1_std: float | None = column()
    eval_top1_min: float | None = column()
    eval_top1_max: float | None = column()
    eval_dice_std: float | None = column()
    eval_dice_min: float | None = column()
    eval_dice_max: float | None = column()
    eval_bits_per_byte: float | None = column()
    eval_metrics: dict[str, float | None] | None = custom_metrics()
    eval_models: list[dict[str, Any]] | None = None
    eval_count: int | None = column()

    def evaluated(self, name: str) -> float | None:
        """Return an evaluation's figure by its task's name for it."""
        if has_field(type(self), "eval_", name):
            return getattr(self, f"eval_{name}")
        return (self.eval_metrics or {}).get(name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Evaluation, EpochTraining):
    """One epoch: training, and the evaluation where one followed."""

    kind = "epoch"
    learning_rate: float | None = column()
    loss_scale: float | None = column()
    skipped_steps: int | None = column()
    loss_scale_models: list[dict[str, Any]] | None = None
    peak_memory_bytes: int | None = column()
    process_memory_bytes: int | None = column()
    elapsed_s: float = column()


class TargetAccuracy(TypedDict, total=False):
    """What reaching the target accuracy took; null if it never was reached."""

    score: str
    value: float
    reached: bool
    epoch: int | None
    steps: int | None
    images: int | None
    time_s: float | None
    epochs_time_s: float | None
    train_time_s: float | None
    energy_j: float | None
    energy_covers: str | None
    usd: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSummary(Utilization, Evaluation, Rate, Summary):
    """A training run. Evaluation figures are those of the last evaluation.

    Published first epochs usually include compilation, as `first_epoch_with_compile_s` does.
    Utilization is that of `images_per_s`.
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
    steady_epochs: int
    images_per_s_per_device: float | None
    images_per_s_whole_run: float | None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    loss_scale_models: list[dict[str, Any]] | None = None
    best_eval_top1: float | None = None
    best_eval_dice: float | None = None
    best_eval_metrics: dict[str, float | None] | None = None
    best_epoch: int | None = None
    diverged_seeds: list[int] | None = None
    target_accuracy: TargetAccuracy | None = None
    profile: dict[str, Any] | None = None
    num_resumes: int | None = None
    goodput: float | None = None
    badput_s: dict[str, float] | None = None
    total_wall_s: float | None = None


def has_field(cls: type[Record], prefix: str, name: str) -> bool:
    """Return whether a record has a field of its own for a task's figure, or its spread."""
    known = any(name == f"{figure}{spread}" for figure in _FIGURES for spread in _SPREAD)
    return known and f"{prefix}{name}" in cls.__dataclass_fields__


def metric_fields(cls: type[Record], prefix: str, metrics: dict[str, float]) -> dict[str, Any]:
    """Return a task's metrics as the fields of a record; those without a field go into one."""
    custom = {name: v for name, v in metrics.items() if not has_field(cls, prefix, name)}
    fields = {f"{prefix}{name}": v for name, v in metrics.items() if name not in custom}
    return fields | ({f"{prefix}metrics": custom} if custom else {})
