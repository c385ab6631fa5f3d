"""Image sets in one .npz file."""

import pathlib
import zipfile
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.errors import BadInput, first_line

# Of a set that has no test part, one image in this many is held out.
_HELD_OUT = 5


def load(data: DataConfig, *, masks: bool = False, progress: Any = None) -> Dataset:
    """Read `x_train, y_train, x_test, y_test`, the names Keras gave them.

    Images are uint8 of shape (N, H, W, C) or (N, H, W); labels are whole numbers of shape (N,) or
    (N, 1). The classes are 0 to the largest training label.

    Args:
      data: `path` is the file.
      masks: labels are masks of shape (N, H, W) or (N, H, W, 1), 0 or false being the background.
        The arrays may also be `image` and `mask` alone: then a fifth of the images, always the
        same ones, is held out.
      progress: unused.

    Raises:
      BadInput: no such file, corrupt, or without these arrays.
    """
    del progress
    file = pathlib.Path(data.path).expanduser()
    if not data.path or not file.is_file():
        raise BadInput(f"data.path={data.path!r}: data.source=npz needs the path of an .npz file")
    arrays = _read_arrays(file, masks)
    if masks:
        return _masked(file, arrays)
    train, test = (_labelled(file, arrays, name) for name in ("train", "test"))
    num_classes = int(train.labels_Nx.max(initial=0)) + 1
    return Dataset(description=file.name, train=train, eval=test, num_classes=num_classes)


def _read_arrays(file: pathlib.Path, masks: bool) -> dict[str, np.ndarray]:
    needed: tuple[str, ...] = ("x_train", "y_train", "x_test", "y_test")
    ways = ", ".join(needed) + (" (or image, mask)" if masks else "")
    try:
        # Opened here: numpy leaves a file open that turns out to be corrupt.
        with open(file, "rb") as stream, zipfile.ZipFile(stream), np.load(file) as archive:
            if masks and {"image", "mask"} <= set(archive.files):
                needed = ("image", "mask")
            missing = [name for name in needed if name not in archive.files]
            if missing:
                raise BadInput(
                    f"{file}: no array {', '.join(missing)}; it holds "
                    f"{', '.join(archive.files) or 'nothing'}, needed are {ways}"
                )
            return {name: archive[name] for name in needed}
    except BadInput:
        raise
    # A corrupt archive can raise nearly anything.
    except Exception as error:
        raise BadInput(f"{file}: cannot be read as .npz: {first_line(error)}") from error


def _labelled(file: pathlib.Path, arrays: dict[str, np.ndarray], name: str) -> Split:
    labels = arrays[f"y_{name}"]
    if not np.issubdtype(labels.dtype, np.integer):
        raise BadInput(f"{file}: y_{name} is {labels.dtype}, expected whole numbers")
    # Checked before they are narrowed: 2**32 would become class 0.
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 2**31:
        raise BadInput(f"{file}: y_{name} runs from {labels.min()} to {labels.max()}")
    return Split(_with_channels(arrays[f"x_{name}"]), labels.reshape(-1).astype(np.int32))


def _masked(file: pathlib.Path, arrays: dict[str, np.ndarray]) -> Dataset:
    def split(images_name, masks_name, chosen=slice(None)):
        masks = arrays[masks_name]
        if masks.ndim < 3 or arrays[images_name].ndim < 3:
            raise BadInput(
                f"{file}: {images_name} of shape {arrays[images_name].shape} and {masks_name} of "
                f"shape {masks.shape}, expected (N, H, W, C) or (N, H, W), and (N, H, W)"
            )
        if masks.dtype.kind not in "biu":
            raise BadInput(f"{file}: {masks_name} is {masks.dtype}, expected whole numbers or bool")
        if masks.ndim == 4 and masks.shape[-1] == 1:
            masks = masks[..., 0]
        images = _with_channels(arrays[images_name])
        if len(images) != len(masks):
            raise BadInput(f"{file}: {len(images)} images but {len(masks)} masks")
        return Split(images[chosen], (masks[chosen] != 0).astype(np.uint8))

    if "image" not in arrays:
        train, test = split("x_train", "y_train"), split("x_test", "y_test")
    else:
        count = len(split("image", "mask"))
        order = np.random.Generator(np.random.Philox(key=0)).permutation(count)
        held_out = np.sort(order[: count // _HELD_OUT])
        train = split("image", "mask", np.sort(order[count // _HELD_OUT :]))
        test = split("image", "mask", held_out)
    return Dataset(description=file.name, train=train, eval=test, num_classes=2)


def _with_channels(images: np.ndarray) -> np.ndarray:
    return images[..., None] if images.ndim == 3 else images
