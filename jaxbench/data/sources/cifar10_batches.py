"""CIFAR-10 as its authors distribute it: pickled batches."""

import io
import pathlib
import pickle
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.errors import BadInput, first_line


def load(data: DataConfig, *, masks: bool = False, progress: Any = None) -> Dataset:
    """Read the folder `cifar-10-batches-py`: `data_batch_1` to `_5` and `test_batch`.

    Args:
      data: `path` is that folder, or the one that holds it.
      masks, progress: unused.

    Raises:
      BadInput: no such folder, or a file is missing or corrupt.
    """
    del masks, progress
    path, folder = data.path, pathlib.Path(data.path).expanduser()
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
    """Return images_NxHxWxC uint8 and labels_Nx int32 of one of the six files."""
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
        raise BadInput(f"{file}: corrupt or not a CIFAR-10 batch: {first_line(error)}") from error
    return np.ascontiguousarray(images), labels
