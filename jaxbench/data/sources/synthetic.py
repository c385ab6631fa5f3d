"""Synthetic images for machines without a data set: a random pattern for each class, and noise.

With masks: a bright disc on noise. All can be learned, so a run on them still shows a falling loss.
"""

import math
from typing import Any

import numpy as np
import psutil

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.errors import BadInput

_DEFAULT_TRAIN, _DEFAULT_EVAL = 2048, 512


def load(data: DataConfig, *, masks: bool = False, **unused: Any) -> Dataset:
    """Generate a data set, always the same one.

    Args:
      data: `image_shape`, `num_classes`, `train_examples` and `eval_examples`; 0 examples makes
        2,048 and 512.
      masks: whether the labels are masks of shape (height, width).

    Raises:
      BadInput: the images do not fit in memory.
    """
    shape = data.image_shape
    wanted_bytes = (data.train_examples + data.eval_examples) * math.prod(shape)
    if wanted_bytes > psutil.virtual_memory().available // 4:
        raise BadInput(
            f"data.train_examples={data.train_examples}, "
            f"data.eval_examples={data.eval_examples}: synthetic images of "
            f"{wanted_bytes / 2**30:,.1f} GiB do not fit in memory"
        )
    generator = np.random.Generator(np.random.Philox(key=0))
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
        train=split(data.train_examples or _DEFAULT_TRAIN),
        eval=split(data.eval_examples or _DEFAULT_EVAL),
        num_classes=data.num_classes,
    )


def _discs(generator: np.random.Generator, num_examples: int, shape: tuple[int, int, int]) -> Split:
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
