"""What an experiment is: typed dataclasses, and the checks that need neither device nor data.

The command line sets the fields one by one. `Config.validate` is called once after that, and
nothing changes a config later.
"""

import dataclasses
import typing
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.fields import choice, number, plain, validate_fields


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """Base of the model configurations; each lives beside its network in `jaxbench/models`."""

    def validate(self) -> None:
        """Raise BadInput for values that no network can be built from."""

    def create(self, *, num_classes: int, dtype: Any, param_dtype: Any, norm_axis: str | None):
        """Build the flax module.

        Args:
          num_classes: K, the width of the logits.
          dtype: what the network computes in; its logits come back in at least float32.
          param_dtype: what parameters and batch-norm statistics are stored in.
          norm_axis: the mesh axis over which batch norm averages, or None for per-device.
        """
        raise TypeError(f"{type(self).__name__} does not say how to create its network")

    def num_init_images(self) -> int:
        """Return how many training images `parameters_from_images` needs; 0 leaves it out."""
        return 0

    def parameters_from_images(self, images_NxHxWxC: Any) -> dict[str, Any]:
        """Return parameters computed from images, nested as flax has them; the rest are drawn.

        Args:
          images_NxHxWxC: the first N = `num_init_images()` training images, normalised as in the
            step, float32 in NumPy.
        """
        raise TypeError(f"{type(self).__name__} computes no parameters from images")

    def trainable_epochs(self) -> dict[str, float]:
        """Return, by path (`stem/kernel`), how many epochs a parameter trains if not all of them.

        Its rate falls linearly to 0 over these epochs, whatever the schedule. A parameter with 0
        epochs never changes.
        """
        return {}


