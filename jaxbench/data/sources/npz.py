"""Image sets in one .npz file."""

import pathlib
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.errors import BadInput, first_line
from jaxbench.paths import user_path

# If a set has no test part, one image in this many is held out.
_HELD_OUT = 5
# {images: their labels or masks}
_SPLITS = {"x_train": "y_train", "x_test": "y_test"}
_MASKED = {"image": "mask"}


def load(data: DataConfig, *, masks: bool = False, **unused: Any) -> Dataset:
    """Read `x_train, y_train, x_test, y_test`, the names Keras gave them.

    Images are uint8 of shape (N, H, W, C) or (N, H, W); labels are whole numbers of shape (N,) or
    (N, 1). The classes are 0 to the largest training label.

    Args:
      data: `path` is the file.
      masks: labels are masks of shape (N, H, W) or (N, H, W, 1), 0 or false being the background.
        The arrays may also be only `image` and `mask`: then a fifth of the images, always the same
        ones, is held out.

    Raises:
      BadInput: no such file, damaged, or without these arrays.
    """
    file = user_path(data.path)
    if not data.path or not file.is_file():
        raise BadInput(f"data.path={data.path!r}: data.source=npz needs the path of an .npz file")
    try:
        with np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:  # type: ignore[arg-type]
            pairs = _MASKED if masks and {"image", "mask"} <= set(archive.files) else _SPLITS
            # A few bytes unpack to many. No array takes more than its part of the archive.
            unpacked_bytes = sum(info.file_size for info in archive.zip.infolist())
            check_fits_in_memory(str(file), unpacked_bytes)
            arrays = {name: np.asarray(archive[name]) for pair in pairs.items() for name in pair}
    except BadInput:
        raise
    except KeyError as error:
        raise BadInput(
            f"{file}: {error.args[0]}; needed are x_train, y_train, x_test, y_test"
            + (" (or image, mask)" if masks else "")
        ) from error
    except Exception as error:  # a damaged archive can raise nearly anything
        raise BadInput(f"{file}: cannot be read as .npz: {first_line(error)}") from error
    splits = [
        _split(file, name, arrays[name], arrays[labels], masks) for name, labels in pairs.items()
    ]
    train, test = splits if len(splits) == 2 else _hold_out(splits[0])
    num_classes = 2 if masks else int(train.labels_Nx.max(initial=0)) + 1
    return Dataset(description=file.name, train=train, eval=test, num_classes=num_classes)


def _split(
    file: pathlib.Path, name: str, images: np.ndarray, labels: np.ndarray, masks: bool
) -> Split:
    if images.ndim not in (3, 4) or images.shape[:1] != labels.shape[:1]:
        raise BadInput(
            f"{file}: {name}: images of shape {images.shape} and {'masks' if masks else 'labels'} "
            f"of shape {labels.shape}, expected (N, height, width, channels) and as many"
        )
    images = images[..., None] if images.ndim == 3 else images
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    if labels.dtype.kind not in ("biu" if masks else "iu"):
        raise BadInput(f"{file}: the labels of {name} are {labels.dtype}, expected whole numbers")
    if masks:
        return Split(images, (labels != 0).astype(np.uint8))
    # Checked before they are narrowed: 2**32 would become class 0.
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 2**31:
        raise BadInput(f"{file}: {_SPLITS[name]} runs from {labels.min()} to {labels.max()}")
    return Split(images, labels.astype(np.int32))


def _hold_out(split: Split) -> tuple[Split, ...]:
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(split))
    test, train = np.split(order, [len(split) // _HELD_OUT])
    return tuple(
        Split(split.inputs_Nx[rows], split.labels_Nx[rows])
        for rows in (np.sort(train), np.sort(test))
    )
