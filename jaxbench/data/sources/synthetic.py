"""Synthetic images for machines without a data set: a random pattern for each class, and noise.

With masks: a bright disc on noise. Sequences: tokens that count upwards, and noise. All can be
learned, so a run on them still shows a falling loss.
"""

import math
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory

_DEFAULT_TRAIN, _DEFAULT_EVAL = 2048, 512
# Sequences count to at most this and begin again; one token in so many is drawn at random instead.
_LARGEST_COUNT, _NOISE = 64, 8


def load(data: DataConfig, *, masks: bool = False, **unused: Any) -> Dataset:
    """Generate a data set, always the same one; 0 examples makes 2,048 and 512.

    Raises:
      BadInput: the images do not fit in memory.
    """
    shape, token_bytes = data.example_shape, np.dtype(data.example_dtype).itemsize
    num_train = data.train_examples or _DEFAULT_TRAIN
    num_eval = data.eval_examples or _DEFAULT_EVAL
    # Noise has 16 bits while it is added.
    made_bytes = 2 * (num_train + num_eval) * math.prod(shape) * token_bytes
    check_fits_in_memory(f"{num_train + num_eval:,} synthetic examples", made_bytes)
    generator = np.random.Generator(np.random.Philox(key=0))
    if data.sequence_length:
        return _sequences(generator, data, num_train, num_eval)
    patterns_KxHxWxC = generator.integers(64, 192, (data.num_classes, *shape), dtype=np.int16)

    def split(num_examples):
        if masks:
            return _discs(generator, num_examples, shape)
        labels = generator.integers(0, data.num_classes, num_examples, dtype=np.int32)
        noise = generator.integers(-64, 64, (num_examples, *shape), dtype=np.int16)
        return Split((patterns_KxHxWxC[labels] + noise).astype(np.uint8), labels)

    height, width, channels = shape
    return Dataset(
        description=f"synthetic {height}x{width}x{channels}, "
        + ("discs with masks" if masks else f"{data.num_classes} classes"),
        train=split(num_train),
        eval=split(num_eval),
        num_classes=data.num_classes,
    )


def _sequences(
    generator: np.random.Generator, data: DataConfig, num_train: int, num_eval: int
) -> Dataset:
    length, vocabulary, dtype = data.sequence_length, data.num_classes, data.example_dtype

    def split(num_examples):
        shape = (num_examples, length + 1)
        count = min(vocabulary, _LARGEST_COUNT)
        first_Nx1 = generator.integers(0, count, (num_examples, 1))
        tokens = ((first_Nx1 + np.arange(length + 1)) % count).astype(dtype)
        noise = generator.integers(0, vocabulary, shape, dtype)
        tokens = np.where(generator.integers(0, _NOISE, shape, np.uint8) == 0, noise, tokens)
        return Split(tokens[:, :-1], tokens[:, 1:])

    return Dataset(
        description=f"synthetic sequences of {length} tokens, vocabulary of {vocabulary}",
        train=split(num_train),
        eval=split(num_eval),
        num_classes=vocabulary,
        statistics=None,
    )


def _discs(generator: np.random.Generator, num_examples: int, shape: tuple[int, ...]) -> Split:
    """Draw one disc an image, of a tenth to a third of its shorter side in radius."""
    height, width, _ = shape
    images = generator.integers(0, 128, (num_examples, *shape), dtype=np.uint8)
    masks = np.empty((num_examples, height, width), np.uint8)
    rows, columns = np.arange(height)[:, None], np.arange(width)
    for image, mask in zip(images, masks, strict=True):
        centre = generator.random(2) * (height, width)
        radius = (0.1 + 0.25 * generator.random()) * min(height, width)
        mask[:] = np.hypot(rows - centre[0], columns - centre[1]) <= max(radius, 1)
        image += mask[..., None] * np.uint8(100)
    return Split(images, masks)
