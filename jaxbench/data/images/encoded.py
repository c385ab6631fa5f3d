"""Splits that stay encoded: each example is read from disk and decoded on the fly."""

import contextlib
import dataclasses
import errno
import os
import resource
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbench.data.images.decode import (
    NUM_CROP_DRAWS,
    CorruptImageError,
    Image,
    draw_crop_box,
)
from jaxbench.errors import RunFailed
from jaxbench.files import open_regular

# More than any image that is decoded takes.
_MAX_BYTES = 2**30
# What tells one data set from another of its size.
_SAMPLE_NAMES, _SAMPLE_IMAGES = 1000, 16


def sample_indices(count: int, most: int) -> np.ndarray:
    """Return at most `most` of 0 ... count - 1, evenly spaced."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def read_image_file(path: str) -> bytes:
    """Return what an image file holds; raise OSError, for a pipe and a huge file, too."""
    try:
        with open_regular(path, "rb", most_bytes=_MAX_BYTES, buffering=0) as file:
            return file.read()
    except OSError as error:
        check_open_files(error)
        raise


def check_open_files(error: Exception) -> None:
    """Raise RunFailed if an error is that too many files are open: then no image is corrupt."""
    if os.strerror(errno.EMFILE) in str(error) or getattr(error, "errno", None) == errno.ENFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise RunFailed(
            f"too many open files: `ulimit -n` allows {limit}; raise it (ulimit -n 4096), or set "
            "--experiment.data.num_workers=0 --experiment.data.num_threads=1"
        ) from error


@dataclasses.dataclass(frozen=True)
class Files:
    """Image files and their labels; other sources offer the same attributes and methods."""

    files: Sequence[str]
    labels_N: np.ndarray

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an encoded image and its label; raise CorruptImageError or OSError."""
        return read_image_file(self.files[index]), int(self.labels_N[index])

    def name(self, index: int) -> str:
        """Return the example's file, or its split and number."""
        return self.files[index]


@dataclasses.dataclass(frozen=True)
class TfdsExamples:
    """Examples of a TFDS split in ArrayRecord, their images left encoded."""

    records: Any  # what tfds.data_source(..., decoders={"image": SkipDecoding()}) returns
    split: str
    files: Sequence[str]

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: int) -> tuple[bytes, int]:
        try:
            example = self.records[index]
        except Exception as error:  # TFDS and ArrayRecord raise anything for corrupt files
            check_open_files(error)
            raise CorruptImageError(" ".join(str(error).split())[:200]) from error
        return example["image"], int(example["label"])

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """A split whose images are decoded on the fly."""

    source: Any  # the encoded examples: `Files`, or what offers the same
    image_shape: tuple[int, ...]  # (height, width, 3), to which each is brought
    num_examples: int  # how many of them are used, the first ones

    def __len__(self) -> int:
        return self.num_examples

    def files(self) -> Sequence[str]:
        """Return the files that hold it: its examples' files if each is a file."""
        files = self.source.files
        return files[: len(self)] if len(files) == len(self.source) else files

    def checksum(self) -> int:
        """Return the CRC-32 of some examples' names, without their folder, and of fewer images."""
        sample = [self._short_name(index) for index in sample_indices(len(self), _SAMPLE_NAMES)]
        for index in sample_indices(len(self), _SAMPLE_IMAGES):
            with contextlib.suppress(OSError, CorruptImageError):
                content, label = self.source.read(int(index))
                sample += [content, str(label).encode()]
        return zlib.crc32(b"\0".join(sample))

    def _short_name(self, index: int) -> bytes:
        """Return an example's class and file."""
        parts = self.source.name(index).split(os.sep)[-2:]
        return "/".join(parts).encode(errors="surrogateescape")

    def first(self, num_examples: int) -> "EncodedSplit":
        """Return a split of the first `num_examples`, of all for 0."""
        count = min(num_examples or len(self), len(self))
        return dataclasses.replace(self, num_examples=count)

    def decode(
        self,
        index: int,
        draws: list[float] | None,
        out_HxWx3: np.ndarray,
        *,
        random_crop: bool,
        flip: bool,
        all_rows: bool = True,
    ) -> tuple[int, str]:
        """Decode one example into `out_HxWx3`, uint8; return its label, and libjpeg's warning.

        Its draws are from `ExampleDraws`; None varies nothing. A random crop is decoded with or
        without the rows below it, see `Image.decode_box`; all else is prepared as `centre_crop`
        says. Raise CorruptImageError if it cannot be read or decoded.
        """
        try:
            content, label = self.source.read(index)
        except OSError as error:
            raise CorruptImageError(error.strerror or str(error)) from error
        image = Image(content)
        flipped = draws is not None and flip and draws[0] < 0.5
        if draws is not None and random_crop:
            box = draw_crop_box(draws[1:], *image.size)
            image.decode_box(box, out_HxWx3, flip=flipped, all_rows=all_rows)
        else:
            image.decode_centre(out_HxWx3, flip=flipped)
        return label, image.warning


class ExampleDraws:
    """The random draws of an epoch's examples, by their index; an object belongs to one thread."""

    def __init__(self, seed: int, epoch: int):
        # Counter-based: no draw depends on earlier ones. Setting the counter takes a tenth of the
        # time that a new generator takes.
        self._bits = np.random.Philox(key=[seed, epoch])
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state
        self._state["state"]["counter"][2] = 1  # at 0 the epoch's order is drawn with this key

    def of(self, index: int) -> list[float]:
        """Return an example's draws, evenly from [0, 1): one for the flip, then the crop's."""
        self._state["state"]["counter"][3] = index
        self._bits.state = self._state
        return self._generator.random(1 + NUM_CROP_DRAWS).tolist()
