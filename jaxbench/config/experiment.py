"""What an experiment is: typed dataclasses, and the checks that need neither device nor data.

The command line sets the fields one by one. `Config.validate` is called once after that, and
nothing changes a config later.
"""

import dataclasses
import math
import typing

from jaxbench.config.custom import HoldsCode, custom_task, model_config
from jaxbench.config.data import DataConfig
from jaxbench.config.fields import choice, fraction, number, plain, validate_fields, without_unused
from jaxbench.config.model import ModelConfig as ModelConfig
from jaxbench.config.optimizer import OptimizerConfig
from jaxbench.errors import BadInput

# A step counts the examples of a batch in 32 bits.
_MOST_IMAGES = 2**31 - 1


@dataclasses.dataclass(kw_only=True)
class Experiment(HoldsCode):
    """The fields of every experiment; `Config` is the one that trains a network.

    Attributes:
      name: What followed `--experiment=`. The registry sets it; it names the runs folder.
      seed: Seed of the initial parameters, of the order of the examples, of augmentation and of
        dropout.
      num_devices: Devices that take part, over all processes; 0 takes all.
      parallelism: How the step is distributed over the devices. pmap, shard_map: by that function
        of JAX, with all parameters on every device. fsdp: parameters and the optimizer's arrays are
        split over the devices, and gathered where the network reads them. All give the same
        numbers.
    """

    # The mode that runs it if no --mode says otherwise.
    default_mode: typing.ClassVar[str] = ""

    name: str = plain("")
    seed: int = number(0, high=2**32 - 1)
    num_devices: int = number(0, may_differ="resumes")
    parallelism: str = choice("pmap", "shard_map", "fsdp", may_differ="resumes")

    def validate(self) -> None:
        """Raise BadInput for the first field whose value is not allowed."""
        validate_fields(self)

    def for_all_devices(self) -> "Experiment":
        """Return a copy for all devices of a target, which pmap cannot compile for."""
        parallelism = "shard_map" if self.parallelism == "pmap" else self.parallelism
        return dataclasses.replace(self, num_devices=0, parallelism=parallelism)


