"""Image sets in one .npz file."""

import pathlib
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory, check_image_shape
from jaxbench.errors import BadInput, first_line
from jaxbench.paths import user_path

# Of a set that has no test part, one image in this many is held out.
_HELD_OUT = 5
# {images: their labels or masks}
_IMAGES = {"x_train": "y_train", "x_test": "y_test", "image": "mask"}


def load(data: DataConfig, *, masks: bool = False, **unused: Any) -> Dataset:
    """Read `x_train, y_train, x_test, y_test`, the names Keras gave them.

    Images are uint8 of shape (N, H, W, C) or (N, H, W); labels are whole numbers of shape (N,) or
    (N, 1). The classes are 0 to the largest training label.

    Args:
      data: `path` is the file.
      masks: labels are masks of shape (N, H, W) or (N, H, W, 1), 0 or false being the background.
        The arrays may also be `image` and `mask` alone: then a fifth of the images, always the
        same ones, is held out.

    Raises:
      BadInput: no such file, corrupt, or without these arrays.
    """
    file = user_path(data.path)
    if not data.path or not file.is_file():
        raise BadInput(f"data.path={data.path!r}: data.source=npz needs the path of an .npz file")
    arrays = _read_arrays(file, data.image_shape, masks)
    if masks:
        return _masked(file, arrays)
    train, test = (_labelled(file, arrays, name) for name in ("train", "test"))
    num_classes = int(train.labels_Nx.max(initial=0)) + 1
    return Dataset(description=file.name, train=train, eval=test, num_classes=num_classes)


def _read_arrays(
    file: pathlib.Path, image_shape: tuple[int, ...], masks: bool
) -> dict[str, np.ndarray]:
    needed: tuple[str, ...] = ("x_train", "y_train", "x_test", "y_test")
    ways = ", ".join(needed) + (" (or image, mask)" if masks else "")
    try:
        with np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            names = archive.files
            if masks and {"image", "mask"} <= set(names):
                needed = ("image", "mask")
            missing = [name for name in needed if name not in names]
            if missing:
                there = ascii(", ".join(names))[1:-1] or "nothing"
                raise BadInput(
                    f"{file}: no array {', '.join(missing)}; it holds {there[:200]}, needed are "
                    f"{ways}"
                )
            # A few bytes unpack to many. No array takes more than its part of the archive.
            unpacked_bytes = sum(info.file_size for info in archive.zip.infolist())
            check_fits_in_memory(str(file), unpacked_bytes, is_limited=False)
            arrays = {name: np.asarray(archive[name]) for name in needed}
    except BadInput:
        raise
    # A corrupt archive can raise nearly anything.
    except Exception as error:
        raise BadInput(f"{file}: cannot be read as .npz: {first_line(error)}") from error
    _check_arrays(file, arrays, image_shape, masks)
    return arrays


def _check_arrays(
    file: pathlib.Path, arrays: dict[str, np.ndarray], image_shape: tuple[int, ...], masks: bool
) -> None:
    """Raise BadInput if arrays are not what the experiment reads."""
    for name, array in arrays.items():
        if name not in _IMAGES:
            if array.dtype.kind not in ("biu" if masks else "iu"):
                what = "whole numbers or bool" if masks else "whole numbers"
                raise BadInput(f"{file}: {name} is {array.dtype}, expected {what}")
            continue
        if array.dtype != np.uint8 or array.ndim not in (3, 4):
            raise BadInput(
                f"{file}: {name}: images are {array.dtype} of shape {array.shape}, expected "
                "uint8 of shape (N, height, width, channels)"
            )
        shape = (*array.shape[1:], 1)[:3]
        if name == "x_test" and shape != image_shape:
            raise BadInput(f"{file}: x_test: images are {shape}, in training {image_shape}")
        check_image_shape(file.name, shape, image_shape)
        labels = arrays[_IMAGES[name]]
        if masks and labels.ndim < 3:
            raise BadInput(f"{file}: {_IMAGES[name]} of shape {labels.shape}, expected (N, H, W)")
        if len(array) != (len(labels) if masks else labels.size):
            what = f"{len(labels)} masks" if masks else f"labels of shape {labels.shape}"
            raise BadInput(f"{file}: {len(array)} images but {what}")


def _labelled(file: pathlib.Path, arrays: dict[str, np.ndarray], name: str) -> Split:
    labels = arrays[f"y_{name}"]
    # Checked before they are narrowed: 2**32 would become class 0.
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 2**31:
        raise BadInput(f"{file}: y_{name} runs from {labels.min()} to {labels.max()}")
    return Split(_with_channels(arrays[f"x_{name}"]), labels.reshape(-1).astype(np.int32))


def _masked(file: pathlib.Path, arrays: dict[str, np.ndarray]) -> Dataset:
    def split(images_name, masks_name, chosen=slice(None)):
        masks = arrays[masks_name]
        if masks.ndim == 4 and masks.shape[-1] == 1:
            masks = masks[..., 0]
        images = _with_channels(arrays[images_name])
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
