"""What a training run records: compiled steps, training steps, epochs, its summary."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import Record, Summary, Utilization, figure, group, optional


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
    loss: float = figure("train/loss")
    top1: float | None = optional("train/top1")
    top1_std: float | None = None
    top1_min: float | None = None
    top1_max: float | None = None
    dice: float | None = optional("train/dice")
    dice_std: float | None = None
    dice_min: float | None = None
    dice_max: float | None = None
    models: list[dict[str, Any]] | None = None
    learning_rate: float = figure("train/learning_rate")
    loss_scale: float | None = optional("train/loss_scale")
    skipped_steps: int | None = optional("train/skipped_steps")
    loss_scale_models: list[dict[str, Any]] | None = None
    elapsed_s: float
    profiled: bool = False
    step_time_s: float | None = None
    images_per_s: float | None = None


@group
class EpochTraining(Record):
    """The training of one epoch: means over its steps and over the models."""

    epoch: int = figure()
    epochs: int
    step: int = figure()
    complete: bool = figure()
    epoch_time_s: float = figure("time/epoch_s")
    train_time_s: float = figure()
    data_wait_s: float = figure("time/data_wait_s")
    eval_time_s: float = figure()
    images: int = figure()
    images_per_s: float | None = figure("throughput/images_per_s")
    images_per_s_per_device: float | None = figure("throughput/images_per_s_per_device")
    mfu: float | None = figure()
    profiled_steps: int = figure()
    train_loss: float = figure("train/epoch_loss")
    train_top1: float | None = optional("train/epoch_top1")
    train_top1_std: float | None = optional()
    train_top1_min: float | None = optional()
    train_top1_max: float | None = optional()
    train_dice: float | None = optional("train/epoch_dice")
    train_dice_std: float | None = optional()
    train_dice_min: float | None = optional()
    train_dice_max: float | None = optional()
    train_models: list[dict[str, Any]] | None = None


@group
class Evaluation(Record):
    """The figures of an evaluation: means over the models, spread where there are several."""

    eval_loss: float | None = optional("eval/loss")
    eval_top1: float | None = optional("eval/top1")
    eval_top5: float | None = optional("eval/top5")
    eval_top1_tta: float | None = optional("eval/top1_tta")
    eval_dice: float | None = optional("eval/dice")
    eval_iou: float | None = optional("eval/iou")
    eval_pixel_accuracy: float | None = optional("eval/pixel_accuracy")
    eval_dice_per_image: float | None = optional("eval/dice_per_image")
    eval_top1_std: float | None = optional()
    eval_top1_min: float | None = optional()
    eval_top1_max: float | None = optional()
    eval_dice_std: float | None = optional()
    eval_dice_min: float | None = optional()
    eval_dice_max: float | None = optional()
    eval_models: list[dict[str, Any]] | None = None
    eval_count: int | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Evaluation, EpochTraining):
    """One epoch: training, and the evaluation where one followed.

    `complete` is False where max_steps cut the epoch short or steps were profiled: profiled steps
    are in neither times nor images. `elapsed_s` counts from the run's start to the evaluation's
    end.
    """

    kind = "epoch"
    learning_rate: float | None = figure()
    loss_scale: float | None = optional()
    skipped_steps: int | None = optional()
    loss_scale_models: list[dict[str, Any]] | None = None
    peak_memory_bytes: int | None = figure("memory/peak_bytes")
    process_memory_bytes: int | None = figure()
    elapsed_s: float = figure()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSummary(Utilization, Evaluation, Summary):
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
