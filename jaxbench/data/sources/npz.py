"""Image sets in one .npz file."""

import math
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.config.data import is_channels_first
from jaxbench.data.dataset import Dataset, Split, as_bad_input, check_fits_in_memory
from jaxbench.errors import BadInput
from jaxbench.paths import user_path
from jaxbench.terminal import printable

# If a set has no test part, one image in this many is held out.
_HELD_OUT = 5
# {images: their labels or masks}
_SPLITS = {"x_train": "y_train", "x_test": "y_test"}
_MASKED = {"image": "mask"}
# Letters of the names of further arrays that a message shows.
_LONGEST = 200
# Makes 0 to K-1 of any labels.
_NUMBERED = (
    "; convert: labels = np.unique(y_train); y_train, y_test = "
    "np.searchsorted(labels, y_train), np.searchsorted(labels, y_test)"
)


def load(data: DataConfig, *, masks: bool = False, **unused: Any) -> Dataset:
    """Read `x_train, y_train, x_test, y_test`, the names Keras gave them, of the file `data.path`.

    Images are uint8 of shape (N, H, W, C) or (N, H, W); labels are whole numbers of shape (N,) or
    (N, 1). The classes are 0 to the largest training label; if some have no images, the config
    must ask for as many. Masks have shape (N, H, W) or (N, H, W, 1), 0 or false being the
    background. They may also be only `image` and `mask`: then a fifth of the images, always the
    same ones, is held out.

    Raises:
      BadInput: no such file, damaged, or without these arrays; the message says how to convert
        others, if that is clear.
    """
    file = user_path(data.path)
    if not data.path or not file.is_file():
        raise BadInput(f"data.path={data.path!r}: data.source=npz needs the path of an .npz file")
    arrays: dict[str, np.ndarray] = {}
    with (
        as_bad_input(file, "cannot be read as .npz"),
        # Not `np.load`, which reads whatever a file begins with, of any size.
        np.lib.npyio.NpzFile(str(file), allow_pickle=False) as archive,  # type: ignore[arg-type]
    ):
        names = archive.files
        pairs = _MASKED if masks and {"image", "mask"} <= set(names) else _SPLITS
        needed = [name for pair in pairs.items() for name in pair]
        others = printable(", ".join(sorted({*names} - {*needed})))[:_LONGEST]
        # A few bytes unpack to many. No array takes more than its part of the archive.
        entries: Any = archive.zip
        unpacked_bytes = sum(info.file_size for info in entries.infolist())
        check_fits_in_memory(str(file), unpacked_bytes)
        if missing := [name for name in needed if name not in names]:
            raise BadInput(
                f"{file}: has no {missing[0]}; needed are x_train, y_train, x_test, y_test"
                + " (or image, mask)" * masks
                + (f"; it has {others}" if others else "")
            )
        for name in needed:
            try:
                arrays[name] = np.asarray(archive[name])
            except ValueError as error:
                advice = ""
                if str(error).startswith("Object arrays"):
                    advice = f"; convert: {name} = np.array({name}.tolist())"
                raise ValueError(f"{name}: {error}{advice}") from error
    for pair in pairs.items():
        if problem := _problem(arrays, *pair, masks, data.image_shape):
            raise BadInput(f"{file}: {problem}")
    warnings = [f"{file}: has further arrays, which are not read: {others}"] if others else []
    train, *test = (
        _split(arrays[images], arrays[labels], masks) for images, labels in pairs.items()
    )
    num_classes = 2
    if not masks:
        different = np.unique(train.labels_Nx)
        num_classes = int(different[-1]) + 1 if len(different) > 1 else len(different)
        if len(different) < num_classes:
            gaps = f"y_train has {len(different)} different labels, from {different[0]} to "
            gaps += f"{different[-1]}"
            if num_classes != data.num_classes:
                keep = (
                    f"; keep them with --experiment.data.num_classes={num_classes}, or number them"
                )
                keep *= int(different[0] == 0)
                raise BadInput(
                    f"{file}: {gaps}, expected 0 to {len(different) - 1}{keep}{_NUMBERED}"
                )
            warnings.append(f"{file}: {gaps}: the other classes have no training images")
    train, test = (train, *test) if test else _hold_out(train)
    return Dataset(file.name, train, test, num_classes, warnings=warnings)


