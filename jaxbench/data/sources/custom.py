"""A custom data set: any sources with `__len__` and `__getitem__`, read into memory.

Grain's, PyTorch's, Hugging Face's and TFDS's sets are such sources.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.config.custom import describe_error
from jaxbench.config.data import is_channels_first
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.errors import BadInput

_PROGRESS_S = 5.0


def load(
    data: DataConfig, *, masks: bool = False, progress: Callable[[str], None], **unused: Any
) -> Dataset:
    """Read both splits of `data.load`.

    An example is (image, label) or a dict with `image` and `label`. Images are uint8, PIL's or
    NumPy's, or numbers within `data.value_range`, which become the nearest of 256 levels; those of
    shape (H, W) get a channel. Labels are whole numbers or one-hot; masks have shape (H, W) or
    (H, W, 1), 0 being the background.

    Raises:
      BadInput: the function or a source fails, or examples are not what the experiment is made for;
        the message names the first that is not.
    """
    load: Any = data.load  # `DataConfig.validate` refuses None
    name = load.__name__
    try:
        sources = load()
    except Exception as error:
        raise BadInput(describe_error(f"data.load ({name}) fails", error)) from error
    limits = {data.train_split: data.train_examples, data.eval_split: data.eval_examples}
    for split in limits:
        source = sources.get(split) if isinstance(sources, Mapping) else None
        if not all(callable(getattr(source, m, None)) for m in ("__len__", "__getitem__")):
            raise BadInput(
                f"data.load: {name} returned a {type(sources).__name__}, expected a dict with "
                f"{' and '.join(map(repr, limits))}, sources with __len__ and __getitem__"
            )

    def read(split: str, source: Any, limit: int) -> Split:
        count, shape = min(len(source), limit or len(source)), tuple(data.image_shape)
        check_fits_in_memory(f"data.load, {split}", count * math.prod(shape))
        images_NxHxWxC = np.zeros((count, *shape), np.uint8)
        labels_Nx = np.zeros((count, *shape[:2]), np.uint8) if masks else np.zeros(count, np.int32)
        watch = Stopwatch()
        for index in range(count):
            try:
                pair = source[index]
                image, label = (pair["image"], pair["label"]) if isinstance(pair, Mapping) else pair
                images_NxHxWxC[index] = _image(image, data)
                labels_Nx[index] = (_mask if masks else _label)(np.asarray(label), data)
            except BadInput as mismatch:
                raise BadInput(f"data.load: {split}[{index}]: {mismatch}") from mismatch
            except Exception as error:
                raise BadInput(describe_error(f"data.load: {split}[{index}]", error)) from error
            if watch.elapsed_s() > _PROGRESS_S:
                watch = Stopwatch()
                progress(f"read {index + 1:,} of {count:,} examples of {split}")
        return Split(images_NxHxWxC, labels_Nx)

    train, test = (read(split, sources[split], limit) for split, limit in limits.items())
    return Dataset(name, train, test, num_classes=data.num_classes)


def _image(image: Any, data: DataConfig) -> np.ndarray:
    """Return image_HxWxC in uint8, of what NumPy reads: PIL's images and PyTorch's tensors, too."""
    if getattr(image, "mode", None) in ("P", "PA"):
        raise BadInput("the image is PIL's of a palette, expected convert('RGB') or ('L')")
    image, shape, (low, high) = np.asarray(image), tuple(data.image_shape), data.value_range
    if image.ndim == 2:
        image = image[..., None]
    if image.shape != shape:
        advice = f"; set --experiment.data.image_shape='{image.shape}' if all have it"
        if is_channels_first(image.shape):
            advice = "; convert: image = np.moveaxis(np.asarray(image), 0, -1)"
        raise BadInput(
            f"the image has shape {image.shape}, expected (height, width, channels) {shape}"
            + advice * (image.ndim == 3)
        )
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind != "f":
        advice = ""
        if image.dtype.kind in "iu" and 0 <= image.min() <= image.max() <= 255:
            advice = "; convert: image = np.asarray(image).astype(np.uint8)"
        raise BadInput(f"the image is {image.dtype}, expected uint8 or float{advice}")
    # Written so that nan fails it too.
    if not (image.min() >= low and image.max() <= high):
        raise BadInput(
            f"the image leaves data.value_range={data.value_range}: it has "
            f"{image.min():.4g} to {image.max():.4g}"
        )
    return np.rint((image.astype(np.float64) - low) * (255 / (high - low))).astype(np.uint8)


def _label(label: np.ndarray, data: DataConfig) -> int:
    classes = data.num_classes
    if label.shape == (classes,) and np.count_nonzero(label) == 1 and label.max() == 1:
        return int(label.argmax())
    if label.shape in ((), (1,)) and label.dtype.kind in "iu" and 0 <= label.item() < classes:
        return label.item()
    value = f" {label.item()!r}" if label.size == 1 else ""
    raise BadInput(
        f"the label{value} is {label.dtype} of shape {label.shape}, expected a whole number from 0 "
        f"to {classes - 1}, or one-hot of data.num_classes={classes}"
    )


def _mask(mask: np.ndarray, data: DataConfig) -> np.ndarray:
    shape = tuple(data.image_shape[:2])
    if mask.dtype.kind not in "biuf" or mask.shape not in (shape, (*shape, 1)):
        raise BadInput(f"the mask is {mask.dtype} of shape {mask.shape}, expected {shape}")
    return mask.reshape(shape) != 0