@dataclasses.dataclass(kw_only=True)
class DataConfig:
    """Where the images come from and how they are varied."""

    source: str = choice("digits", "tfds", "cifar10_batches", "npz", "folder", "synthetic")
    # How images reach the devices. resident: all of them are placed there once, and the step crops
    # and mirrors them. stream: the host prepares each batch and sends it.
    feed: str = choice("resident", "stream")
    # Threads that prepare batches (0: one for each core).
    num_threads: int = number(0, low=0, high=256, only_with=("feed", "stream"))
    # For images decoded on the fly: worker processes that decode training images, `num_threads` in
    # each; 0 leaves that to threads of this process.
    num_workers: int = number(0, low=0, high=256, only_with=("feed", "stream"))
    # Batches that are kept ready on the devices.
    prefetch_batches: int = number(2, low=1, high=64, only_with=("feed", "stream"))
    # The TFDS builder's name, such as "cifar10" or "cifar10:3.0.2".
    name: str = ""
    # tfds: the folder that holds `cifar10/3.0.2/`; cifar10_batches: the folder that holds
    # `data_batch_1`; npz: the file; folder: the folder that holds `train/<class>/*.JPEG` and the
    # evaluation split.
    path: str = ""
    train_split: str = "train"
    eval_split: str = "test"
    # How many examples of a split are used, the first ones; 0 uses all.
    train_examples: int = number(0, low=0)
    eval_examples: int = number(0, low=0)
    # What the experiment is made for: (height, width, channels) and the number of classes. The
    # data must have them; synthetic images are generated with them.
    image_shape: tuple[int, ...] = number((32, 32, 3), low=1)
    num_classes: int = number(10, low=2)
    # Random crop: pad by this many pixels on each side and cut the original size out; 0 is off.
    crop_padding: int = number(0, low=0)
    # What the padding holds: the image reflected at its edge, or black.
    padding_mode: str = choice("reflect", "black")
    # Crop 8 to 100 % of each training image's area at random and resize it, as is usual for
    # ImageNet. Images of a folder or of TFDS are then decoded on the fly.
    random_resized_crop: bool = plain(False, only_with=("feed", "stream"))
    # How many corrupt images a run skips and records; one more ends it.
    max_corrupt: int = number(0, low=0, only_with=("feed", "stream"))
    # For images decoded on the fly. memory: encoded images are read once, into the host's memory.
    # resized: smaller copies are made once in `cache_dir` (default ~/.cache/jaxbench/images), JPEGs
    # of quality `cache_quality` whose shorter side has `cache_side` pixels.
    cache: str = choice("none", "memory", "resized", only_with=("feed", "stream"))
    cache_dir: str = plain("", only_with=("cache", "resized"))
    cache_side: int = number(256, low=8, only_with=("cache", "resized"))
    cache_quality: int = number(95, low=1, high=100, only_with=("cache", "resized"))
    # Mirror left to right with probability 1/2.
    flip: bool = False
    # random: drawn anew in each epoch. alternating: drawn for the first epoch, from then on each
    # image is mirrored in every other one (Jordan 2024), so that two epochs show both of its sides.
    flip_order: str = choice("random", "alternating", only_with=("flip", True))
    # Shift each image by up to this many grey levels (of 256), up or down; 0 is off.
    brightness: float = number(0.0, low=0, high=255)
    # Stretch each image's contrast by a factor between these two; (1,1) is off.
    contrast: tuple[float, ...] = number((1.0, 1.0), low=0, high=100)
    # What brings pixels to mean 0 and deviation 1: the training set's by channel, or each image's
    # own (whitening).
    standardization: str = choice("dataset", "per_image")

    @property
    def decodes_on_the_fly(self) -> bool:
        """Whether images stay encoded until a batch needs them."""
        return self.random_resized_crop or (self.source == "folder" and self.feed == "stream")

    def validate(self) -> None:
        """Raise BadInput where the fields contradict each other."""
        if self.path and self.source in ("digits", "synthetic"):
            raise BadInput(
                f"data.path={self.path!r} does nothing with data.source={self.source!r}; "
                "give data.source=tfds, cifar10_batches, npz or folder with it"
            )
        if self.random_resized_crop and self.source not in ("folder", "tfds"):
            raise BadInput(
                f"data.random_resized_crop=True with data.source={self.source!r}: it is for "
                "images decoded on the fly, data.source=folder or tfds"
            )
        if self.decodes_on_the_fly:
            self._check_decoding_on_the_fly()
        elif self.cache != "none":
            raise BadInput(
                f"data.cache={self.cache!r}: it is for images decoded on the fly; those of "
                f"data.source={self.source!r} are held in memory, decoded"
            )
        self._check_images()

    def _check_decoding_on_the_fly(self) -> None:
        if self.flip_order != "random":
            raise BadInput(
                f"data.flip_order={self.flip_order!r} with images decoded on the fly: those are "
                "mirrored at random"
            )
        if self.crop_padding:
            raise BadInput(
                f"data.crop_padding={self.crop_padding} with images decoded on the fly: "
                "data.random_resized_crop varies those"
            )
        if self.image_shape[-1:] != (3,):
            raise BadInput(
                f"data.image_shape={self.image_shape}: images decoded on the fly have 3 channels"
            )
        if self.cache == "memory" and self.num_workers:
            raise BadInput(
                f"data.num_workers={self.num_workers} with data.cache=memory: each process would "
                "hold all images; threads (data.num_workers=0) share them"
            )
        if self.cache == "resized" and self.cache_side < min(self.image_shape[:2]):
            raise BadInput(
                f"data.cache_side={self.cache_side}: images are {self.image_shape[0]}x"
                f"{self.image_shape[1]}, so at least {min(self.image_shape[:2])}"
            )

    def _check_images(self) -> None:
        shape = self.image_shape
        if len(shape) != 3:
            raise BadInput(f"data.image_shape={shape}: must be (height, width, channels)")
        if self.crop_padding >= min(shape[:2]):
            raise BadInput(
                f"data.crop_padding={self.crop_padding}: images are {shape[0]}x{shape[1]}, "
                f"so at most {min(shape[:2]) - 1}"
            )
        if len(self.contrast) != 2 or self.contrast[0] > self.contrast[1]:
            raise BadInput(
                f"data.contrast={self.contrast}: must be (lowest,highest) factor, such as (0.8,1.2)"
            )


