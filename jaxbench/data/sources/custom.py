"""A data set of the user's own: any sources with `__len__` and `__getitem__`, read into memory.

Grain's, PyTorch's, Hugging Face's and TFDS's sets are such sources.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.custom import describe_error
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.errors import BadInput

_PROGRESS_S = 5.0


def load(
    data: DataConfig, *, masks: bool = False, progress: Callable[[str], None], **unused: Any
) -> Dataset:
    """Read both splits of `data.load`.

    Images are uint8, PIL's or NumPy's, or numbers within `data.value_range`, which become the
    nearest of 256 levels; those of shape (H, W) get a channel. Labels are whole numbers or one-hot;
    masks have shape (H, W) or (H, W, 1), 0 being the background.

    Raises:
      BadInput: the function or a source fails, or examples are not what the experiment is made for;
        the message names the first that is not.
    """
    name = data.load.__name__
    try:
        sources = data.load()
    except Exception as error:
        raise BadInput(describe_error(f"data.load ({name}) fails", error)) from error
    wanted = {data.train_split: data.train_examples, data.eval_split: data.eval_examples}
    if not isinstance(sources, Mapping) or not set(wanted) <= set(sources):
        found = type(sources).__name__
        if isinstance(sources, Mapping):
            found += f" with {', '.join(map(repr, sources)) or 'nothing'}"
        raise BadInput(
            f"data.load: {name} returned a {found}, expected a dict with "
            f"{' and '.join(map(repr, wanted))}"
        )
    splits = [
        _read(data, split, sources[split], limit, masks, progress)
        for split, limit in wanted.items()
    ]
    return Dataset(name, *splits, num_classes=data.num_classes)


class _Mismatch(Exception):
    """An example is not what the experiment is made for."""


def _read(
    data: DataConfig,
    split: str,
    source: Any,
    limit: int,
    masks: bool,
    progress: Callable[[str], None],
) -> Split:
    if not all(callable(getattr(source, m, None)) for m in ("__len__", "__getitem__")):
        raise BadInput(
            f"data.load: {split!r} is a {type(source).__name__}, expected a source with __len__ "
            "and __getitem__"
        )
    count, shape = min(len(source), limit or len(source)), tuple(data.image_shape)
    check_fits_in_memory(f"data.load, {split}", count * math.prod(shape))
    images_NxHxWxC = np.zeros((count, *shape), np.uint8)
    labels_Nx = np.zeros((count, *shape[:2]), np.uint8) if masks else np.zeros(count, np.int32)
    convert_label = _mask if masks else _label
    watch = Stopwatch()
    for index in range(count):
        try:
            example = source[index]
        except Exception as error:
            raise BadInput(describe_error(f"data.load: {split}[{index}]", error)) from error
        try:
            image, label = _pair(example)
            images_NxHxWxC[index] = _image(image, data)
            labels_Nx[index] = convert_label(label, data)
        except _Mismatch as mismatch:
            raise BadInput(f"data.load: {split}[{index}]: {mismatch}") from mismatch
        if watch.elapsed_s() > _PROGRESS_S:
            watch = Stopwatch()
            progress(f"read {index + 1:,} of {count:,} examples of {split}")
    return Split(images_NxHxWxC, labels_Nx)


def _pair(example: Any) -> tuple[Any, Any]:
    """Return an example's image and label."""
    if isinstance(example, Mapping):
        if {"image", "label"} <= set(example):
            return example["image"], example["label"]
        raise _Mismatch(f"it has {', '.join(map(repr, example))}, expected 'image' and 'label'")
    if isinstance(example, (tuple, list)) and len(example) == 2:
        return example[0], example[1]
    raise _Mismatch(f"it is a {type(example).__name__}, expected (image, label)")


def _image(image: Any, data: DataConfig) -> np.ndarray:
    """Return image_HxWxC in uint8."""
    shape = tuple(data.image_shape)
    if getattr(image, "mode", None) in ("P", "PA"):
        raise _Mismatch("the image is PIL's of a palette, expected convert('RGB') or ('L')")
    image = _as_array(image, "image")
    if image.ndim == 2:
        image = image[..., None]
    if image.shape != shape:
        hint = ""
        if image.ndim == 3 and (*image.shape[1:], image.shape[0]) == shape:
            hint = ": channels come last"
        elif image.ndim == 3:
            hint = f"; --experiment.data.image_shape='{image.shape}' changes it"
        raise _Mismatch(f"the image has shape {image.shape}, expected {shape}{hint}")
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind != "f":
        raise _Mismatch(f"the image is {image.dtype}, expected uint8 or float")
    low, high = data.value_range
    # Written so that nan fails it too.
    if not (image.min() >= low and image.max() <= high):
        raise _Mismatch(
            f"the image leaves data.value_range={data.value_range}: it has "
            f"{image.min():.4g} to {image.max():.4g}"
        )
    return np.rint((image.astype(np.float64) - low) * (255 / (high - low))).astype(np.uint8)


def _label(label: Any, data: DataConfig) -> int:
    label, classes = _as_array(label, "label"), data.num_classes
    if label.shape in ((), (1,)) and label.dtype.kind in "iu":
        number = int(label.reshape(()))
        if 0 <= number < classes:
            return number
        raise _Mismatch(f"the label is {number}, expected 0 to {classes - 1}")
    if label.shape == (classes,) and label.dtype.kind in "biuf":
        if np.count_nonzero(label) == 1 and label.max() == 1:
            return int(label.argmax())
        raise _Mismatch(f"the label of {classes} numbers is not one-hot")
    raise _Mismatch(
        f"the label is {label.dtype} of shape {label.shape}, expected a whole number or one-hot "
        f"of data.num_classes={classes}"
    )


def _mask(mask: Any, data: DataConfig) -> np.ndarray:
    mask, expected = _as_array(mask, "mask"), tuple(data.image_shape[:2])
    if mask.dtype.kind not in "biuf":
        raise _Mismatch(f"the mask is {mask.dtype}, expected numbers")
    if mask.shape == (*expected, 1):
        mask = mask[..., 0]
    if mask.shape != expected:
        raise _Mismatch(f"the mask has shape {mask.shape}, expected {expected}")
    return mask != 0


def _as_array(value: Any, what: str) -> np.ndarray:
    """Return what NumPy makes of a value: PIL's images and PyTorch's tensors, too."""
    try:
        return np.asarray(value)
    except Exception as error:
        raise _Mismatch(
            f"the {what} is a {type(value).__name__}, which NumPy cannot read ({error})"
        ) from error
