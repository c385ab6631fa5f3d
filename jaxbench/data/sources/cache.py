"""Smaller copies of encoded images on disk, which are quicker to read.

A copy of a split is one ArrayRecord file of JPEGs whose shorter side has `data.cache_side` pixels;
images that are no larger are copied unchanged. It is made once, in a folder beside its final one
that is renamed when all is written. The folder's name is a digest of the settings and of the
originals' names, sizes and times, so other originals get another copy.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, as_bad_input
from jaxbench.data.images.decode import CorruptImageError, shrink
from jaxbench.data.images.encoded import EncodedSplit
from jaxbench.files import read_text
from jaxbench.hardware.system import available_cores
from jaxbench.paths import locked, user_cache, user_path

# Examples between two reports of progress.
_CHUNK = 512
# Changed whenever older copies must not be used any more.
_VERSION = 5
_RECORDS, _ABOUT = "images.array_record", "about.json"
# A record is a label and a JPEG. Of a corrupt original it is only a label.
_LABEL_BYTES = 4


class SmallerCopies:
    """The copies of a source's images in an ArrayRecord file."""

    def __init__(self, original: Any, folder: pathlib.Path):
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._original, self.files = original, [str(folder / _RECORDS)]
        self._records = ArrayRecordDataSource(self.files)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> tuple[bytes, int]:
        try:
            record = self._records[index]
        except Exception:  # a wrong checksum; ArrayRecord raises any error of its C++ code
            record = b""
        if len(record) <= _LABEL_BYTES:
            return self._original.read(index)
        label = int.from_bytes(record[:_LABEL_BYTES], "little", signed=True)
        return record[_LABEL_BYTES:], label

    def name(self, index: int) -> str:
        return self._original.name(index)


def apply_cache(dataset: Dataset, data: DataConfig, progress: Callable[[str], None]) -> Dataset:
    """Replace encoded originals by smaller copies, made now if there are none.

    The returned data set's `cache` describes them: their size and the time they took. Raise
    BadInput if the folder cannot be written.
    """
    watch = Stopwatch()
    train, about_train = _copy(dataset.train, "train", data, progress)
    test, about_test = _copy(dataset.eval, "eval", data, progress)
    about = {"train": about_train, "eval": about_test}
    record = {"kind": data.cache, "took_s": watch.elapsed_s(), **about}
    return dataclasses.replace(dataset, cache=record, train=train, eval=test)


def _copy(
    split: EncodedSplit, name: str, data: DataConfig, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    """Return the split on its smaller copy, and a description of the copy."""
    root = user_path(data.cache_dir) if data.cache_dir else user_cache("images", "give cache_dir")
    folder = root.resolve() / f"{name}-{data.cache_side}px-{_digest(split, data)}"
    building = folder.with_name(folder.name + ".building")
    with as_bad_input(folder, "cannot hold copies"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process that makes copies in {folder}"
        with locked(folder, lambda: progress(waiting)):
            about = _read_about(folder)
            made = "before" if about else "now"
            if about is None:
                progress(f"{name}: making smaller copies in {folder}")
                # A process that died may have left one: nobody else holds the lock.
                shutil.rmtree(building, ignore_errors=True)
                try:
                    about = _build(split, name, data, building, progress)
                    shutil.rmtree(folder, ignore_errors=True)
                    building.rename(folder)
                finally:
                    shutil.rmtree(building, ignore_errors=True)
            progress(
                f"{name}: reading {about['examples']:,} copies in {folder}, "
                f"{about['bytes'] / 1e6:,.0f} MB of {about['original_bytes'] / 1e6:,.0f} MB"
            )
            copy = dataclasses.replace(split, source=SmallerCopies(split.source, folder))
    return copy, {"folder": str(folder), "made": made, **about}


def _digest(split: EncodedSplit, data: DataConfig) -> str:
    """Return a digest of the settings and of the originals, wherever their folder lies."""
    settings = _VERSION, len(split), data.cache_side, data.cache_quality
    digest = hashlib.sha256(json.dumps(settings).encode())
    for path in split.files():
        digest.update(os.fsencode(os.sep.join(path.split(os.sep)[-2:])))
        try:
            stat = os.stat(path)
            digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        except OSError:  # then the file is corrupt, not the copy
            digest.update(b"\0missing\0")
    return digest.hexdigest()[:16]


def _read_about(folder: pathlib.Path) -> dict[str, Any] | None:
    """Return the description of a complete copy, None if there is none."""
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        about = json.loads(read_text(folder / _ABOUT))
        ArrayRecordReader(str(folder / _RECORDS)).close()  # raises if the end of the file is lost
        return about if about["bytes"] == (folder / _RECORDS).stat().st_size else None
    except Exception:  # ArrayRecord raises any error of its C++ code
        return None


def _build(
    split: EncodedSplit,
    name: str,
    data: DataConfig,
    building: pathlib.Path,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Write the copies, made by a thread for each core, and return their description."""
    from array_record.python.array_record_module import ArrayRecordWriter

    def copy(index: int) -> tuple[bytes, int]:
        """Return a record and the size of the original."""
        try:
            content, label = split.source.read(index)
            smaller = shrink(content, data.cache_side, data.cache_quality)
        except (CorruptImageError, OSError):
            return bytes(_LABEL_BYTES), 0
        return label.to_bytes(_LABEL_BYTES, "little", signed=True) + smaller, len(content)

    watch, count, original_bytes = Stopwatch(), len(split), 0
    building.mkdir()
    # One record a group: they are read one by one, in random order. JPEGs do not compress further.
    writer = ArrayRecordWriter(str(building / _RECORDS), "group_size:1,uncompressed")
    try:
        with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
            for start in range(0, count, _CHUNK):
                for record, size_bytes in pool.map(copy, range(start, min(start + _CHUNK, count))):
                    writer.write(record)
                    original_bytes += size_bytes
                progress(f"{name}: {min(start + _CHUNK, count):,} of {count:,} images copied")
    finally:
        writer.close()
    about = {
        "examples": count,
        "bytes": (building / _RECORDS).stat().st_size,
        "original_bytes": original_bytes,
        "build_s": watch.elapsed_s(),
    }
    (building / _ABOUT).write_text(json.dumps(about, indent=2))
    return about