@dataclasses.dataclass(kw_only=True)
class OptimizerConfig:
    """The update rule; `learning_rate` holds for `base_batch_size` and is scaled linearly."""

    name: str = choice("sgd", "nesterov", "adam", "adamw", "adadelta", "lars", "muon")
    learning_rate: float = number(0.1, low=0)
    # Of biases and batch norm's parameters, and of the last layer's kernel (`head`); scaled as
    # `learning_rate` is, which holds for them where these are 0.
    bias_learning_rate: float = number(0.0, low=0)
    head_learning_rate: float = number(0.0, low=0)
    base_batch_size: int = number(128, low=1)
    momentum: float = number(
        0.9, low=0, high=1, only_with=("name", "sgd", "nesterov", "lars", "muon")
    )
    # Decay of the running mean and of the running square.
    b1: float = number(0.9, low=0, high=1, only_with=("name", "adam", "adamw"))
    b2: float = number(0.999, low=0, high=1, only_with=("name", "adam", "adamw"))
    # Decay of Adadelta's running squares.
    rho: float = number(0.95, low=0, high=1, only_with=("name", "adadelta"))
    eps: float = number(1e-8, low=0, only_with=("name", "adam", "adamw", "adadelta"))
    # Muon orthogonalises the momentum of all kernels but the head's with this many Newton-Schulz
    # iterations, and keeps each kernel's norm. All other parameters take Nesterov steps with
    # `sgd_momentum`, and they alone decay.
    newton_schulz_steps: int = number(5, low=1, high=20, only_with=("name", "muon"))
    sgd_momentum: float = number(0.9, low=0, high=1, only_with=("name", "muon"))
    # An L2 penalty added to the gradient, as torch.optim.SGD does; adamw and lars take the decay
    # out of the parameters in their own way.
    weight_decay: float = number(0.0, low=0)
    # decoupled: a step at the full rate takes the fraction `weight_decay` off a parameter, however
    # high that rate is (before momentum, which repeats it).
    weight_decay_mode: str = choice(
        "coupled", "decoupled", only_with=("name", "sgd", "nesterov", "muon")
    )
    # What decays: every parameter, or the kernels and not batch norm's parameters and biases.
    weight_decay_on: str = choice("all", "kernels")
    schedule: str = choice("constant", "step", "cosine", "linear", "one_cycle", "triangle")
    # step: after each of these epochs the rate is multiplied by `decay_factor`.
    decay_epochs: tuple[int, ...] = number((), low=1)
    decay_factor: float = number(0.1, low=0, high=1)
    # The fraction of all steps in which the rate rises.
    pct_start: float = number(0.3, low=0, high=1, only_with=("schedule", "one_cycle", "triangle"))
    # The fractions of the full rate at the first and at the last step.
    start_factor: float = number(0.0, low=0, high=1, only_with=("schedule", "triangle"))
    end_factor: float = number(0.0, low=0, high=1, only_with=("schedule", "triangle"))
    # Epochs in which the rate rises linearly from 0.
    warmup_epochs: float = number(
        0.0, low=0, only_with=("schedule", "constant", "step", "cosine", "linear")
    )

    def validate(self, epochs: int) -> None:
        """Raise BadInput where the fields contradict each other in a run of this many epochs."""
        if list(self.decay_epochs) != sorted(set(self.decay_epochs)):
            raise BadInput(
                f"optimizer.decay_epochs={self.decay_epochs}: epochs must rise from one to the next"
            )
        if self.schedule == "step" and not self.decay_epochs:
            raise BadInput("optimizer.schedule='step' needs optimizer.decay_epochs, e.g. (60,120)")
        if self.warmup_epochs > epochs:
            raise BadInput(
                f"optimizer.warmup_epochs={self.warmup_epochs}: must be at most epochs={epochs}"
            )


@dataclasses.dataclass(kw_only=True)
class Experiment:
    """What every experiment has; `Config` is the one that trains a network."""

    # The entry point's mode that runs it.
    job: typing.ClassVar[str] = ""

    # What followed --experiment=, set by the registry; it names the runs folder.
    name: str = ""
    seed: int = number(0, low=0, high=2**32 - 1)
    # How many devices take part, of all processes; 0 takes all.
    num_devices: int = number(0, low=0)
    # Two spellings of the same computation.
    parallelism: str = choice("pmap", "shard_map")

    def validate(self) -> None:
        """Raise BadInput for the first field whose value is not allowed."""
        validate_fields(self)


