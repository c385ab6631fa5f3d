"""Copies of encoded splits that are quicker to read: in memory, or smaller ones on disk.

A copy on disk is one ArrayRecord file of JPEGs whose shorter side has `data.cache_side` pixels;
images that are no larger are copied unchanged. It is made once, in a folder beside its own that is
renamed when all is written, and made again when the originals or the settings differ.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, check_fits_in_memory
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
# How many images, evenly spaced, are compared with their pixels before they were encoded.
_COMPARED = 64
# A record is a label (int32, little-endian) and a JPEG. No data set has this label: it marks a
# corrupt original, and the reason takes the JPEG's place.
_CORRUPT = -(2**31)


@dataclasses.dataclass(frozen=True)
class MemoryCopy:
    """Encoded images in the host's memory; None where the original could not be read."""

    original: Source
    contents: list[tuple[bytes, int] | None]

    def __len__(self) -> int:
        return len(self.contents)

    def read(self, index: int) -> tuple[bytes, int]:
        found = self.contents[index]
        return self.original.read(index) if found is None else found

    def name(self, index: int) -> str:
        return self.original.name(index)

    def files(self) -> list[str]:
        return []


class DiskCopy:
    """Smaller copies of a source's images in an ArrayRecord file."""

    def __init__(self, original: Source, folder: pathlib.Path):
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._original = original
        self._path = str(folder / _RECORDS)
        self._about = folder / _ABOUT
        self._records = ArrayRecordDataSource(self._path)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> tuple[bytes, int]:
        try:
            record = self._records[index]
        except Exception:  # a wrong checksum; ArrayRecord raises any error of its C++ code
            # The original replaces it. Without its description the copy is made again next time.
            with contextlib.suppress(OSError):
                self._about.unlink(missing_ok=True)
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
    """Replace encoded originals by copies, as `data.cache` asks.

    The returned data set's `cache` describes them: their size, the time they took and their quality
    (PSNR against the same reduction before it was encoded).

    Raises:
      BadInput: too large for the memory, or the folder cannot be written.
    """
    watch = Stopwatch()
    splits, about = {}, {}
    for name in ("train", "eval"):
        split = getattr(dataset, name)
        if data.cache == "memory":
            splits[name], about[name] = _copy_to_memory(split, name, progress)
        else:
            splits[name], about[name] = _copy_to_disk(split, name, data, progress)
    record = {"kind": data.cache, "took_s": watch.elapsed_s(), **about}
    return dataclasses.replace(dataset, cache=record, **splits)


def _in_chunks(
    work: Callable[[int], Any], count: int, what: str, progress: Callable[[str], None]
) -> Iterator[list[Any]]:
    """Yield the results of work(0) ... work(count - 1) in order, from a thread for each core.

    After each chunk `progress` is called with a line whose subject is `what`.
    """
    watch = Stopwatch()
    with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, count, _CHUNK):
            done = min(start + _CHUNK, count)
            yield list(pool.map(work, range(start, done)))
            rate = done / watch.elapsed_s()
            if done < count:
                left_s = (count - done) / rate
                progress(f"{what}: {done:,} of {count:,} ({rate:,.0f}/s, {left_s:,.0f} s left)")


