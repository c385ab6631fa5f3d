"""A data set of the user's own: any sources with `__len__` and `__getitem__`, read into memory.

Grain's, PyTorch's, Hugging Face's and TFDS's sets are such sources.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.errors import BadInput
from jaxbench.own.errors import describe_error

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
        the message has every kind of mismatch, with the first example of each.
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
    mismatches, splits = [], []
    for split, limit in wanted.items():
        reader = _Reader(split, sources[split], limit, data, masks)
        splits.append(reader.read(progress))
        mismatches += reader.mismatches()
    if mismatches:
        raise BadInput(f"data.load ({name}): {'; '.join(mismatches)}")
    return Dataset(name, *splits, num_classes=data.num_classes)


class _Mismatch(Exception):
    """An example is not what the experiment is made for."""


class _Reader:
    """Reads a split and collects what is wrong with it."""

    def __init__(self, name: str, source: Any, limit: int, data: DataConfig, masks: bool):
        self._name, self._source, self._data, self._masks = name, source, data, masks
        if not all(callable(getattr(source, m, None)) for m in ("__len__", "__getitem__")):
            raise BadInput(
                f"data.load: {name!r} is a {type(source).__name__}, expected a source with __len__ "
                "and __getitem__"
            )
        self._count = min(len(source), limit or len(source))
        # {mismatch: [number of examples, index of the first]}
        self._found: dict[str, list[int]] = {}

    def read(self, progress: Callable[[str], None]) -> Split:
        count, shape = self._count, tuple(self._data.image_shape)
        check_fits_in_memory(f"data.load, {self._name}", count * math.prod(shape))
        images_NxHxWxC = np.zeros((count, *shape), np.uint8)
        label_shape, label_dtype = (shape[:2], np.uint8) if self._masks else ((), np.int32)
        labels_Nx = np.zeros((count, *label_shape), label_dtype)
        watch = Stopwatch()
        for index in range(count):
            example = self._example(index)
            if example is None:
                continue
            for array, convert, value in zip(
                (images_NxHxWxC, labels_Nx), (self._image, self._label), example, strict=True
            ):
                try:
                    array[index] = convert(value)
                except _Mismatch as mismatch:
                    self._note(str(mismatch), index)
            if watch.elapsed_s() > _PROGRESS_S:
                watch = Stopwatch()
                progress(f"read {index + 1:,} of {count:,} examples of {self._name}")
        return Split(images_NxHxWxC, labels_Nx)

    def mismatches(self) -> list[str]:
        """Return what is wrong with the split."""
        return [
            f"{self._name}: {times:,} of {self._count:,} {what} (first: example {first})"
            for what, (times, first) in self._found.items()
        ]

    def _note(self, what: str, index: int) -> None:
        self._found.setdefault(what, [0, index])[0] += 1

    def _example(self, index: int) -> tuple[Any, Any] | None:
        """Return an example's image and label; None where it is no pair."""
        try:
            example = self._source[index]
        except Exception as error:
            raise BadInput(describe_error(f"data.load: {self._name}[{index}]", error)) from error
        if isinstance(example, Mapping):
            if {"image", "label"} <= set(example):
                return example["image"], example["label"]
            names = ", ".join(map(repr, example))
            self._note(f"have {names}, expected 'image' and 'label'", index)
        elif isinstance(example, (tuple, list)) and len(example) == 2:
            return example[0], example[1]
        else:
            self._note(f"are a {type(example).__name__}, expected (image, label)", index)
        return None

    def _image(self, image: Any) -> np.ndarray:
        """Return image_HxWxC in uint8."""
        shape = tuple(self._data.image_shape)
        palette = getattr(image, "mode", None) in ("P", "PA")
        image = _as_array(image, "images")
        if palette:
            raise _Mismatch("images are PIL's of a palette, expected convert('RGB') or ('L')")
        if image.ndim == 2:
            image = image[..., None]
        if image.shape != shape:
            hint = ""
            if image.ndim == 3 and (*image.shape[1:], image.shape[0]) == shape:
                hint = ": channels come last"
            elif image.ndim == 3:
                hint = f"; --experiment.data.image_shape='{image.shape}' changes it"
            raise _Mismatch(f"images have shape {image.shape}, expected {shape}{hint}")
        if image.dtype == np.uint8:
            return image
        if image.dtype.kind != "f":
            raise _Mismatch(f"images are {image.dtype}, expected uint8 or float")
        low, high = self._data.value_range
        # Written so that nan fails it too.
        if not (image.min() >= low and image.max() <= high):
            raise _Mismatch(
                f"images leave data.value_range={self._data.value_range}, as "
                f"{image.min():.4g} to {image.max():.4g} does"
            )
        return np.rint((image.astype(np.float64) - low) * (255 / (high - low))).astype(np.uint8)

    def _label(self, label: Any) -> Any:
        label = _as_array(label, "labels")
        if label.dtype.kind not in "biuf":
            raise _Mismatch(f"labels are {label.dtype}, expected numbers")
        if self._masks:
            return self._mask(label)
        classes = self._data.num_classes
        if label.shape in ((), (1,)) and label.dtype.kind in "iu":
            number = int(label.reshape(()))
            if 0 <= number < classes:
                return number
            side = "below 0" if number < 0 else f"above {classes - 1}"
            raise _Mismatch(f"labels are {side}, expected 0 to {classes - 1}")
        if label.shape == (classes,):
            if np.count_nonzero(label) == 1 and label.max() == 1:
                return int(label.argmax())
            raise _Mismatch(f"labels of {classes} numbers are not one-hot")
        raise _Mismatch(
            f"labels are {label.dtype} of shape {label.shape}, expected a whole number or one-hot "
            f"of data.num_classes={classes}"
        )

    def _mask(self, label: np.ndarray) -> np.ndarray:
        expected = tuple(self._data.image_shape[:2])
        if label.shape == (*expected, 1):
            label = label[..., 0]
        if label.shape != expected:
            raise _Mismatch(f"masks have shape {label.shape}, expected {expected}")
        return label != 0


def _as_array(value: Any, what: str) -> np.ndarray:
    """Return what NumPy makes of a value: PIL's images and PyTorch's tensors, too."""
    try:
        return np.asarray(value)
    except Exception as error:
        told = type(value).__name__
        raise _Mismatch(f"{what} are {told}, which NumPy cannot read ({error})") from error
