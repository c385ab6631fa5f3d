"""Splits that stay encoded: what is on disk is read and decoded example by example, when needed."""

import dataclasses
import os
import stat
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jaxbench.data.images.decode import (
    NUM_WINDOW_DRAWS,
    CorruptImageError,
    Image,
    centre_window,
    draw_window,
)


class Source(Protocol):
    """Encoded images by number."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[bytes, int]:
        """Returns an encoded image and its label. Raises CorruptImageError, or OSError."""

    def name(self, index: int) -> str:
        """What a person finds the example by."""

    def files(self) -> Sequence[str]:
        """The files that hold the examples."""


@dataclasses.dataclass(frozen=True)
class Files:
    """Image files and their labels."""

    paths: Sequence[str]
    labels_N: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[bytes, int]:
        # Half the time of `open`, which makes a buffer that is not needed here.
        # Non-blocking: a pipe by an image's name must not hold the run for ever.
        file = os.open(self.paths[index], os.O_RDONLY | os.O_NONBLOCK)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise CorruptImageError("not an ordinary file")
            content = os.read(file, found.st_size)
        finally:
            os.close(file)
        return content, int(self.labels_N[index])

    def name(self, index: int) -> str:
        return self.paths[index]

    def files(self) -> Sequence[str]:
        return self.paths


@dataclasses.dataclass(frozen=True)
class TfdsExamples:
    """Examples of a TFDS split in ArrayRecord, their images left encoded."""

    records: Any  # what tfds.data_source(..., decoders={"image": SkipDecoding()}) returns
    split: str
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: int) -> tuple[bytes, int]:
        try:
            example = self.records[index]
        except Exception as error:  # whatever the readers below raise for corrupt files
            raise CorruptImageError(" ".join(str(error).split())[:200]) from error
        return example["image"], int(example["label"])

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"

    def files(self) -> Sequence[str]:
        return self.paths


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """A split whose images are decoded as they are needed.

    Attributes:
      source: the encoded examples.
      image_shape: (height, width, 3), to which each is brought.
      num_examples: only the first so many.
    """

    source: Source
    image_shape: tuple[int, int, int]
    num_examples: int

    def __len__(self) -> int:
        return self.num_examples

    def files(self) -> Sequence[str]:
        """The files that hold it: no more than its examples where each has its own."""
        files = self.source.files()
        return files[: len(self)] if len(files) == len(self.source) else files

    def checksum(self) -> int:
        """Of the examples' names, wherever they lie; the images are not read."""
        found = 0
        for index in range(len(self)):
            parts = self.source.name(index).split(os.sep)[-2:]  # class and file
            found = zlib.crc32("/".join(parts).encode(errors="surrogateescape"), found)
        return found

    def first(self, num_examples: int) -> "EncodedSplit":
        """Returns the first so many examples, all of them for 0."""
        count = min(num_examples or len(self), len(self))
        return dataclasses.replace(self, num_examples=count)

    def decode(
        self,
        index: int,
        draws: list[float] | None,
        out_HxWx3: np.ndarray,
        *,
        random_crop: bool = False,
        flip: bool = False,
    ) -> int:
        """Reads one example into `out_HxWx3`, uint8; returns its label.

        Args:
          index: its place in the split.
          draws: the example's, from `ExampleDraws`; None varies nothing.
          random_crop: crop a random part, not the centre.
          flip: mirror half of the images.

        Raises:
          CorruptImageError: it cannot be read or decoded.
        """
        try:
            content, label = self.source.read(index)
        except OSError as error:
            raise CorruptImageError(error.strerror or str(error)) from error
        image = Image(content)
        window = centre_window(*image.size, *out_HxWx3.shape[:2])
        mirrored = False
        if draws is not None:
            mirrored = flip and draws[0] < 0.5
            if random_crop:
                window = draw_window(draws[1:], *image.size)
        image.decode(window, out_HxWx3, mirrored=mirrored)
        return label


class ExampleDraws:
    """What the examples of an epoch are varied by: each one's own, whoever decodes it and when.

    An object belongs to one thread.
    """

    def __init__(self, seed: int, epoch: int):
        # Counter-based: nothing has to be drawn before it. Setting the counter takes a tenth of
        # the time that a new generator takes.
        self._bits = np.random.Philox(key=[seed, epoch])
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def of(self, index: int) -> list[float]:
        """Returns an example's draws, even in [0, 1): whether to mirror it, then its window."""
        self._state["state"]["counter"][3] = index
        self._bits.state = self._state
        return self._generator.random(1 + NUM_WINDOW_DRAWS).tolist()
