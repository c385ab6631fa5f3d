"""Copies of encoded splits that are quicker to read: in memory, or smaller on disk.

A copy on disk is one ArrayRecord file for each split, JPEGs whose shorter side has
`data.cache_side` pixels; images that are no larger are taken as they are. It is made once, in a
folder beside its own that is renamed when all is written, and made again when the originals or the
settings differ.
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset
from jaxbench.data.images.decode import CorruptImageError, shrink
from jaxbench.data.images.encoded import EncodedSplit, Source
from jaxbench.errors import BadInput
from jaxbench.hardware.environment import available_cores

# Changed whenever copies made before must not be used any more.
_VERSION = 2
_RECORDS, _ABOUT = "images.array_record", "about.json"
# Images between two reports of progress.
_CHUNK = 512
# So many images, evenly spaced, are compared with what they were before they became JPEGs.
_COMPARED = 64
# A record is a label (int32, little-endian) and a JPEG; this label, which no set has, says that the
# original is corrupt, and text stands in the JPEG's place.
_DAMAGED = -(2**31)


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
    """Smaller copies in an ArrayRecord file.

    Args:
      original: what they are copies of.
      folder: where the file is.
    """

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
        except Exception:  # ArrayRecord's checksums; it raises what its C++ gives it
            # The original is as good. Without its description the copy is made again next time.
            with contextlib.suppress(OSError):
                self._about.unlink(missing_ok=True)
            return self._original.read(index)
        label = int.from_bytes(record[:4], "little", signed=True)
        if label == _DAMAGED:
            raise CorruptImageError(record[4:].decode())
        return record[4:], label

    def name(self, index: int) -> str:
        return self._original.name(index)

    def files(self) -> list[str]:
        return [self._path]


def apply_cache(
    dataset: Dataset, data: DataConfig, progress: Callable[[str], None] = lambda text: None
) -> Dataset:
    """Puts copies in the place of encoded originals, as `data.cache` asks.

    Args:
      dataset: encoded.
      data: `cache` and what belongs to it.
      progress: told how far the copying is.

    Returns:
      The data set on its copies, `cache` saying what they are, what making them cost and their
      quality (PSNR against the same reduction that never was a JPEG).

    Raises:
      BadInput: too large for the memory, or the folder cannot be written.
    """
    watch = Stopwatch()
    splits, about = {}, {}
    for name in ("train", "eval"):
        split = getattr(dataset, name)
        if data.cache == "memory":
            splits[name], about[name] = _in_memory(split, name, progress)
        else:
            splits[name], about[name] = _on_disk(split, name, data, progress)
    record = {"kind": data.cache, "took_s": watch.elapsed_s(), **about}
    return dataclasses.replace(dataset, cache=record, **splits)


def _in_memory(
    split: EncodedSplit, name: str, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    count = len(split)
    size_bytes = 0
    for path in split.files():
        with contextlib.suppress(OSError):  # told when its turn comes
            size_bytes += os.path.getsize(path)
    free_bytes = psutil.virtual_memory().available
    if size_bytes > free_bytes // 2:
        raise BadInput(
            f"data.cache=memory: the {name} split's files hold {size_bytes / 2**30:.1f} GiB, more "
            f"than half of the {free_bytes / 2**30:.1f} GiB of free memory; data.train_examples "
            "and data.eval_examples limit them"
        )

    def read(index: int) -> tuple[bytes, int] | None:
        try:
            return split.source.read(index)
        except (CorruptImageError, OSError):
            return None  # told when its turn comes

    contents: list[tuple[bytes, int] | None] = []
    for chunk in _in_chunks(read, count, f"{name}: reading into memory", progress):
        contents += chunk
    held_bytes = sum(len(found[0]) for found in contents if found)
    copy = dataclasses.replace(split, source=MemoryCopy(split.source, contents))
    return copy, {"examples": count, "bytes": held_bytes}


def _on_disk(
    split: EncodedSplit, name: str, data: DataConfig, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    folder = _folder(split, name, data)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            originals = _fingerprint(split)
            about, why = _look(folder, originals)
            if about is None:
                progress(f"{name}: making smaller copies in {folder} ({why})")
                try:
                    about = _build(split, name, data, folder, originals, progress)
                except BaseException:
                    shutil.rmtree(_building(folder), ignore_errors=True)
                    raise
                progress(
                    f"{name}: {about['examples']:,} copies, {about['bytes'] / 1e6:,.0f} MB of "
                    f"{about['original_bytes'] / 1e6:,.0f} MB, in {about['build_s']:,.1f} s"
                    + (
                        f"; JPEG of quality {about['quality']} cost them down to "
                        f"{about['psnr_db_median']:.1f} dB (the worst of {about['compared']}: "
                        f"{about['psnr_db_min']:.1f} dB)"
                        if about["compared"]
                        else ""
                    )
                )
            else:
                progress(f"{name}: copies in {folder} from before")
            copy = dataclasses.replace(split, source=DiskCopy(split.source, folder))
    except (OSError, RuntimeError) as error:  # the latter is what ArrayRecord raises
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise BadInput(f"{folder}: cannot hold copies: {reason}") from error
    return copy, {"folder": str(folder), "made": why, **about}


def _folder(split: EncodedSplit, name: str, data: DataConfig) -> pathlib.Path:
    """One for each set and setting, so that a newer copy of the same takes an older one's place."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = pathlib.Path(data.cache_dir or f"{home}/jaxbench/images").expanduser()
    settings = (
        data.source,
        data.name,
        os.path.realpath(os.path.expanduser(data.path)),
        (data.train_split, data.eval_split)[name == "eval"],
        len(split),
        data.cache_side,
        data.cache_quality,
    )
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return root.resolve() / f"{name}-{data.cache_side}px-{digest}"


