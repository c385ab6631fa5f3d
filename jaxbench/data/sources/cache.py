"""Smaller copies of encoded images on disk, which are quicker to read.

A copy of a split is one ArrayRecord file of JPEGs whose shorter side has `data.cache_side` pixels;
images that are no larger are copied unchanged. It is made once, in a folder beside its final one
that is renamed when all is written, and made again when the originals or the settings differ.
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
from jaxbench.data.dataset import Dataset
from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.images.encoded import EncodedSplit, Source
from jaxbench.data.images.resize import shrink
from jaxbench.errors import BadInput
from jaxbench.hardware.system import available_cores
from jaxbench.paths import locked, user_cache, user_path

# Examples between two reports of progress.
_CHUNK = 512
# Changed whenever older copies must not be used any more.
_VERSION = 4
_RECORDS, _ABOUT = "images.array_record", "about.json"
# A record is a label (int32, little-endian) and a JPEG. No data set has this label: it marks a
# corrupt original, and the reason replaces the JPEG.
_CORRUPT = -(2**31)


class SmallerCopies:
    """The copies of a source's images in an ArrayRecord file."""

    def __init__(self, original: Source, folder: pathlib.Path):
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._original = original
        self._path = str(folder / _RECORDS)
        self._records = ArrayRecordDataSource(self._path)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> tuple[bytes, int]:
        try:
            record = self._records[index]
        except Exception:  # a wrong checksum; ArrayRecord raises any error of its C++ code
            return self._original.read(index)
        label = int.from_bytes(record[:4], "little", signed=True)
        if label == _CORRUPT:
            raise CorruptImageError(record[4:].decode())
        return record[4:], label

    def name(self, index: int) -> str:
        return self._original.name(index)

    def files(self) -> list[str]:
        return [self._path]


def apply_cache(dataset: Dataset, data: DataConfig, progress: Callable[[str], None]) -> Dataset:
    """Replace encoded originals by smaller copies, made now if there are none.

    The returned data set's `cache` describes them: their size and the time they took.

    Raises:
      BadInput: the folder cannot be written.
    """
    watch = Stopwatch()
    splits, about = {}, {}
    for name in ("train", "eval"):
        splits[name], about[name] = _copy(getattr(dataset, name), name, data, progress)
    record = {"kind": data.cache, "took_s": watch.elapsed_s(), **about}
    return dataclasses.replace(dataset, cache=record, **splits)


def _copy(
    split: EncodedSplit, name: str, data: DataConfig, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    """Return the split on its smaller copy, and a description of the copy."""
    folder = _folder(split, name, data)
    building = folder.with_name(folder.name + ".building")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process that makes copies in {folder}"
        with locked(folder, lambda: progress(waiting)):
            originals = _fingerprint(split)
            about, reason = _check(folder, originals)
            if about is None:
                progress(f"{name}: making smaller copies in {folder} ({reason})")
                # A process that died may have left one: nobody else holds the lock.
                shutil.rmtree(building, ignore_errors=True)
                try:
                    about = _build(split, name, data, building, originals, progress)
                    shutil.rmtree(folder, ignore_errors=True)
                    building.rename(folder)
                finally:
                    shutil.rmtree(building, ignore_errors=True)
                progress(
                    f"{name}: {about['examples']:,} copies, {about['bytes'] / 1e6:,.0f} MB of "
                    f"{about['original_bytes'] / 1e6:,.0f} MB, in {about['build_s']:,.1f} s"
                )
            else:
                progress(f"{name}: reading the copies in {folder}")
            copy = dataclasses.replace(split, source=SmallerCopies(split.source, folder))
    except (OSError, RuntimeError) as error:  # the latter is what ArrayRecord raises
        message = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise BadInput(f"{folder}: cannot hold copies: {message}") from error
    return copy, {"folder": str(folder), "made": reason, **about}


def _folder(split: EncodedSplit, name: str, data: DataConfig) -> pathlib.Path:
    """Return one folder for each set and setting, so that a newer copy replaces an older one."""
    if data.cache_dir:
        root = user_path(data.cache_dir)
    else:
        root = user_cache("images", "give data.cache_dir")
    settings = (
        # Links and relative paths lead to the same originals.
        os.path.realpath(os.path.dirname(_shared_prefix(split))),
        data.train_split if name == "train" else data.eval_split,
        len(split),
        data.cache_side,
        data.cache_quality,
    )
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return root.resolve() / f"{name}-{data.cache_side}px-{digest}"


def _shared_prefix(split: EncodedSplit) -> str:
    """Return the beginning that the paths of all originals share."""
    files = split.files()
    # All strings lie between the least and the greatest, and share what those two share.
    return os.path.commonprefix([min(files), max(files)])


def _fingerprint(split: EncodedSplit) -> str:
    """Return a digest of the originals' names, sizes and times, which changes with them."""
    digest = hashlib.sha256(str(_VERSION).encode())
    prefix = len(_shared_prefix(split))
    for path in split.files():
        digest.update(os.fsencode(path[prefix:]))
        try:
            stat = os.stat(path)
            digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        except OSError:  # then the file is corrupt, not the copy
            digest.update(b"\0missing\0")
    return digest.hexdigest()


def _check(folder: pathlib.Path, originals: str) -> tuple[dict[str, Any] | None, str]:
    """Return the description of a complete and current copy, else None, and the reason."""
    from array_record.python.array_record_module import ArrayRecordReader

    if not folder.exists():
        return None, "none yet"
    try:
        about = json.loads((folder / _ABOUT).read_text())
        if about["originals"] != originals:
            return None, "the originals have changed"
        ArrayRecordReader(str(folder / _RECORDS)).close()  # raises if the end of the file is lost
        if about["bytes"] == (folder / _RECORDS).stat().st_size:
            return about, "before"
    except Exception:  # ArrayRecord raises any error of its C++ code
        pass
    return None, "it is not complete"


def _build(
    split: EncodedSplit,
    name: str,
    data: DataConfig,
    building: pathlib.Path,
    originals: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Write the copies, made by a thread for each core, and return their description."""
    from array_record.python.array_record_module import ArrayRecordWriter

    def copy(index: int) -> tuple[bytes, int]:
        """Return a record and the size of the original."""
        try:
            content, label = split.source.read(index)
            smaller = shrink(content, data.cache_side, data.cache_quality)
        except (CorruptImageError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            content, label, smaller = b"", _CORRUPT, reason.encode()
        return label.to_bytes(4, "little", signed=True) + smaller, len(content)

    watch, count, original_bytes = Stopwatch(), len(split), 0
    building.mkdir()
    # One record a group: they are read one by one, in random order. JPEGs do not compress further.
    writer = ArrayRecordWriter(str(building / _RECORDS), "group_size:1,uncompressed")
    try:
        with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
            for start in range(0, count, _CHUNK):
                done = min(start + _CHUNK, count)
                for record, size_bytes in pool.map(copy, range(start, done)):
                    writer.write(record)
                    original_bytes += size_bytes
                rate = done / watch.elapsed_s()
                if done < count:
                    progress(
                        f"{name}: copying: {done:,} of {count:,} ({rate:,.0f}/s, "
                        f"{(count - done) / rate:,.0f} s left)"
                    )
    finally:
        writer.close()
    about = {
        "originals": originals,
        "examples": count,
        "bytes": (building / _RECORDS).stat().st_size,
        "original_bytes": original_bytes,
        "side": data.cache_side,
        "quality": data.cache_quality,
        "build_s": watch.elapsed_s(),
    }
    (building / _ABOUT).write_text(json.dumps(about, indent=2))
    return about
