"""CIFAR-10 as its authors distribute it: the binary version, or the Python version's pickles."""

import hashlib
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.errors import BadInput, first_line
from jaxbench.files import open_regular
from jaxbench.paths import user_path

# A label, then 32x32 reds, greens and blues, row by row.
RECORD_BYTES = 1 + 3 * 32 * 32
# More than a batch of either version has.
_MAX_BYTES = 2**25
# A pickle is a program. These are the only ones that run: the official files, as torchvision lists
# them. To make another file of a given MD5 is not feasible; only pairs of equal MD5 can be made.
_PICKLES_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def load(data: DataConfig, **unused: Any) -> Dataset:
    """Read the six files of `cifar-10-batches-bin` or of `cifar-10-batches-py`.

    Args:
      data: `path` is one of these folders, or the one that holds it.

    Raises:
      BadInput: no such folder, or a file is missing or not what CIFAR-10's authors distribute.
    """
    root = user_path(data.path)
    for version, suffix, parse in (("bin", ".bin", read_records), ("py", "", _read_pickle)):
        for folder in (root / f"cifar-10-batches-{version}", root):
            if data.path and (folder / f"data_batch_1{suffix}").is_file():
                files = {name: folder / f"{name}{suffix}" for name in _PICKLES_MD5}
                splits = join_batches({name: _read(files[name], parse) for name in files})
                return Dataset(
                    description=f"CIFAR-10 (cifar-10-batches-{version})",
                    train=splits["train"],
                    eval=splits["test"],
                    num_classes=10,
                )
    raise BadInput(
        f"data.path={data.path!r}: data.source=cifar10_batches needs the folder "
        "cifar-10-batches-bin or cifar-10-batches-py, which holds data_batch_1"
    )


def read_records(content: bytes, name: str = "") -> Split:
    """Return the images and labels of a file of the binary version.

    Raises:
      ValueError: its length is no multiple of a record's.
    """
    if len(content) % RECORD_BYTES:
        raise ValueError(f"it does not hold whole records of {RECORD_BYTES:,} bytes")
    records_NxR = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    return _as_split(records_NxR[:, 1:], records_NxR[:, 0])


def _read_pickle(content: bytes, name: str) -> Split:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != _PICKLES_MD5[name]:
        raise ValueError(
            "it is not the official file (other MD5), and no other pickle is run; the binary "
            "version (data_batch_1.bin), or an .npz file with data.source=npz, is read whoever "
            "made it"
        )
    batch = pickle.loads(content, encoding="latin1")
    return _as_split(batch["data"], np.array(batch["labels"]))


def _as_split(pixels_NxP: np.ndarray, labels_N: np.ndarray) -> Split:
    images_NxHxWxC = pixels_NxP.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(images_NxHxWxC), labels_N.astype(np.int32))


def join_batches(batches: dict[str, Split]) -> dict[str, Split]:
    """Return both splits from the six batches, by their names."""
    *train, test = (batches[name] for name in _PICKLES_MD5)
    images_NxHxWxC = np.concatenate([batch.inputs_Nx for batch in train])
    labels_N = np.concatenate([batch.labels_Nx for batch in train])
    return {"train": Split(images_NxHxWxC, labels_N), "test": test}


def _read(file: pathlib.Path, parse: Callable[[bytes, str], Split]) -> Split:
    try:
        with open_regular(file, "rb", most_bytes=_MAX_BYTES) as stream:
            return parse(stream.read(), file.name)
    except FileNotFoundError as error:
        raise BadInput(f"{file}: missing; the folder should hold all six batch files") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: {first_line(error)}") from error
