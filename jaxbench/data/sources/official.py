"""CIFAR-10 and MNIST in the files that their authors publish, read without TensorFlow."""

import gzip
import io
import pathlib
import struct
import tarfile
import zlib
from collections.abc import Callable

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.sources import download
from jaxbench.data.sources.cifar10_batches import RECORD_BYTES, join_batches, read_records
from jaxbench.errors import BadInput, first_line
from jaxbench.paths import user_cache, user_path

_MAX_RECORDS = 10_000


def has(data: DataConfig, masks: bool) -> bool:
    """Return whether official files hold what `data.source=tfds` asks for."""
    return data.name in _READERS and not masks and not data.decodes_on_the_fly


def load(data: DataConfig, progress: Callable[[str], None], bar: download.Bar) -> Dataset:
    """Read a data set's official files, which are fetched if they are missing.

    They are in the folder `data.name` of `data.path`, by default of `~/.cache/jaxbench/data`. Their
    order is the authors'; TFDS prepares the same images in another.

    Raises:
      BadInput: no such split, or the files are missing and cannot be fetched, or must not be.
    """
    for split in (data.train_split, data.eval_split):
        if split not in ("train", "test"):
            raise BadInput(f"data.name={data.name!r} has no split {split!r}; it has train, test")
    root = user_path(data.path) if data.path else user_cache("data", "give data.path")
    folder = root / data.name
    try:
        files = _read_files(data, folder, progress, bar)
        splits = _READERS[data.name](files)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise BadInput(f"{folder}: {reason}; data.path names another folder") from error
    except (ValueError, KeyError, struct.error, EOFError, tarfile.TarError, zlib.error) as error:
        raise BadInput(f"{folder}: cannot be read: {first_line(error)}") from error
    digests = ", ".join(
        f"{file.name} sha256 {file.sha256[:12]}" for file in download.listed_files(data.name)
    )
    return Dataset(
        description=f"{data.name}, official files: {digests}",
        train=splits[data.train_split],
        eval=splits[data.eval_split],
        num_classes=10,
    )


def _read_files(
    data: DataConfig, folder: pathlib.Path, progress: Callable[[str], None], bar: download.Bar
) -> dict[str, bytes]:
    """Return the content of each file, by its name."""
    contents = {}
    listed = download.listed_files(data.name)
    if not listed:
        raise BadInput(f"JAXBENCH_DOWNLOADS: the table has no files of data.name={data.name!r}")
    for file in listed:
        content = download.read_verified(file, folder)
        if content is None:
            try:
                if not download.may_download(data.download):
                    raise download.Unreachable(download.FORBIDDEN)
                content = download.fetch(file, folder, progress, bar)
            except download.Unreachable as error:
                path = folder / file.name
                state = f"{path} is not the published file" if path.exists() else f"not in {folder}"
                raise BadInput(
                    f"data.name={data.name!r} is not prepared, and {state}: {error}"
                    f"{download.WAYS}; {file.name} itself, copied into {folder}"
                ) from error
        contents[file.name] = content
    return contents


def _read_cifar10(files: dict[str, bytes]) -> dict[str, Split]:
    """Read the binary version: an archive of six files of records."""
    [content] = files.values()
    batches = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            if folder == "cifar-10-batches-bin" and name.endswith(".bin"):
                if not member.isreg() or member.size > _MAX_RECORDS * RECORD_BYTES:
                    raise ValueError(f"{member.name} is no file of at most {_MAX_RECORDS} images")
                batch = read_records(archive.extractfile(member).read())
                batches[name.removesuffix(".bin")] = batch
    return join_batches(batches)


def _read_mnist(files: dict[str, bytes]) -> dict[str, Split]:
    arrays = {name: _read_idx(content) for name, content in files.items()}
    return {
        split: Split(
            arrays[f"{prefix}-images-idx3-ubyte.gz"][..., None],
            arrays[f"{prefix}-labels-idx1-ubyte.gz"].astype(np.int32),
        )
        for split, prefix in (("train", "train"), ("test", "t10k"))
    }


def _read_idx(content: bytes) -> np.ndarray:
    """Return an array of uint8 from an idx file: its number of axes, their lengths, its values."""
    content = gzip.decompress(content)
    *zeros, kind, rank = struct.unpack_from(">4B", content)
    if zeros != [0, 0] or kind != 8:
        raise ValueError("it is no idx file of bytes")
    shape = struct.unpack_from(f">{rank}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


_READERS = {"cifar10": _read_cifar10, "mnist": _read_mnist}
