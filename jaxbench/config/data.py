"""Which data an experiment trains on, and how it reaches the devices."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxbench.config.custom import Code, HoldsCode
from jaxbench.config.fields import choice, custom, number, plain
from jaxbench.errors import BadInput
from jaxbench.paths import user_path

# Public data sets: training examples, image shape as the network gets it, classes, and what they
# are called in a config.
PUBLIC_SETS = {
    "cifar10": (50_000, (32, 32, 3), 10, "cifar10"),
    "mnist": (60_000, (28, 28, 1), 10, "mnist"),
    "imagenet": (1_281_167, (224, 224, 3), 1000, "imagenet2012"),
}
# The sources that have names, and splits. A synthetic one keeps those of the data it stands for.
_NAMED = ["tfds", "synthetic"]
_SPLIT = [*_NAMED, "folder", "custom"]
# Where the data is and how fast it is read: each process may have other values.
_OF_A_HOST: dict[str, Any] = {"may_differ": "processes"}
# Of usual images.
_MOST_CHANNELS = 4


def is_channels_first(shape: Sequence[int]) -> bool:
    """Return whether an image's shape looks like (channels, height, width)."""
    return len(shape) == 3 and shape[0] <= _MOST_CHANNELS < min(shape[1:])


@dataclasses.dataclass(kw_only=True)
class DataConfig(HoldsCode):
    """Where the images come from and how they are augmented.

    Attributes:
      source: Where the data comes from. tfds: TensorFlow Datasets; cifar10 and mnist are fetched if
        missing. folder: one of images for each class. text: bytes. custom: `data.load`.
      load: Function that returns {split: sequence of (image, label)}, in an experiment file.
      value_range: Lowest and highest value of a pixel, for images that are not uint8.
      feed: resident: each device holds all images. stream: the host prepares and sends batches.
      num_threads: Threads that prepare batches; 0 takes one for each core.
      num_workers: Processes that decode training images on the fly; 0 decodes in the main process.
      prefetch_batches: Batches kept ready on the devices.
      name: Name of the TFDS builder, such as "cifar10" or "cifar10:3.0.2".
      path: File (npz, text) or folder of the data: tfds's of `cifar10/3.0.2/`, folder's of
        `train/<class>/*.JPEG`. Empty: TFDS's default or `~/.cache/jaxbench/data`; Python's text.
      download: Fetch a data set that is missing, unless `JAXBENCH_DOWNLOAD=0` is set.
      train_split: Name of the split to train on.
      eval_split: Name of the split to evaluate on.
      train_examples: Use the first N training examples; 0 uses all.
      eval_examples: Use the first N evaluation examples; 0 uses all.
      image_shape: Height, width (pixels) and channels of an image, which the data must have.
      sequence_length: Tokens of a sequence, which counts as one image; 0 is for images.
      num_classes: Number of classes; the size of the vocabulary of sequences (text: 256).
      crop_padding: Random crop: pad each side by N pixels, cut the size out at random; 0 is off.
      padding_mode: Padding of a random crop. reflect: the image reflected at its edge. black:
        zeros.
      random_resized_crop: Crop 8 to 100 % of a training image, decoded on the fly, at random and
        resize that.
      cache: Cache for images decoded on the fly. resized: smaller JPEGs in `data.cache_dir`.
      cache_dir: Folder of the smaller copies; empty takes `~/.cache/jaxbench/images`.
      cache_side: Shorter side of the smaller copies, in pixels.
      cache_quality: JPEG quality of the smaller copies.
      flip: Flip training images left to right with probability 1/2.
      flip_order: random: drawn in each epoch. alternating: drawn once, then every other epoch.
      brightness: Shift each training image by up to this many of 256 grey levels; 0 is off.
      contrast: Stretch each training image's contrast by a factor between these two; (1,1) is off.
      rand_augment: RandAugment: (operations per image, magnitude up to 10), as (2,10). (0,0) is
        off.
      mixup: Mix neighbouring images and labels by a weight drawn from Beta(a, a); 0 is off.
      standardization: Whose mean and deviation normalise pixels: the training set's (ImageNet's for
        a folder and for images decoded on the fly), or each image's.
    """

    source: str = choice(
        "digits", "tfds", "cifar10_batches", "npz", "folder", "text", "synthetic", "custom"
    )
    load: Code | None = custom(only_with={"source": ["custom"]})
    value_range: tuple[float, ...] = number(
        (0.0, 1.0), low=-math.inf, only_with={"source": ["custom"]}
    )
    feed: str = choice("resident", "stream")
    num_threads: int = number(0, high=256, **_OF_A_HOST, only_with={"feed": ["stream"]})
    num_workers: int = number(0, high=256, **_OF_A_HOST, only_with={"decodes_on_the_fly": [True]})
    prefetch_batches: int = number(2, low=1, high=64, **_OF_A_HOST, only_with={"feed": ["stream"]})
    name: str = plain("", only_with={"source": _NAMED})
    path: str = plain(
        "", **_OF_A_HOST, only_with={"source": ["tfds", "cifar10_batches", "npz", "folder", "text"]}
    )
    download: bool = plain(True, **_OF_A_HOST, only_with={"source": ["tfds"]})
    train_split: str = plain("train", only_with={"source": _SPLIT})
    eval_split: str = plain("test", only_with={"source": _SPLIT})
    train_examples: int = number(0)
    eval_examples: int = number(0)
    image_shape: tuple[int, ...] = number((32, 32, 3), low=1, only_with={"sequence_length": [0]})
    sequence_length: int = number(0)
    num_classes: int = number(10, low=2)
    crop_padding: int = number(0, only_with={"sequence_length": [0], "decodes_on_the_fly": [False]})
    padding_mode: str = choice("reflect", "black", only_with={"crops": [True]})
    random_resized_crop: bool = plain(False, only_with={"decodes_on_the_fly": [True]})
    cache: str = choice("none", "resized", only_with={"decodes_on_the_fly": [True]})
    cache_dir: str = plain("", **_OF_A_HOST, only_with={"cache": ["resized"]})
    cache_side: int = number(256, low=8, only_with={"cache": ["resized"]})
    cache_quality: int = number(95, low=1, high=100, only_with={"cache": ["resized"]})
    flip: bool = plain(False, only_with={"sequence_length": [0]})
    flip_order: str = choice(
        "random", "alternating", only_with={"flip": [True], "decodes_on_the_fly": [False]}
    )
    brightness: float = number(0.0, high=255, only_with={"sequence_length": [0]})
    contrast: tuple[float, ...] = number((1.0, 1.0), high=100, only_with={"sequence_length": [0]})
    rand_augment: tuple[float, ...] = number((0, 0), high=10, only_with={"sequence_length": [0]})
    mixup: float = number(0.0, only_with={"sequence_length": [0]})
    standardization: str = choice("dataset", "per_image", only_with={"sequence_length": [0]})

    @property
    def example_shape(self) -> tuple[int, ...]:
        """(height, width, channels) of an image, or (tokens,) of a sequence."""
        return (self.sequence_length,) if self.sequence_length else self.image_shape

    @property
    def example_dtype(self) -> str:
        """The type of pixels, or that of tokens: bytes if the vocabulary fits."""
        return "int32" if self.sequence_length and self.num_classes > 256 else "uint8"

    def synthetic(
        self, train_examples: int = 256, eval_examples: int = 100, **fields: Any
    ) -> "DataConfig":
        """Return it with a few generated examples, held in memory, and with these fields."""
        fields |= {"train_examples": train_examples, "eval_examples": eval_examples}
        fields |= {"source": "synthetic", "feed": "resident", "random_resized_crop": False}
        return dataclasses.replace(self, **fields)

    @property
    def crops(self) -> bool:
        return self.crop_padding > 0

    @property
    def decodes_on_the_fly(self) -> bool:
        """Whether images stay encoded until a batch needs them."""
        if self.feed == "resident" or self.source not in ("folder", "tfds"):
            return False
        return self.random_resized_crop or (self.source == "folder" and self.feed == "stream")

    def validate(self) -> None:
        """Raise BadInput if the fields contradict each other, or name no local path."""
        # A custom function may read anything.
        for path in (self.path if self.source != "custom" else "", self.cache_dir):
            user_path(path or "")
        shape, operations, problem = self.image_shape, self.rand_augment[0], ""
        height, width, channels = shape if len(shape) == 3 else (0, 0, 0)
        if self.source == "custom" and self.load is None:
            problem = "source='custom': the experiment file must give DataConfig(load=...)"
        elif len(self.value_range) != 2 or self.value_range[0] >= self.value_range[1]:
            problem = f"value_range={self.value_range}: must be (lowest,highest), such as (0,1)"
        elif self.sequence_length and self.source not in ("text", "synthetic"):
            problem = f"sequence_length={self.sequence_length}: needs data.source=text or synthetic"
        elif self.source == "text" and not self.sequence_length:
            problem = "source='text' needs data.sequence_length, such as 256"
        elif len(shape) != 3 or is_channels_first(shape):
            problem = f"image_shape={shape}: must be (height, width, channels)"
        elif self.decodes_on_the_fly and channels != 3:
            problem = f"image_shape={shape}: images decoded on the fly have 3 channels"
        elif self.cache == "resized" and self.cache_side <= min(height, width):
            problem = f"cache_side={self.cache_side}: must be larger than images, {height}x{width}"
        elif self.crop_padding >= min(height, width):
            problem = (
                f"crop_padding={self.crop_padding}: must be smaller than images, {height}x{width}"
            )
        elif len(self.rand_augment) != 2 or operations != int(operations):
            problem = f"rand_augment={self.rand_augment}: must be (operations,magnitude), as (2,10)"
        elif operations and channels != 3:
            problem = f"rand_augment={self.rand_augment}: it is for 3 channels, not {channels}"
        elif len(self.contrast) != 2 or self.contrast[0] > self.contrast[1]:
            problem = f"contrast={self.contrast}: must be (lowest,highest), such as (0.8,1.2)"
        if problem:
            raise BadInput(f"data.{problem}")
