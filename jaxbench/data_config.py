"""Which data an experiment trains on, and how it reaches the devices."""

import dataclasses
import math
from typing import Any

from jaxbench.custom import Code, HoldsCode
from jaxbench.errors import BadInput
from jaxbench.fields import choice, custom, number, plain


@dataclasses.dataclass(kw_only=True)
class DataConfig(HoldsCode):
    """Where the images come from and how they are augmented."""

    source: str = choice(
        "digits",
        "tfds",
        "cifar10_batches",
        "npz",
        "folder",
        "text",
        "synthetic",
        "custom",
        help="Where the images come from. digits: scikit-learn's handwritten digits. tfds: a "
        "prepared TensorFlow data set; cifar10 and mnist are fetched if missing. cifar10_batches: "
        "CIFAR-10's binary or Python version. npz: a NumPy file. folder: JPEG files in a folder "
        "for each class. text: the bytes of a file, or of Python's documentation, as tokens. "
        "synthetic: generated images or sequences. custom: what `data.load` returns.",
    )
    load: Code | None = custom(
        only_with={"source": ["custom"]},
        help="A function that returns {split: source}, set in an experiment file. A source is a "
        "random-access sequence of (image, label) pairs or of {`image`, `label`}. Images are "
        "uint8, or numbers within `data.value_range`, which are rounded to 256 levels.",
    )
    value_range: tuple[float, ...] = number(
        (0.0, 1.0),
        low=-math.inf,
        only_with={"source": ["custom"]},
        help="Lowest and highest value of a pixel, for images that are not uint8.",
    )
    feed: str = choice(
        "resident",
        "stream",
        help="How images reach the devices. resident: each device holds the whole data set, and "
        "the step crops and flips. stream: the host prepares each batch and sends it.",
    )
    num_threads: int = number(
        0,
        high=256,
        only_with={"feed": ["stream"]},
        help="Threads that prepare batches; 0 takes one for each core.",
    )
    num_workers: int = number(
        0,
        high=256,
        only_with={"feed": ["stream"]},
        help="Worker processes of `data.num_threads` threads each, for training images decoded on "
        "the fly; 0 decodes in the main process.",
    )
    prefetch_batches: int = number(
        2,
        low=1,
        high=64,
        only_with={"feed": ["stream"]},
        help="Batches kept ready on the devices.",
    )
    name: str = plain("", help='Name of the TFDS builder, such as "cifar10" or "cifar10:3.0.2".')
    path: str = plain(
        "",
        only_with={"source": ["tfds", "cifar10_batches", "npz", "folder", "text"]},
        help="Where the data is. tfds: the folder of `cifar10/3.0.2/`, or into which a set is "
        "fetched (default: `~/.cache/jaxbench/data`). cifar10_batches: the folder of "
        "`data_batch_1.bin` or `data_batch_1`. npz: the file. folder: the folder of "
        "`train/<class>/*.JPEG` and the evaluation split. text: the file, empty for Python's.",
    )
    download: bool = plain(
        True,
        only_with={"source": ["tfds"]},
        help="Fetch a data set that is missing, unless `JAXBENCH_DOWNLOAD=0` is set.",
    )
    train_split: str = plain("train", help="Name of the split to train on.")
    eval_split: str = plain("test", help="Name of the split to evaluate on.")
    train_examples: int = number(
        0, help="Use only the first N examples of the training split; 0 uses all."
    )
    eval_examples: int = number(
        0, help="Use only the first N examples of the evaluation split; 0 uses all."
    )
    image_shape: tuple[int, ...] = number(
        (32, 32, 3),
        low=1,
        only_with={"sequence_length": [0]},
        help="Height, width (pixels) and channels of an image, which the data must have.",
    )
    sequence_length: int = number(
        0,
        help="Tokens of a sequence, for `task=language_model` with data.source=text or synthetic; "
        "0 is for images. A sequence counts as one image.",
    )
    num_classes: int = number(
        10,
        low=2,
        help="Number of classes of the data; the size of the vocabulary of sequences (text: 256).",
    )
    crop_padding: int = number(
        0,
        only_with={"sequence_length": [0], "decodes_on_the_fly": [False]},
        help="Random crop: pad each side by this many pixels, then cut the original size out at "
        "random; 0 is off. Not for images decoded on the fly.",
    )
    padding_mode: str = choice(
        "reflect",
        "black",
        help="Padding of a random crop. reflect: the image reflected at its edge. black: zeros.",
    )
    random_resized_crop: bool = plain(
        False,
        only_with={"decodes_on_the_fly": [True]},
        help="Crop 8 to 100 % of each training image's area at random and resize the crop. Images "
        "of a streamed folder or TFDS set are then decoded on the fly.",
    )
    max_corrupt: int = number(
        0,
        only_with={"feed": ["stream"]},
        help="Corrupt images that a run skips and records; one more ends the run.",
    )
    cache: str = choice(
        "none",
        "resized",
        only_with={"decodes_on_the_fly": [True]},
        help="Cache for images decoded on the fly. resized: smaller JPEGs in `data.cache_dir`.",
    )
    cache_dir: str = plain(
        "",
        only_with={"cache": ["resized"]},
        help="Folder of the smaller copies; empty takes `~/.cache/jaxbench/images`.",
    )
    cache_side: int = number(
        256,
        low=8,
        only_with={"cache": ["resized"]},
        help="Shorter side of the smaller copies, in pixels.",
    )
    cache_quality: int = number(
        95,
        low=1,
        high=100,
        only_with={"cache": ["resized"]},
        help="JPEG quality of the smaller copies.",
    )
    flip: bool = plain(
        False,
        only_with={"sequence_length": [0]},
        help="Flip training images left to right with probability 1/2.",
    )
    flip_order: str = choice(
        "random",
        "alternating",
        only_with={"flip": [True], "decodes_on_the_fly": [False]},
        help="When an image is flipped. random: drawn anew in each epoch. alternating: drawn for "
        "the first epoch, then in every other epoch (Jordan 2024).",
    )
    brightness: float = number(
        0.0,
        high=255,
        only_with={"sequence_length": [0]},
        help="Shift each training image by up to this many of 256 grey levels; 0 is off.",
    )
    contrast: tuple[float, ...] = number(
        (1.0, 1.0),
        high=100,
        only_with={"sequence_length": [0]},
        help="Stretch each training image's contrast by a factor between these two; (1,1) is off.",
    )
    rand_augment: tuple[float, ...] = number(
        (0, 0),
        high=10,
        only_with={"sequence_length": [0]},
        help="RandAugment: (operations for each training image, their magnitude up to 10), such "
        "as (2,10). (0,0) is off.",
    )
    mixup: float = number(
        0.0,
        only_with={"sequence_length": [0]},
        help="Mix each training image and label with its neighbour's in the batch (Zhang et al. "
        "2018). This is a of Beta(a, a), of which the first one's weight is drawn; 0 is off.",
    )
    standardization: str = choice(
        "dataset",
        "per_image",
        only_with={"sequence_length": [0]},
        help="What brings pixels to mean 0 and deviation 1. dataset: the training set's channels "
        "(ImageNet's for a folder and for images decoded on the fly). per_image: each image.",
    )

    def __post_init__(self):
        if self.load is not None and self.source == "digits":
            self.source = "custom"

    @property
    def example_shape(self) -> tuple[int, ...]:
        """(height, width, channels) of an image, or (tokens,) of a sequence."""
        return (self.sequence_length,) if self.sequence_length else self.image_shape

    @property
    def example_dtype(self) -> str:
        """The type of pixels, or that of tokens: bytes where the vocabulary fits."""
        return "int32" if self.sequence_length and self.num_classes > 256 else "uint8"

    def synthetic(
        self, train_examples: int = 256, eval_examples: int = 100, **fields: Any
    ) -> "DataConfig":
        """Return it with a few generated examples, held in memory, and with these fields."""
        fields |= {"train_examples": train_examples, "eval_examples": eval_examples}
        fields |= {"source": "synthetic", "feed": "resident", "random_resized_crop": False}
        return dataclasses.replace(self, **fields)

    @property
    def decodes_on_the_fly(self) -> bool:
        """Whether images stay encoded until a batch needs them."""
        if self.feed == "resident" or self.source not in ("folder", "tfds"):
            return False
        return self.random_resized_crop or (self.source == "folder" and self.feed == "stream")

    def validate(self) -> None:
        """Raise BadInput if the fields contradict each other."""
        if self.source == "custom" and self.load is None:
            raise BadInput(
                "data.source='custom': the experiment file must give DataConfig(load=...)"
            )
        if len(self.value_range) != 2 or self.value_range[0] >= self.value_range[1]:
            raise BadInput(
                f"data.value_range={self.value_range}: must be (lowest,highest), such as (0,1)"
            )
        if self.sequence_length and self.source not in ("text", "synthetic"):
            raise BadInput(
                f"data.sequence_length={self.sequence_length} with data.source={self.source!r}: "
                "sequences of tokens come with data.source=text or synthetic"
            )
        if self.source == "text" and not self.sequence_length:
            raise BadInput("data.source='text' needs data.sequence_length, such as 256")
        shape, operations = self.image_shape, self.rand_augment[0]
        if len(shape) != 3:
            raise BadInput(f"data.image_shape={shape}: must be (height, width, channels)")
        height, width, channels = shape
        if self.decodes_on_the_fly and channels != 3:
            raise BadInput(f"data.image_shape={shape}: images decoded on the fly have 3 channels")
        if self.cache == "resized" and self.cache_side <= min(height, width):
            raise BadInput(
                f"data.cache_side={self.cache_side}: images are {height}x{width}, so at least "
                f"{min(height, width) + 1}: a copy of that size itself would not be cropped"
            )
        if self.crop_padding >= min(height, width):
            raise BadInput(
                f"data.crop_padding={self.crop_padding}: images are {height}x{width}, so at most "
                f"{min(height, width) - 1}"
            )
        if len(self.rand_augment) != 2 or operations != int(operations):
            raise BadInput(
                f"data.rand_augment={self.rand_augment}: must be (operations,magnitude), such as "
                "(2,10)"
            )
        if operations and channels != 3:
            raise BadInput(
                f"data.rand_augment={self.rand_augment}: it is for images of 3 channels, these "
                f"have {channels}"
            )
        if len(self.contrast) != 2 or self.contrast[0] > self.contrast[1]:
            raise BadInput(
                f"data.contrast={self.contrast}: must be (lowest,highest) factor, such as (0.8,1.2)"
            )
