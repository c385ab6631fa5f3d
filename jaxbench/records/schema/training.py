"""What a training run records: compiled steps, training steps, epochs, its summary."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import (
    Rate,
    Record,
    Summary,
    Utilization,
    custom_metrics,
    figure,
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

    Attributes:
      function: name of the step.
      lower_s: seconds of tracing and lowering.
      compile_s: seconds of compiling; after a cache hit, of fetching the program. A training run
        compiles both steps and the initialisation at the same time (not on a GPU).
      compile_cache: compilation cache: hit, miss or off.
      memory: estimated memory (XLA) in bytes, by purpose.
      device_memory_bytes: memory of a device that JAX may use.
      xla_flops_per_device: floating-point operations of a step, by XLA's count.
      xla_bytes_per_device: bytes of memory traffic of a step, by XLA's count.
      collectives: count and bytes of each kind of collective.
      cold_compile_s, warm_compile_s: seconds without and with a program in the cache, of
        --mode=throughput.
      num_devices, device_ids, batch_size: the devices and their global batch, of --mode=scaling.
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

    Attributes:
      step: training steps done, from 1.
      epoch: epoch, from 1.
      loss: mean loss.
      top1, dice: top-1 accuracy, or Dice, on the training batches; of sequences, top-1 of the next
        token.
      top1_std, top1_min, top1_max, dice_std, dice_min, dice_max: its spread over the models.
      bits_per_byte: mean loss in bits, of sequences of bytes.
      metrics: {name: value} of the metrics of a custom task.
      models: seed and figures of each model.
      learning_rate: learning rate of the last of these steps.
      loss_scale: loss scale, under precision=fp16.
      skipped_steps: steps skipped since the start for overflowing gradients, under precision=fp16.
      loss_scale_models: seed, loss scale and skipped steps of each model.
      elapsed_s: seconds since the run's start.
      profiled: whether these steps were profiled; they have no times.
      step_time_s: seconds of a step; with `step_log`.
      images_per_s: images per second; with `step_log`.
    """

    kind = "step"
    step: int
    epoch: int
    loss: float = figure("train/loss")
    top1: float | None = figure("train/top1")
    top1_std: float | None = figure("train/top1_std")
    top1_min: float | None = figure("train/top1_min")
    top1_max: float | None = figure("train/top1_max")
    dice: float | None = figure("train/dice")
    dice_std: float | None = figure("train/dice_std")
    dice_min: float | None = figure("train/dice_min")
    dice_max: float | None = figure("train/dice_max")
    bits_per_byte: float | None = figure("train/bits_per_byte")
    metrics: dict[str, float] | None = custom_metrics("train/")
    models: list[dict[str, Any]] | None = None
    learning_rate: float = figure("train/learning_rate")
    loss_scale: float | None = figure("train/loss_scale")
    skipped_steps: int | None = figure("train/skipped_steps")
    loss_scale_models: list[dict[str, Any]] | None = None
    elapsed_s: float
    profiled: bool = False
    step_time_s: float | None = None
    images_per_s: float | None = None


@group
class EpochTraining(Record):
    """The training of one epoch: means over its steps and over the models.

    Attributes:
      epoch: epoch, from 1.
      epochs: epochs of the whole run.
      step: training steps done.
      complete: false where max_steps cut the epoch short or steps were profiled.
      epoch_time_s: `train_time_s` and `eval_time_s` together.
      train_time_s: seconds of training; compilation and profiled steps excluded.
      data_wait_s: seconds of these in which the training loop waited for data.
      eval_time_s: seconds of the evaluation, 0 without one.
      images: images trained on, or sequences; profiled steps excluded.
      images_per_s: `images` over `train_time_s`.
      images_per_s_per_device: the same for each device.
      tokens_per_s: tokens per second, of sequences.
      mfu: model FLOPs utilization at this rate.
      profiled_steps: number of profiled steps.
      train_loss: mean training loss.
      train_top1, train_dice: mean top-1 accuracy, or Dice, on the training batches.
      train_top1_std, train_top1_min, train_top1_max, train_dice_std, train_dice_min,
        train_dice_max: its spread over the models.
      train_bits_per_byte: mean training loss in bits, of sequences of bytes.
      train_metrics: {name: value} of the metrics of a custom task.
      train_models: seed and figures of each model.
    """

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
    tokens_per_s: float | None = figure("throughput/tokens_per_s")
    mfu: float | None = figure()
    profiled_steps: int = figure()
    train_loss: float = figure("train/epoch_loss")
    train_top1: float | None = figure("train/epoch_top1")
    train_top1_std: float | None = figure("train/epoch_top1_std")
    train_top1_min: float | None = figure("train/epoch_top1_min")
    train_top1_max: float | None = figure("train/epoch_top1_max")
    train_dice: float | None = figure("train/epoch_dice")
    train_dice_std: float | None = figure("train/epoch_dice_std")
    train_dice_min: float | None = figure("train/epoch_dice_min")
    train_dice_max: float | None = figure("train/epoch_dice_max")
    train_bits_per_byte: float | None = figure("train/epoch_bits_per_byte")
    train_metrics: dict[str, float] | None = custom_metrics("train/epoch_")
    train_models: list[dict[str, Any]] | None = None


