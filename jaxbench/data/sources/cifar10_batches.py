"""CIFAR-10 as its authors distribute it: pickled batches."""

import pathlib
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.sources.pickled_arrays import as_array, as_labels, read_pickle
from jaxbench.errors import BadInput, first_line
from jaxbench.files import open_regular
from jaxbench.paths import user_path

# Eight times what a batch has; of a larger file the end is missing.
_MAX_BYTES = 2**28


def load(data: DataConfig, **unused: Any) -> Dataset:
    """Read the folder `cifar-10-batches-py`: `data_batch_1` to `_5` and `test_batch`.

    Args:
      data: `path` is that folder, or the one that holds it.

    Raises:
      BadInput: no such folder, or a file is missing or corrupt.
    """
    path, folder = data.path, user_path(data.path)
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


def _read_batch(file: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images_NxHxWxC uint8 and labels_Nx int32 of one of the six files."""
    try:
        with open_regular(file, "rb", most_bytes=_MAX_BYTES) as stream:
            written = stream.read()
        content = read_pickle(written)
        data, labels = as_array(content["data"]), as_labels(content["labels"])
        images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    except FileNotFoundError as error:
        raise BadInput(f"{file}: missing; the folder should hold all six batch files") from error
    # A corrupt pickle can raise nearly anything.
    except Exception as error:
        raise BadInput(f"{file}: corrupt or not a CIFAR-10 batch: {first_line(error)}") from error
    return np.ascontiguousarray(images), labels