def _copy_to_memory(
    split: EncodedSplit, name: str, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    count = len(split)
    size_bytes = 0
    for path in split.files():
        with contextlib.suppress(OSError):  # reported when its turn comes
            size_bytes += os.path.getsize(path)
    check_fits_in_memory(f"data.cache=memory, the files of the {name} split", size_bytes)

    def read(index: int) -> tuple[bytes, int] | None:
        try:
            return split.source.read(index)
        except (CorruptImageError, OSError):
            return None  # reported when its turn comes

    chunks = _in_chunks(read, count, f"{name}: reading into memory", progress)
    contents = [found for chunk in chunks for found in chunk]
    held_bytes = sum(len(found[0]) for found in contents if found)
    copy = dataclasses.replace(split, source=MemoryCopy(split.source, contents))
    return copy, {"examples": count, "bytes": held_bytes}


def _copy_to_disk(
    split: EncodedSplit, name: str, data: DataConfig, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    """Return the split on its smaller copy, made where there is none, and a description of that."""
    folder = _folder(split, name, data)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process that makes copies in {folder}"
        with locked(folder, lambda: progress(waiting)):
            originals = _fingerprint(split)
            about, why = _check(folder, originals)
            if about is None:
                progress(f"{name}: making smaller copies in {folder} ({why})")
                building = folder.with_name(folder.name + ".building")
                # A process that died may have left one: nobody else holds the lock.
                shutil.rmtree(building, ignore_errors=True)
                try:
                    about = _build(split, name, data, building, originals, progress)
                    shutil.rmtree(folder, ignore_errors=True)
                    building.rename(folder)
                except BaseException:
                    shutil.rmtree(building, ignore_errors=True)
                    raise
                progress(
                    f"{name}: {about['examples']:,} copies, {about['bytes'] / 1e6:,.0f} MB of "
                    f"{about['original_bytes'] / 1e6:,.0f} MB, in {about['build_s']:,.1f} s"
                    + (
                        f"; PSNR of JPEG of quality {about['quality']}: median "
                        f"{about['psnr_db_median']:.1f} dB, lowest of {about['compared']} images "
                        f"{about['psnr_db_min']:.1f} dB"
                        if about["compared"]
                        else ""
                    )
                )
            else:
                progress(f"{name}: reading the copies in {folder}")
            copy = dataclasses.replace(split, source=DiskCopy(split.source, folder))
    except (OSError, RuntimeError) as error:  # the latter is what ArrayRecord raises
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise BadInput(f"{folder}: cannot hold copies: {reason}") from error
    return copy, {"folder": str(folder), "made": why, **about}


def _folder(split: EncodedSplit, name: str, data: DataConfig) -> pathlib.Path:
    """Return one folder for each set and setting, so that a newer copy replaces an older one."""
    if data.cache_dir:
        root = user_path(data.cache_dir)
    else:
        root = user_cache("images", "give data.cache_dir")
    settings = (
        # Links and relative paths lead to the same originals.
        os.path.realpath(os.path.dirname(_shared_prefix(split))),
        (data.train_split, data.eval_split)[name == "eval"],
        len(split),
        data.cache_side,
        data.cache_quality,
    )
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return root.resolve() / f"{name}-{data.cache_side}px-{digest}"


def _shared_prefix(split: EncodedSplit) -> str:
    """Return what the paths of all originals begin with."""
    files = split.files()
    # All strings lie between the least and the greatest, and share what those two share.
    return os.path.commonprefix([min(files), max(files)])


def _fingerprint(split: EncodedSplit) -> str:
    """Return a digest of the originals' names, sizes and times, to tell whether they changed."""
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
        size_bytes = (folder / _RECORDS).stat().st_size
        if about["bytes"] != size_bytes:
            return None, f"the file has {size_bytes} bytes, not {about['bytes']}"
        reader = ArrayRecordReader(str(folder / _RECORDS))
        try:
            if reader.num_records() != about["examples"]:
                return None, "it is not complete"
        finally:
            reader.close()  # raises where the end of the file is corrupt
    except Exception as error:  # ArrayRecord raises any error of its C++ code
        return None, f"it is not complete: {' '.join(str(error).split())[:100]}"
    return about, "before"


def _build(
    split: EncodedSplit,
    name: str,
    data: DataConfig,
    building: pathlib.Path,
    originals: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    from array_record.python.array_record_module import ArrayRecordWriter

    watch = Stopwatch()
    building.mkdir()
    compared = set(np.linspace(0, len(split) - 1, min(_COMPARED, len(split))).astype(int).tolist())

    def copy(index: int) -> tuple[bytes, int, float | None]:
        """Return a record, the size of the original, and the new JPEG's PSNR where compared."""
        psnr_db = None
        try:
            content, label = split.source.read(index)
            smaller, psnr_db = shrink(
                content, data.cache_side, data.cache_quality, compare=index in compared
            )
        except (CorruptImageError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            content, label, smaller = b"", _CORRUPT, (reason or str(error)).encode()
        return label.to_bytes(4, "little", signed=True) + smaller, len(content), psnr_db

    # One record a group: they are read one by one, in random order. JPEGs do not compress further.
    writer = ArrayRecordWriter(str(building / _RECORDS), "group_size:1,uncompressed")
    original_bytes, psnrs_db = 0, []
    try:
        for chunk in _in_chunks(copy, len(split), f"{name}: copying", progress):
            for record, size_bytes, psnr_db in chunk:
                writer.write(record)
                original_bytes += size_bytes
                if psnr_db is not None:
                    psnrs_db.append(psnr_db)
    finally:
        writer.close()
    about = {
        "originals": originals,
        "examples": len(split),
        "bytes": (building / _RECORDS).stat().st_size,
        "original_bytes": original_bytes,
        "side": data.cache_side,
        "quality": data.cache_quality,
        "compared": len(psnrs_db),
        "psnr_db_median": float(np.median(psnrs_db)) if psnrs_db else None,
        "psnr_db_min": min(psnrs_db, default=None),
        "build_s": watch.elapsed_s(),
    }
    (building / _ABOUT).write_text(json.dumps(about, indent=2))
    return about