@dataclasses.dataclass(kw_only=True)
class Config(Experiment):
    """An experiment that trains a network."""

    job: typing.ClassVar[str] = "train"

    model: ModelConfig
    # classification: one class for each image (top-1); segmentation: foreground or background for
    # each pixel (Dice).
    task: str = choice("classification", "segmentation")
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    # Always the global batch: all images that one model sees in a step, over all its devices.
    batch_size: int = number(128, low=1)
    # data_parallel: one model, its batch split over the devices. independent: every device trains a
    # model of its own, with the seeds seed, seed + 1 ..., and nothing is exchanged.
    replicas: str = choice("data_parallel", "independent")
    # Each device splits its batch into this many parts and adds up their gradients, for a batch
    # that does not fit in memory at once. Batch norm then sees one part at a time.
    gradient_accumulation_steps: int = number(1, low=1)
    # Global batch of the evaluation; 0 takes batch_size. Any size: the last batch is padded.
    eval_batch_size: int = number(0, low=0)
    epochs: int = number(1, low=1)
    # End after this many training steps, whatever `epochs` says; 0 is off. Schedules are unchanged.
    max_steps: int = number(0, low=0)
    # Evaluate once in this many epochs, and after the last.
    eval_every_epochs: int = number(1, low=1)
    # Also evaluate the mean of the outputs for each test image, its mirror image and, with
    # mirror_translate, both moved by a pixel up and left, and down and right: a figure of its own.
    test_time_augmentation: str = choice("none", "mirror", "mirror_translate")
    # The fraction of the training target that is spread evenly over all classes.
    label_smoothing: float = number(0.0, low=0, high=1)
    # What the network computes in. Parameters, batch-norm statistics, logits and loss are fp32
    # under fp32, bf16 and fp16; fp16 has its loss scaled, for GPUs without bf16 units; fp64 is for
    # checking.
    precision: str = choice("fp32", "bf16", "fp16", "fp64")
    # What the backward pass recomputes rather than keeps in memory. norms: all but the outputs of
    # convolutions and dense layers, and batch norm's statistics. XLA then plans less memory for a
    # GPU, and more for a CPU.
    remat: str = choice("none", "norms")
    # Statistics over each device's batch, or over the whole global batch.
    batch_norm: str = choice("local", "sync")
    # How many steps one `step` record in metrics.jsonl covers.
    log_every_steps: int = number(10, low=1)
    # Print a line for each of those records, and record its steps' time and rate.
    step_log: bool = False

    def validate(self) -> None:
        super().validate()
        self.model.validate()
        self.optimizer.validate(self.epochs)
        self.data.validate()
        if self.task == "segmentation":
            if self.data.source not in ("tfds", "npz", "synthetic"):
                raise BadInput(
                    f"task='segmentation' with data.source={self.data.source!r}: masks come with "
                    "data.source=tfds, npz or synthetic"
                )
            if self.data.num_classes != 2:
                raise BadInput(
                    f"data.num_classes={self.data.num_classes}: task='segmentation' tells 2 apart, "
                    "foreground and background"
                )
        if self.test_time_augmentation != "none" and self.task != "classification":
            raise BadInput(
                f"test_time_augmentation={self.test_time_augmentation!r} with task={self.task!r}: "
                "it goes with classification"
            )
        if self.replicas == "independent" and self.batch_norm == "sync":
            raise BadInput(
                "batch_norm='sync' with replicas='independent': models that exchange nothing "
                "cannot share statistics; batch_norm=local goes with it"
            )

    def num_models(self, num_devices: int) -> int:
        """Return R, the number of models that train at once on this many devices."""
        return num_devices if self.replicas == "independent" else 1

    def seeds(self, num_devices: int) -> tuple[int, ...]:
        """Return seeds_R, one for each model."""
        return tuple((self.seed + model) % 2**32 for model in range(self.num_models(num_devices)))

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return how many training steps the whole run takes."""
        steps = self.epochs * steps_per_epoch
        return min(steps, self.max_steps or steps)
