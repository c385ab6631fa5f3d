"""What an experiment is: typed dataclasses, and the checks that need neither device nor data.

The fields are plain and mutable while the command line is applied to them; `Config.validate` is
called once after that, and nothing changes a config later.
"""

import dataclasses
import math
import typing
from typing import Any

from jaxbench.errors import BadInput, nearest


def choice(default: str, *others: str) -> Any:
    """A string field that takes `default` or one of `others`."""
    return dataclasses.field(default=default, metadata={"choices": (default, *others)})


def number(default: Any, *, low: float, high: float = math.inf) -> Any:
    """A number field (or tuple of numbers) whose values lie within [low, high]."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """Base of the model configurations; each lives beside its network in `jaxbench/models`."""

    def validate(self) -> None:
        """Raises BadInput for values that no network can be built from."""

    def create(self, *, num_classes: int, dtype: Any, param_dtype: Any, norm_axis: str | None):
        """Builds the flax module.

        Args:
          num_classes: K, the width of the logits.
          dtype: what the network computes in; its logits come back in at least float32.
          param_dtype: what parameters and batch-norm statistics are stored in.
          norm_axis: the mesh axis over which batch norm averages, or None for per-device.
        """
        raise TypeError(f"{type(self).__name__} does not say how to create its network")

    def num_init_images(self) -> int:
        """How many training images `parameters_from_images` looks at; 0 where it is not asked."""
        return 0

    def parameters_from_images(self, images_NxHxWxC: Any) -> dict[str, Any]:
        """Returns parameters that follow from images, nested as flax has them; the rest are drawn.

        Args:
          images_NxHxWxC: the first training images, normalised as in the step, float32 in NumPy.
        """
        raise TypeError(f"{type(self).__name__} does not say what follows from images")

    def trainable_epochs(self) -> dict[str, float]:
        """Parameters that do not learn to the end, by path (`stem/kernel`): for how many epochs.

        Their rate falls linearly to 0 over these, whatever the schedule; 0: they never change.
        """
        return {}


@dataclasses.dataclass(kw_only=True)
class DataConfig:
    """Where the images come from and how they are varied."""

    source: str = choice("digits", "tfds", "cifar10_batches", "npz", "folder", "synthetic")
    # How images reach the devices. resident: they lie there, whole, and are cut and mirrored in the
    # step. stream: the host prepares each batch and sends it.
    feed: str = choice("resident", "stream")
    # stream: threads that prepare batches (0: one for each core), and how many batches are kept
    # ready on the devices.
    num_threads: int = number(0, low=0, high=256)
    # stream, images decoded as they are needed: processes that do it for training, `num_threads`
    # in each; 0 leaves it to threads of this process.
    num_workers: int = number(0, low=0, high=256)
    prefetch_batches: int = number(2, low=1, high=64)
    # The TFDS builder's name, such as "cifar10" or "cifar10:3.0.2".
    name: str = ""
    # tfds: the folder that holds `cifar10/3.0.2/`; cifar10_batches: the folder that holds
    # `data_batch_1`; npz: the file; folder: what holds `train/<class>/*.JPEG` and its like.
    path: str = ""
    train_split: str = "train"
    eval_split: str = "test"
    # Only the first so many examples of a split; 0 takes all.
    train_examples: int = number(0, low=0)
    eval_examples: int = number(0, low=0)
    # What the experiment is made for: (height, width, channels) and the number of classes. The
    # data must be so; synthetic images are made so.
    image_shape: tuple[int, ...] = number((32, 32, 3), low=1)
    num_classes: int = number(10, low=2)
    # Random crop: pad so many pixels on each side, cut the original size out of it; 0 is off.
    crop_padding: int = number(0, low=0)
    # What the padding holds: the image reflected at its edge, or black.
    padding_mode: str = choice("reflect", "black")
    # Cut a random window of 8 to 100 % of the area out of each training image and resize it, as is
    # usual for ImageNet; streamed from a folder or TFDS, decoded as they are needed.
    random_resized_crop: bool = False
    # stream: go on without so many corrupt images, named in the record; the next one ends the run.
    max_corrupt: int = number(0, low=0)
    # stream, images decoded as they are needed. memory: encoded images are read once, into the
    # host's memory. resized: smaller copies are made once in `cache_dir` (default
    # ~/.cache/jaxbench/images), JPEGs of quality `cache_quality` whose shorter side has
    # `cache_side` pixels.
    cache: str = choice("none", "memory", "resized")
    cache_dir: str = ""
    cache_side: int = number(256, low=8)
    cache_quality: int = number(95, low=1, high=100)
    # Mirror left to right with probability 1/2.
    flip: bool = False
    # random: drawn anew in each epoch. alternating: drawn for the first epoch, from then on each
    # image is mirrored in every other one (Jordan 2024), so that two epochs show both of its sides.
    flip_order: str = choice("random", "alternating")
    # Shift each image by up to so many grey levels (of 256), up or down; 0 is off.
    brightness: float = number(0.0, low=0, high=255)
    # Stretch each image's contrast by a factor between these two; (1,1) is off.
    contrast: tuple[float, ...] = number((1.0, 1.0), low=0, high=100)
    # What brings pixels to mean 0 and deviation 1: the training set's by channel, or each image's
    # own (whitening).
    standardization: str = choice("dataset", "per_image")

    # Fields that only one feed reads.
    _STREAM_ONLY: typing.ClassVar[tuple[str, ...]] = (
        "num_threads",
        "num_workers",
        "prefetch_batches",
        "random_resized_crop",
        "max_corrupt",
        "cache",
    )
    _RESIZED_ONLY: typing.ClassVar[tuple[str, ...]] = ("cache_dir", "cache_side", "cache_quality")

    def validate(self) -> None:
        """Raises BadInput where the fields do not go together."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in self._STREAM_ONLY:
            if self.feed != "stream" and getattr(self, name) != defaults[name]:
                raise BadInput(
                    f"data.{name}={getattr(self, name)} does nothing with data.feed={self.feed!r}; "
                    "it goes with data.feed=stream"
                )
        if self.flip_order != "random" and not self.flip:
            raise BadInput(
                f"data.flip_order={self.flip_order!r} does nothing with data.flip=False; it goes "
                "with data.flip=True"
            )
        if self.random_resized_crop and self.source not in ("folder", "tfds"):
            raise BadInput(
                f"data.random_resized_crop=True with data.source={self.source!r}: it is for "
                "images decoded as they are needed, data.source=folder or tfds"
            )
        encoded = self.random_resized_crop or (self.source == "folder" and self.feed == "stream")
        if self.cache != "none" and not encoded:
            raise BadInput(
                f"data.cache={self.cache!r}: it is for images decoded as they are needed; those of "
                f"data.source={self.source!r} lie decoded in memory"
            )
        if self.flip_order != "random" and encoded:
            raise BadInput(
                f"data.flip_order={self.flip_order!r} with images decoded as they are needed: "
                "those are mirrored at random"
            )
        for name in self._RESIZED_ONLY:
            if self.cache != "resized" and getattr(self, name) != defaults[name]:
                raise BadInput(
                    f"data.{name}={getattr(self, name)!r} does nothing with "
                    f"data.cache={self.cache!r}; it goes with data.cache=resized"
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
        if self.crop_padding and encoded:
            raise BadInput(
                f"data.crop_padding={self.crop_padding} with images decoded as they are needed: "
                "data.random_resized_crop varies those"
            )
        if encoded and self.image_shape[-1:] != (3,):
            raise BadInput(
                f"data.image_shape={self.image_shape}: images decoded as they are needed have "
                "3 channels"
            )
        if self.path and self.source in ("digits", "synthetic"):
            raise BadInput(
                f"data.path={self.path!r} does nothing with data.source={self.source!r}; "
                "give data.source=tfds, cifar10_batches, npz or folder with it"
            )
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
    # sgd, nesterov, lars, muon.
    momentum: float = number(0.9, low=0, high=1)
    # adam, adamw: decay of the running mean and of the running square.
    b1: float = number(0.9, low=0, high=1)
    b2: float = number(0.999, low=0, high=1)
    # adadelta: decay of its running squares.
    rho: float = number(0.95, low=0, high=1)
    # adam, adamw, adadelta.
    eps: float = number(1e-8, low=0)
    # muon orthogonalises the momentum of all kernels but the head's by so many Newton-Schulz
    # iterations, and keeps each kernel's norm; what else there is takes Nesterov steps with
    # `sgd_momentum`, and it alone decays.
    newton_schulz_steps: int = number(5, low=1, high=20)
    sgd_momentum: float = number(0.9, low=0, high=1)
    # An L2 penalty added to the gradient, as torch.optim.SGD does; adamw and lars take the decay
    # out of the parameters in their own way.
    weight_decay: float = number(0.0, low=0)
    # share: `weight_decay` is the share of a parameter that goes in a step at its full rate,
    # however large that is (before momentum, which repeats it).
    weight_decay_mode: str = choice("coupled", "decoupled")
    # What decays: every parameter, or the kernels and not batch norm's parameters and biases.
    weight_decay_on: str = choice("all", "kernels")
    schedule: str = choice("constant", "step", "cosine", "linear", "one_cycle", "triangle")
    # step: after each of these epochs the rate is multiplied by `decay_factor`.
    decay_epochs: tuple[int, ...] = number((), low=1)
    decay_factor: float = number(0.1, low=0, high=1)
    # one_cycle, triangle: the share of all steps in which the rate rises.
    pct_start: float = number(0.3, low=0, high=1)
    # triangle: the shares of the full rate that it begins and ends with.
    start_factor: float = number(0.0, low=0, high=1)
    end_factor: float = number(0.0, low=0, high=1)
    # The rate rises linearly from 0 over so many epochs; one_cycle, triangle have their rise.
    warmup_epochs: float = number(0.0, low=0)

    # Which fields belong to which choice: one that was set and would do nothing is an error.
    _BELONGS: typing.ClassVar[dict[str, tuple[str, tuple[str, ...]]]] = {
        "momentum": ("name", ("sgd", "nesterov", "lars", "muon")),
        "newton_schulz_steps": ("name", ("muon",)),
        "sgd_momentum": ("name", ("muon",)),
        "weight_decay_mode": ("name", ("sgd", "nesterov", "muon")),
        "b1": ("name", ("adam", "adamw")),
        "b2": ("name", ("adam", "adamw")),
        "rho": ("name", ("adadelta",)),
        "eps": ("name", ("adam", "adamw", "adadelta")),
        "pct_start": ("schedule", ("one_cycle", "triangle")),
        "start_factor": ("schedule", ("triangle",)),
        "end_factor": ("schedule", ("triangle",)),
        "warmup_epochs": ("schedule", ("constant", "step", "cosine", "linear")),
    }

    def validate(self, epochs: int) -> None:
        """Raises BadInput where the fields do not go together, for a run of so many epochs."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, (selector, needed) in self._BELONGS.items():
            value, chosen = getattr(self, name), getattr(self, selector)
            if value != defaults[name] and chosen not in needed:
                raise BadInput(
                    f"optimizer.{name}={value} does nothing with optimizer.{selector}={chosen!r}; "
                    f"it goes with {', '.join(needed)}"
                )
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

    # Set by the lookup to what followed --experiment=; it names the runs folder.
    name: str = ""
    seed: int = number(0, low=0, high=2**32 - 1)
    # How many local devices take part; 0 takes all.
    num_devices: int = number(0, low=0)
    # Two spellings of the same computation.
    parallelism: str = choice("pmap", "shard_map")

    def validate(self) -> None:
        """Raises BadInput for the first field whose value is not allowed."""
        _validate_fields(self, prefix="")


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
    # Always the global batch: all that one model sees in a step, over all its devices.
    batch_size: int = number(128, low=1)
    # together: one model, its batch dealt out to the devices. independent: every device trains a
    # model of its own, with the seeds seed, seed + 1 ..., and nothing is exchanged.
    replicas: str = choice("data_parallel", "independent")
    # Each device works through its share in so many parts and adds up their gradients: a batch
    # that does not fit in memory at once. Batch norm then sees one part at a time.
    gradient_accumulation_steps: int = number(1, low=1)
    # Global batch of the evaluation; 0 takes batch_size. Any size: the last batch is padded.
    eval_batch_size: int = number(0, low=0)
    epochs: int = number(1, low=1)
    # End after so many training steps, whatever `epochs` says; 0 is off. Schedules are unchanged.
    max_steps: int = number(0, low=0)
    # Evaluate after every so many epochs, and after the last.
    eval_every_epochs: int = number(1, low=1)
    # Also evaluate the mean of the outputs for each test image, its mirror image and, with
    # mirror_translate, both moved by a pixel up and left, and down and right: a figure of its own.
    test_time_augmentation: str = choice("none", "mirror", "mirror_translate")
    # The share of the target that is spread evenly over all classes, in training.
    label_smoothing: float = number(0.0, low=0, high=1)
    # What the network computes in. Parameters, batch-norm statistics, logits and loss are fp32
    # under fp32, bf16 and fp16; fp16 has its loss scaled, for GPUs without bf16 units; fp64 is for
    # checking.
    precision: str = choice("fp32", "bf16", "fp16", "fp64")
    # What the backward pass makes again rather than keep in memory. norms: all but the outputs of
    # convolutions and dense layers, and batch norm's statistics. XLA plans less memory for a GPU
    # then, and more for a CPU.
    remat: str = choice("none", "norms")
    # Statistics over each device's share, or over the whole global batch.
    batch_norm: str = choice("local", "sync")
    # One `step` record in metrics.jsonl covers so many steps.
    log_every_steps: int = number(10, low=1)
    # Print a line for each of those records, and keep its steps' time and rate.
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
        """R: how many models train at once on so many devices."""
        return num_devices if self.replicas == "independent" else 1

    def seeds(self, num_devices: int) -> tuple[int, ...]:
        """Returns seeds_R, one for each model."""
        return tuple((self.seed + model) % 2**32 for model in range(self.num_models(num_devices)))

    def num_steps(self, steps_per_epoch: int) -> int:
        """Returns how many training steps the whole run takes."""
        steps = self.epochs * steps_per_epoch
        return min(steps, self.max_steps or steps)

    @property
    def global_eval_batch(self) -> int:
        return self.eval_batch_size or self.batch_size


def _validate_fields(config: Any, prefix: str) -> None:
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = prefix + field.name
        if dataclasses.is_dataclass(value):
            _validate_fields(value, prefix=name + ".")
            continue
        if not _fits(value, hints[field.name]):
            raise BadInput(f"{name}={value!r}: must be {describe_type(hints[field.name])}")
        if value == () and field.default != ():
            raise BadInput(f"{name}=(): must hold at least one number")
        choices = field.metadata.get("choices")
        if choices and value not in choices:
            raise BadInput(
                f"{name}={value!r}: must be one of {', '.join(choices)}"
                + nearest(str(value), choices)
            )
        if "range" in field.metadata:
            low, high = field.metadata["range"]
            for item in value if isinstance(value, tuple) else (value,):
                # Written so that nan fails it too.
                if not low <= item <= high or item == math.inf:
                    limit = f"at least {low}" if high == math.inf else f"within [{low}, {high}]"
                    raise BadInput(f"{name}={value}: must be {limit}")


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        item_hint = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(item, item_hint) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def describe_type(hint: Any) -> str:
    """Returns what a value of this type looks like, in words for an error line."""
    if typing.get_origin(hint) is tuple:
        items = describe_type(typing.get_args(hint)[0]).removeprefix("a ")
        return f"{items}s in parentheses, such as (30,60)"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def overridable(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns {dotted field path: type} of everything `--experiment.FIELD=` may set."""
    types = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            types |= overridable(value, prefix=prefix + field.name + ".")
        elif prefix + field.name != "name":
            types[prefix + field.name] = hints[field.name]
    return types