@group
class Evaluation(Record):
    """The figures of an evaluation: means over the models, spread where there are several.

    Attributes:
      eval_loss: mean loss over the evaluation split.
      eval_top1, eval_top5: fraction of images whose class is the first, or among the first five, of
        the network's; of sequences, fraction of tokens that the network puts first.
      eval_top1_tta: top-1 with test-time augmentation.
      eval_dice, eval_iou, eval_pixel_accuracy: Dice, intersection over union and pixel accuracy,
        over all pixels of the split at once.
      eval_dice_per_image: mean of the images' own Dice.
      eval_top1_std, eval_top1_min, eval_top1_max, eval_dice_std, eval_dice_min, eval_dice_max:
        spread over the models.
      eval_bits_per_byte: mean loss in bits, of sequences of bytes.
      eval_metrics: {name: value} of the metrics of a custom task.
      eval_models: seed and figures of each model.
      eval_count: number of images evaluated, or of sequences.
    """

    eval_loss: float | None = figure("eval/loss")
    eval_top1: float | None = figure("eval/top1")
    eval_top5: float | None = figure("eval/top5")
    eval_top1_tta: float | None = figure("eval/top1_tta")
    eval_dice: float | None = figure("eval/dice")
    eval_iou: float | None = figure("eval/iou")
    eval_pixel_accuracy: float | None = figure("eval/pixel_accuracy")
    eval_dice_per_image: float | None = figure("eval/dice_per_image")
    eval_top1_std: float | None = figure("eval/top1_std")
    eval_top1_min: float | None = figure("eval/top1_min")
    eval_top1_max: float | None = figure("eval/top1_max")
    eval_dice_std: float | None = figure("eval/dice_std")
    eval_dice_min: float | None = figure("eval/dice_min")
    eval_dice_max: float | None = figure("eval/dice_max")
    eval_bits_per_byte: float | None = figure("eval/bits_per_byte")
    eval_metrics: dict[str, float] | None = custom_metrics("eval/")
    eval_models: list[dict[str, Any]] | None = None
    eval_count: int | None = figure()

    def evaluated(self, name: str) -> float | None:
        """Return an evaluation's figure by its task's name for it."""
        if has_field(type(self), "eval_", name):
            return getattr(self, f"eval_{name}")
        return (self.eval_metrics or {}).get(name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Evaluation, EpochTraining):
    """One epoch: training, and the evaluation where one followed.

    Attributes:
      learning_rate: learning rate of the last step.
      loss_scale: loss scale, under precision=fp16.
      skipped_steps: steps skipped since the start for overflowing gradients, under precision=fp16.
      loss_scale_models: seed, loss scale and skipped steps of each model.
      peak_memory_bytes: most memory in use on a device so far.
      process_memory_bytes: memory of the process on the host.
      elapsed_s: seconds from the run's start to the end of the evaluation.
    """

    kind = "epoch"
    learning_rate: float | None = figure()
    loss_scale: float | None = figure()
    skipped_steps: int | None = figure()
    loss_scale_models: list[dict[str, Any]] | None = None
    peak_memory_bytes: int | None = figure("memory/peak_bytes")
    process_memory_bytes: int | None = figure()
    elapsed_s: float = figure()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSummary(Utilization, Evaluation, Rate, Summary):
    """A training run. Evaluation figures are those of the last evaluation.

    Published first epochs usually include compilation, as `first_epoch_with_compile_s` does.
    Utilization is that of `images_per_s`.

    Attributes:
      steps: training steps done.
      epochs_done: epochs done.
      compile_cache: compilation cache: hit only where all programs were fetched from it.
      first_step_s: seconds of the first step, compilation excluded.
      import_s: seconds from the process's start to that of the run's clock.
      startup_s: seconds from the process's start to the end of the first step.
      first_epoch_s: seconds of the first epoch, compilation excluded.
      first_epoch_with_compile_s: `first_epoch_s` and `compile_s` together.
      median_epoch_s: median seconds of the later epochs that end with an evaluation.
      train_time_s: seconds of training, over all epochs.
      eval_time_s: seconds of evaluation, over all epochs.
      steady_epochs: number of epochs whose median `images_per_s` is: the complete ones from the
        second on.
      images_per_s_per_device: `images_per_s` of each device.
      images_per_s_whole_run: mean images per second over all training, first epoch included.
      loss_scale: loss scale at the end, under precision=fp16.
      skipped_steps: steps skipped for overflowing gradients, under precision=fp16.
      loss_scale_models: seed, loss scale and skipped steps of each model.
      best_eval_top1, best_eval_dice: best evaluation.
      best_eval_metrics: the best of these metrics.
      best_epoch: epoch of the best evaluation.
      diverged_seeds: seeds of the models that diverged, where several train.
      target_accuracy: with --target_accuracy: the accuracy, and the epochs, steps, images and
        seconds that it took; its cost includes work that was lost in kills.
      profile: steps that were profiled, and where the trace is.
      num_resumes: how often the run was resumed.
      goodput: share of `total_wall_s` that was steps whose result is in the final state.
      badput_s: seconds of the rest by cause: startup, compile, data_wait, eval, checkpoint,
        lost_work (done again after a resume), down (from a process's end to the next one's start)
        and other.
      total_wall_s: seconds from the start of the run's first process to now, all resumes included.
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
    best_eval_metrics: dict[str, float] | None = None
    best_epoch: int | None = None
    diverged_seeds: list[int] | None = None
    target_accuracy: dict[str, Any] | None = None
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
