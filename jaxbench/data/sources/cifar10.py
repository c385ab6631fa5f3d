"""CIFAR-10 and MNIST in the files that their authors publish, read without TensorFlow."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, as_bad_input
from jaxbench.data.sources import download
from jaxbench.errors import BadInput, Unreachable, first_line
from jaxbench.files import open_regular
from jaxbench.paths import user_cache, user_path

# A label, then 32x32 reds, greens and blues, row by row.
_RECORD_BYTES = 1 + 3 * 32 * 32
# More than a batch of either version has.
_MAX_BYTES = 2**25
# A pickle is a program. Only the official files run, whose MD5 torchvision lists: making another
# file of a given MD5 is not feasible; only pairs of equal MD5 can be made.
_PICKLES_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def load(data: DataConfig, **unused: Any) -> Dataset:
    """Read the six files of `cifar-10-batches-bin` or `-py`, at `data.path` or in it.

    Raises:
      BadInput: no such folder, or a file is missing or not what CIFAR-10's authors distribute.
    """
    root = user_path(data.path)
    for version, suffix, parse in (("bin", ".bin", _read_records), ("py", "", _read_pickle)):
        for folder in (root / f"cifar-10-batches-{version}", root):
            if data.path and (folder / f"data_batch_1{suffix}").is_file():
                batches = {}
                for name in _PICKLES_MD5:
                    file = folder / f"{name}{suffix}"
                    with (
                        as_bad_input(file),
                        open_regular(file, "rb", most_bytes=_MAX_BYTES) as stream,
                    ):
                        batches[name] = parse(stream.read(), name)
                train, test = _join(batches)
                return Dataset(f"CIFAR-10 (cifar-10-batches-{version})", train, test, 10)
    raise BadInput(
        f"data.path={data.path!r}: data.source=cifar10_batches needs the folder "
        "cifar-10-batches-bin or cifar-10-batches-py, which holds data_batch_1"
    )


def _read_records(content: bytes, name: str) -> Split:
    if len(content) % _RECORD_BYTES:
        raise ValueError(f"{name} does not hold whole records of {_RECORD_BYTES:,} bytes")
    records_NxR = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    return _as_split(records_NxR[:, 1:], records_NxR[:, 0])


def _read_pickle(content: bytes, name: str) -> Split:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != _PICKLES_MD5[name]:
        raise ValueError(
            "it is not the official file (other MD5), and no other pickle is run; "
            "data_batch_1.bin, or an .npz file with data.source=npz, is read whoever made it"
        )
    batch = pickle.loads(content, encoding="latin1")
    return _as_split(batch["data"], np.array(batch["labels"]))


def _as_split(pixels_NxP: np.ndarray, labels_N: np.ndarray) -> Split:
    images_NxHxWxC = pixels_NxP.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(images_NxHxWxC), labels_N.astype(np.int32))


def _join(batches: dict[str, Split]) -> tuple[Split, Split]:
    """Return both splits from the six batches, by their names."""
    *train, test = (batches[name] for name in _PICKLES_MD5)
    images_NxHxWxC = np.concatenate([batch.inputs_Nx for batch in train])
    return Split(images_NxHxWxC, np.concatenate([batch.labels_Nx for batch in train])), test


# ------------------------------------------------------------------------------ files to download


def load_official(data: DataConfig, progress: Callable[[str], None], bar: download.Bar) -> Dataset:
    """Read CIFAR-10's or MNIST's official files, which are fetched if they are missing.

    They are in the folder `data.name` of `data.path`, by default of `~/.cache/jaxbench/data`. Their
    order is the authors'; TFDS prepares the same images in another.

    Raises:
      BadInput: no such split, or the files are missing and cannot be fetched, or must not be.
    """
    for split in (data.train_split, data.eval_split):
        if split not in ("train", "test"):
            raise BadInput(f"data.name={data.name!r} has no split {split!r}; it has train, test")
    root = user_path(data.path) if data.path else user_cache("data", "give data.path")
    folder, contents = root / data.name, {}
    files = download.listed_files(data.name)
    if not files:
        raise BadInput(f"JAXBENCH_DOWNLOADS: the table has no files of data.name={data.name!r}")
    try:
        for file in files:
            content = download.read_verified(folder / file.name, file)
            if content is None:
                if not download.may_download(data.download):
                    raise Unreachable(download.FORBIDDEN)
                content = download.fetch(file, folder, progress, bar)
            contents[file.name] = content
    except Unreachable as error:
        raise BadInput(
            f"data.name={data.name!r} is not prepared, and the published {file.name} is not in "
            f"{folder}: {error}{download.WAYS}; the file itself, copied into the folder"
        ) from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise BadInput(f"{folder}: {reason}; data.path names another folder") from error
    with as_bad_input(folder):
        train, test = READERS[data.name](contents)
    digests = ", ".join(f"{file.name} sha256 {file.sha256[:12]}" for file in files)
    splits = {"train": train, "test": test}
    return Dataset(
        description=f"{data.name}, official files: {digests}",
        train=splits[data.train_split],
        eval=splits[data.eval_split],
        num_classes=10,
    )


def _read_cifar10(files: dict[str, bytes]) -> tuple[Split, Split]:
    """Read the binary version: an archive of six files of records."""
    [content] = files.values()
    batches = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:  # in their order: going back would decompress all of it again
            name = member.name.removeprefix("cifar-10-batches-bin/").removesuffix(".bin")
            if name in _PICKLES_MD5 and (file := archive.extractfile(member)):
                batches[name] = _read_records(file.read(), name)
    return _join(batches)


def _read_mnist(files: dict[str, bytes]) -> tuple[Split, ...]:
    arrays = {name: _read_idx(content) for name, content in files.items()}
    return tuple(
        Split(
            arrays[f"{prefix}-images-idx3-ubyte.gz"][..., None],
            arrays[f"{prefix}-labels-idx1-ubyte.gz"].astype(np.int32),
        )
        for prefix in ("train", "t10k")
    )


def _read_idx(content: bytes) -> np.ndarray:
    """Return an array of uint8 from an idx file: its number of axes, their lengths, its values."""
    content = gzip.decompress(content)
    *zeros, kind, rank = struct.unpack_from(">4B", content)
    if zeros != [0, 0] or kind != 8:
        raise ValueError("it is no idx file of bytes")
    shape = struct.unpack_from(f">{rank}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


READERS = {"cifar10": _read_cifar10, "mnist": _read_mnist}
