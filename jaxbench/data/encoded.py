"""Splits that stay encoded: what is on disk is read and decoded example by example, when needed."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jaxbench.data.decode import Damaged, centre_window, decode_window, draw_window, image_size


class Source(Protocol):
    """Encoded images by number."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[bytes, int]:
        """Returns an encoded image and its label. Raises Damaged, or OSError."""

    def name(self, index: int) -> str:
        """What a person finds the example by."""


@dataclasses.dataclass(frozen=True)
class Files:
    """Image files and their labels."""

    paths: Sequence[str]
    labels_N: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[bytes, int]:
        with open(self.paths[index], "rb") as file:
            return file.read(), int(self.labels_N[index])

    def name(self, index: int) -> str:
        return self.paths[index]


@dataclasses.dataclass(frozen=True)
class TfdsExamples:
    """Examples of a TFDS split in ArrayRecord, their images left encoded."""

    records: Any  # what tfds.data_source(..., decoders={"image": SkipDecoding()}) returns
    split: str

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: int) -> tuple[bytes, int]:
        try:
            example = self.records[index]
        except Exception as error:  # whatever the readers below raise for damaged files
            raise Damaged(" ".join(str(error).split())[:200]) from error
        return example["image"], int(example["label"])

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"


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

    def first(self, num_examples: int) -> "EncodedSplit":
        """Returns the first so many examples, all of them for 0."""
        count = min(num_examples or len(self), len(self))
        return dataclasses.replace(self, num_examples=count)

    def decode(
        self,
        index: int,
        generator: np.random.Generator | None,
        out_HxWx3: np.ndarray,
        *,
        random_window: bool = False,
        flip: bool = False,
    ) -> int:
        """Reads one example into `out_HxWx3`, uint8; returns its label.

        Args:
          index: its place in the split.
          generator: what is drawn from; None varies nothing.
          random_window: cut out a random window, not the centre.
          flip: mirror half of the images.

        Raises:
          Damaged: it cannot be read or decoded.
        """
        try:
            content, label = self.source.read(index)
        except OSError as error:
            raise Damaged(error.strerror or str(error)) from error
        size = image_size(content)
        window = centre_window(*size, *out_HxWx3.shape[:2])
        mirrored = False
        if generator is not None:
            mirrored = flip and generator.random() < 0.5
            if random_window:
                window = draw_window(generator, *size)
        decode_window(content, window, out_HxWx3, mirrored=mirrored)
        return label


def example_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """What an example's variation is drawn from: its own, whoever decodes it and when."""
    # Counter-based: nothing has to be drawn before it.
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, index]))