@dataclasses.dataclass(kw_only=True)
class Config(Experiment):
    """An experiment that trains a network.

    Attributes:
      task: What the network predicts. classification: one class for each image (top-1).
        segmentation: foreground or background for each pixel (Dice). language_model: each next
        token of a sequence (top-1 and, of bytes, bits per byte). denoising: the noise in noisy
        latents (a loss alone). An experiment file may give a custom object (`jaxbench.tasks.Task`).
      batch_size: Global batch: images that one model sees in a step, over all its devices. The
        learning rate is scaled with it.
      replicas: What the devices train. data_parallel: one model, its batch split over the devices.
        independent: one model on each device, with the seeds `seed`, `seed + 1` ..., and nothing
        exchanged; `batch_size` is then the batch of each model.
      gradient_accumulation_steps: Parts N into which each device splits its batch; their gradients
        are added up. For a batch that does not fit in memory at once. Batch norm then sees one part
        at a time, and its running averages move N times in a step.
      eval_batch_size: Global batch of the evaluation, in images; 0 takes `batch_size`. Any size:
        the last batch is padded, and every example counts once.
      epochs: Epochs to train; with a fraction such as 7.5 the last one is cut short, and schedules
        end there.
      max_steps: Stop after this many training steps, whatever `epochs` says; 0 is off. Schedules
        stay those of `epochs`.
      eval_every_epochs: Evaluate after every N epochs, and after the last.
      test_time_augmentation: Also evaluate the mean output over views of each test image, as a
        metric of its own (`eval_top1_tta`). mirror: the image and its mirror image.
        mirror_translate: also both moved by one pixel up and left, and down and right.
      test_time_augmentation_fraction: Fraction of the test images, those of which the network is
        least sure, that are evaluated in views; the others count as they are. Of each device's part
        of an evaluation batch, so it depends on `eval_batch_size`.
      label_smoothing: Fraction of the training target that is spread evenly over all classes.
      precision: What the network computes in. Parameters, batch-norm statistics, logits and loss
        are fp32 under fp32, bf16 and fp16. fp16: with a loss scale, for GPUs without bf16 units.
        fp64: everything in fp64, for checking. fp8: as bf16, but the dense layers of transformer
        blocks multiply 8-bit operands, scaled by their largest value.
      remat: What the backward pass recomputes instead of keeping in memory. save_dots: all but the
        outputs of convolutions and dense layers and the statistics of batch norm. XLA then plans
        less memory for a GPU, and more for a CPU. blocks: each transformer block, from its input.
      batch_norm: What batch norm's statistics are taken over. local: each device's batch. sync: the
        global batch.
      log_every_steps: Steps that one `step` record in metrics.jsonl covers.
      step_log: Print a line for each `step` record, and record the steps' time and rate.
    """

    default_mode: typing.ClassVar[str] = "train"

    # A custom flax module class or function becomes a ModelConfig, a custom task a `Code`.
    model: ModelConfig = dataclasses.field(metadata={"custom": model_config})
    task: str = choice(
        "classification", "segmentation", "language_model", "denoising", custom=custom_task
    )
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    batch_size: int = number(128, low=1, high=_MOST_IMAGES)
    replicas: str = choice("data_parallel", "independent")
    gradient_accumulation_steps: int = number(1, low=1)
    eval_batch_size: int = number(0, high=_MOST_IMAGES)
    epochs: float = number(1, low=1)
    max_steps: int = number(0, may_differ="resumes")
    eval_every_epochs: int = number(1, low=1)
    test_time_augmentation: str = choice("none", "mirror", "mirror_translate")
    test_time_augmentation_fraction: float = number(
        1.0, low=0.01, high=1, only_with={"test_time_augmentation": ["mirror", "mirror_translate"]}
    )
    label_smoothing: float = fraction(0.0)
    precision: str = choice("fp32", "bf16", "fp16", "fp64", "fp8")
    remat: str = choice("none", "save_dots", "blocks")
    batch_norm: str = choice("local", "sync")
    log_every_steps: int = number(10, low=1, may_differ="resumes")
    step_log: bool = plain(False, may_differ="resumes")

    def validate(self) -> None:
        super().validate()
        self.model.validate()
        # What has no effect contradicts nothing.
        without_unused(self.optimizer)[0].validate(self.epochs)
        data, task, problem = without_unused(self.data)[0], self.task, ""
        data.validate()
        is_text = bool(data.sequence_length)
        # Masks would stay as they were, and only some losses mix as labels do.
        image_only = {"data.mixup": data.mixup, "data.rand_augment": data.rand_augment}
        image_only["test_time_augmentation"] = self.test_time_augmentation
        image_only = [
            f"{name}={v!r}" for name, v in image_only.items() if v not in ("none", 0, (0, 0))
        ]
        masked = ("tfds", "npz", "synthetic", "custom")
        if task == "segmentation" and data.source not in masked:
            problem = f"{task=} with data.source={data.source!r}: masks need {', '.join(masked)}"
        elif task == "segmentation" and data.num_classes != 2:
            problem = f"data.num_classes={data.num_classes}: {task=} has 2, foreground, background"
        elif isinstance(task, str) and (task == "language_model") != is_text:
            problem = f"{task=}: only task=language_model takes data.sequence_length, and needs it"
        elif image_only and task != "classification":
            problem = f"{image_only[0]} with {task=}: it needs classification"
        elif self.label_smoothing and task == "denoising":
            problem = f"label_smoothing={self.label_smoothing} with {task=}: its target is noise"
        elif self.remat == "blocks" and not self.model.has_blocks:
            network = self.model.network_name
            problem = f"remat='blocks' with {network}: only transformers have blocks"
        elif self.precision == "fp8" and not self.model.has_blocks:
            network = self.model.network_name
            problem = f"precision='fp8' with {network}: only transformers have such dense layers"
        elif self.replicas == "independent" and self.parallelism == "fsdp":
            problem = "parallelism='fsdp' with replicas='independent': there is nothing to split"
        elif self.replicas == "independent" and self.batch_norm == "sync":
            problem = "batch_norm='sync' with replicas='independent': must be local"
        if problem:
            raise BadInput(problem)

    def num_models(self, num_devices: int) -> int:
        """Return R, the number of models that train at once on this many devices."""
        return num_devices if self.replicas == "independent" else 1

    def seeds(self, num_devices: int) -> tuple[int, ...]:
        """Return seeds_R, one for each model."""
        return tuple((self.seed + model) % 2**32 for model in range(self.num_models(num_devices)))

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return how many training steps the whole run takes."""
        steps = self.schedule_steps(steps_per_epoch)
        return min(steps, self.max_steps or steps)

    def schedule_steps(self, steps_per_epoch: int) -> int:
        """Return how many training steps `epochs` are, which schedules go by."""
        # Rounding errors of the product add no step.
        return math.ceil(round(self.epochs * steps_per_epoch, 6))
