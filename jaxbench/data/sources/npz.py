"""Image sets in one .npz file."""

import math
import pathlib
import zipfile
from typing import Any, NamedTuple

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
        with zipfile.ZipFile(file) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if masks and {"image", "mask"} <= set(found):
                needed = ("image", "mask")
            missing = [name for name in needed if name not in found]
            if missing:
                names = ascii(", ".join(found))[1:-1] or "nothing"
                raise BadInput(
                    f"{file}: no array {', '.join(missing)}; it holds {names[:200]}, needed are "
                    f"{ways}"
                )
            headers = {name: _read_header(archive, found[name]) for name in needed}
            _check_headers(file, headers, image_shape, masks)
            return {name: _read_array(archive, found[name]) for name in needed}
    except BadInput:
        raise
    # A corrupt archive can raise nearly anything.
    except Exception as error:
        raise BadInput(f"{file}: cannot be read as .npz: {first_line(error)}") from error


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _read_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header:
    """Return what an array claims to be; raise ValueError where its bytes are not as many."""
    # Others may ask for gigabytes before they return a byte.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{ascii(info.filename)[:100]} is compressed as NumPy never does")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(stream)
        begin = stream.tell()
    header = _Header(shape, dtype)
    # An object has no bytes here: it is pickled.
    if dtype.kind not in "biuf" or min(shape, default=0) < 0:
        raise ValueError(f"{ascii(info.filename)[:100]} is no array of numbers")
    if begin + header.size_bytes != info.file_size:
        raise ValueError(f"{ascii(info.filename)[:100]} has not as many bytes as its shape says")
    return header


def _check_headers(
    file: pathlib.Path, headers: dict[str, _Header], image_shape: tuple[int, ...], masks: bool
) -> None:
    """Raise BadInput where arrays are not what the experiment reads, before any is read."""
    for name, header in headers.items():
        if name not in _IMAGES:
            if header.dtype.kind not in ("biu" if masks else "iu"):
                what = "whole numbers or bool" if masks else "whole numbers"
                raise BadInput(f"{file}: {name} is {header.dtype}, expected {what}")
            continue
        if header.dtype != np.uint8 or len(header.shape) not in (3, 4):
            raise BadInput(
                f"{file}: {name}: images are {header.dtype} of shape {header.shape}, expected "
                "uint8 of shape (N, height, width, channels)"
            )
        shape = (*header.shape[1:], 1)[:3]
        if name == "x_test" and shape != image_shape:
            raise BadInput(f"{file}: x_test: images are {shape}, in training {image_shape}")
        check_image_shape(file.name, shape, image_shape)
        given = headers[_IMAGES[name]].shape
        if masks and len(given) < 3:
            raise BadInput(f"{file}: {_IMAGES[name]} of shape {given}, expected (N, H, W)")
        if header.shape[0] != (given[0] if masks else math.prod(given)):
            what = f"{given[0]} masks" if masks else f"labels of shape {given}"
            raise BadInput(f"{file}: {header.shape[0]} images but {what}")
    check_fits_in_memory(
        str(file), sum(header.size_bytes for header in headers.values()), is_limited=False
    )


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


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