def _problem(
    arrays: dict[str, np.ndarray], name: str, labels_name: str, masks: bool, shape: tuple[int, ...]
) -> str:
    """Return what is wrong with a split's arrays, "" if nothing is.

    It ends with a line of Python that makes of them what is read, if there is one.
    """
    images, labels = arrays[name], arrays[labels_name]
    if images.ndim == 2 and images.shape[1:] == (math.prod(shape),) and shape[-1] == 1:
        return f"{name} is flat; convert: {name} = {name}.reshape(-1, {shape[0]}, {shape[1]})"
    if images.ndim not in (3, 4) or images.shape[:1] != labels.shape[:1]:
        return (
            f"{name}: images of shape {images.shape} and {'masks' if masks else 'labels'} "
            f"of shape {labels.shape}, expected (N, height, width, channels) and as many"
        )
    if is_channels_first(images.shape[1:]):
        return f"{name} has its channels first; convert: {name} = np.moveaxis({name}, 1, -1)"
    if images.dtype != np.uint8:
        convert = _as_bytes(name, images)
        return f"{name}: images are {images.dtype} of shape {images.shape}, expected uint8{convert}"
    per_class = labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "biuf"
    if not masks and per_class and ((labels != 0).sum(1) == 1).all():
        return f"{labels_name} is one-hot; convert: {labels_name} = {labels_name}.argmax(1)"
    if not masks and labels.shape[1:] not in ((), (1,)):
        return f"{labels_name}: labels of shape {labels.shape}, expected (N,)"
    if labels.dtype.kind not in ("biu" if masks else "iu"):
        convert = _NUMBERED if labels.dtype.kind in "US" else ""
        if labels.dtype.kind in "bf" and ((labels % 1 == 0) & (np.abs(labels) < 2**31)).all():
            convert = f"; convert: {labels_name} = {labels_name}.astype(int)"
        return f"{labels_name} is {labels.dtype}, expected whole numbers{convert}"
    # Checked before they are narrowed: 2**32 would become class 0.
    if not masks and labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 2**31:
        convert = _NUMBERED
        if labels.min() < 0 and len(np.unique(labels)) > 2:
            known = f"[{labels_name} >= 0]"
            convert = f"; convert: {name}, {labels_name} = {name}{known}, {labels_name}{known}"
        return f"{labels_name} runs from {labels.min()} to {labels.max()}{convert}"
    return ""


def _as_bytes(name: str, images: np.ndarray) -> str:
    """Return how to make 256 levels of images, "" if their levels are not clear."""
    kind = images.dtype.kind
    if kind not in "biuf" or not images.size:
        return ""
    low, high, factor = images.min(), images.max(), ""
    if kind == "b" or (kind == "f" and low >= 0 and high <= 1):
        factor = " * 255.0"
    elif images.dtype == np.uint16 and high >= 2**15:
        factor = " / 257"
    elif not 0 <= low <= high <= 255:
        return ""
    return f"; convert: {name} = np.rint({name}{factor}).astype(np.uint8)"


def _split(images: np.ndarray, labels: np.ndarray, masks: bool) -> Split:
    images = images[..., None] if images.ndim == 3 else images
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    return Split(images, (labels != 0).astype(np.uint8) if masks else labels.astype(np.int32))


def _hold_out(split: Split) -> tuple[Split, ...]:
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(split))
    test, train = np.split(order, [len(split) // _HELD_OUT])
    return tuple(
        Split(split.inputs_Nx[rows], split.labels_Nx[rows])
        for rows in (np.sort(train), np.sort(test))
    )
