"""CIFAR-10 as its authors hand it out, and image sets in one .npz file."""

import io
import pathlib
import pickle
import zipfile

import numpy as np

from jaxbench.data.dataset import Dataset, Split
from jaxbench.errors import BadInput

# Of a set that has no test part, one image of so many is held out.
_HELD_OUT = 5


def load_npz(path: str, *, masks: bool = False) -> Dataset:
    """Reads `x_train, y_train, x_test, y_test`, the names Keras gave them.

    Images are uint8 of shape (N, H, W, C) or (N, H, W); labels are whole numbers of shape (N,) or
    (N, 1). The classes are 0 to the largest training label.

    Args:
      path: the file.
      masks: labels are masks of shape (N, H, W) or (N, H, W, 1), 0 or false being the background.
        The arrays may also be `image` and `mask` alone: then a fifth of the images, always the
        same ones, is held out.

    Raises:
      BadInput: no such file, corrupt, or without these arrays.
    """
    file = pathlib.Path(path).expanduser()
    if not path or not file.is_file():
        raise BadInput(f"data.path={path!r}: data.source=npz needs the path of an .npz file")
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
            arrays = {name: archive[name] for name in needed}
    except BadInput:
        raise
    # A corrupt archive can raise nearly anything.
    except Exception as error:
        raise BadInput(f"{file}: cannot be read as .npz: {_first_line(error)}") from error
    if masks:
        return _masked(file, arrays)

    def split(name):
        labels = arrays[f"y_{name}"]
        if not np.issubdtype(labels.dtype, np.integer):
            raise BadInput(f"{file}: y_{name} is {labels.dtype}, expected whole numbers")
        # Looked at before they are narrowed: 2**32 would become class 0.
        if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 2**31:
            raise BadInput(f"{file}: y_{name} runs from {labels.min()} to {labels.max()}")
        return Split(_with_channels(arrays[f"x_{name}"]), labels.reshape(-1).astype(np.int32))

    train, test = split("train"), split("test")
    num_classes = int(train.labels_Nx.max(initial=0)) + 1
    return Dataset(description=file.name, train=train, eval=test, num_classes=num_classes)


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


def load_cifar10_batches(path: str) -> Dataset:
    """Reads the folder `cifar-10-batches-py`: `data_batch_1` to `_5` and `test_batch`."""
    folder = pathlib.Path(path).expanduser()
    if path and (folder / "cifar-10-batches-py").is_dir():
        folder = folder / "cifar-10-batches-py"
    if not path or not (folder / "data_batch_1").is_file():
        raise BadInput(
            f"data.path={path!r}: data.source=cifar10_batches needs the folder "
            "cifar-10-batches-py, which holds data_batch_1"
        )
    train = [_read_batch(folder / f"data_batch_{number}") for number in range(1, 6)]
    images, labels = zip(*train, strict=True)
    return Dataset(
        description="CIFAR-10 (cifar-10-batches-py)",
        train=Split(np.concatenate(images), np.concatenate(labels)),
        eval=Split(*_read_batch(folder / "test_batch")),
        num_classes=10,
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickled numpy arrays and builds nothing else: a pickle can run any code."""

    _ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module, name):
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it wants to build {module}.{name}, which is not allowed")
        # numpy moved `core` to `_core`; the old name warns.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_batch(file: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns images_NxHxWxC uint8 and labels_Nx int32 of one of the six files."""
    try:
        content = _ArrayUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        data = np.asarray(content[b"data"])
        labels = np.asarray(content[b"labels"], np.int32)
        if data.dtype != np.uint8:
            raise ValueError(f"pixels are {data.dtype}, expected uint8")
        images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    except FileNotFoundError as error:
        raise BadInput(f"{file}: missing; the folder should hold all six batch files") from error
    # A corrupt pickle can raise nearly anything.
    except Exception as error:
        raise BadInput(f"{file}: corrupt or not a CIFAR-10 batch: {_first_line(error)}") from error
    return np.ascontiguousarray(images), labels


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__