@contextlib.contextmanager
def _locked(folder: pathlib.Path, progress: Callable[[str], None]) -> Iterator[None]:
    """One process at a time makes or looks at a copy; the system frees the lock of a dead one."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(f"{folder}.lock", "w"))
        except OSError:
            if not folder.exists():
                raise
            # Copies that somebody else made and only may be read.
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that makes copies in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fingerprint(split: EncodedSplit) -> str:
    """Tells whether the originals are the ones that were copied: their names, sizes and times."""
    digest = hashlib.sha256(str(_VERSION).encode())
    for path in split.files():
        digest.update(os.fsencode(path))
        try:
            stat = os.stat(path)
            digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        except OSError:  # such a file is corrupt, not the copy
            digest.update(b"\0missing\0")
    return digest.hexdigest()


def _look(folder: pathlib.Path, originals: str) -> tuple[dict[str, Any] | None, str]:
    """Returns what a whole and current copy says of itself, else None, and in words why."""
    if not folder.exists():
        return None, "none yet"
    try:
        about = json.loads((folder / _ABOUT).read_text())
        if about["originals"] != originals:
            return None, "the originals have changed"
        size_bytes = (folder / _RECORDS).stat().st_size
        if about["bytes"] != size_bytes:
            return None, f"the file has {size_bytes} bytes, not {about['bytes']}"
        if _count_records(folder) != about["examples"]:
            return None, "what is there is not whole"
    except Exception as error:  # ArrayRecord raises what its C++ gives it
        return None, f"what is there is not whole: {' '.join(str(error).split())[:100]}"
    return about, "before"


def _count_records(folder: pathlib.Path) -> int:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(folder / _RECORDS))
    try:
        return reader.num_records()
    finally:
        reader.close()  # says whether the file's ends are sound


def _build(
    split: EncodedSplit,
    name: str,
    data: DataConfig,
    folder: pathlib.Path,
    originals: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    from array_record.python.array_record_module import ArrayRecordWriter

    watch = Stopwatch()
    building = _building(folder)
    # Left by a process that died: nobody else holds the lock.
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    compared = set(np.linspace(0, len(split) - 1, min(_COMPARED, len(split))).astype(int).tolist())

    def copy(index: int) -> tuple[bytes, int, float | None]:
        """Returns a record, the original's bytes, and what the JPEG costs in quality."""
        psnr_db = None
        try:
            content, label = split.source.read(index)
            smaller, psnr_db = shrink(
                content, data.cache_side, data.cache_quality, compare=index in compared
            )
        except (CorruptImageError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            content, label, smaller = b"", _DAMAGED, (reason or str(error)).encode()
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
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return about


def _building(folder: pathlib.Path) -> pathlib.Path:
    return folder.with_name(folder.name + ".building")


def _in_chunks(
    work: Callable[[int], Any], count: int, what: str, progress: Callable[[str], None]
) -> Iterator[list[Any]]:
    """Yields the results of work(0) ... work(count - 1) in order; a thread for each core works."""
    watch = Stopwatch()
    with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, count, _CHUNK):
            done = min(start + _CHUNK, count)
            yield list(pool.map(work, range(start, done)))
            rate = done / watch.elapsed_s()
            if done < count:
                left_s = (count - done) / rate
                progress(f"{what}: {done:,} of {count:,} ({rate:,.0f}/s, {left_s:,.0f} s left)")
