"""Smaller copies of an encoded split on disk: one ArrayRecord file of JPEGs.

The JPEGs' shorter side has `data.cache_side` pixels; images that are no larger are copied
unchanged. A copy is made once, in a folder beside its own that is renamed when all is written, and
made again when the originals or the settings differ.
"""

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

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.data.images.decode import CorruptImageError, shrink
from jaxbench.data.images.encoded import EncodedSplit, Source
from jaxbench.data.sources.chunks import in_chunks
from jaxbench.errors import BadInput

# Changed whenever older copies must not be used any more.
_VERSION = 2
_RECORDS, _ABOUT = "images.array_record", "about.json"
# How many images, evenly spaced, are compared with their pixels before they were encoded.
_COMPARED = 64
# A record is a label (int32, little-endian) and a JPEG. No data set has this label: it marks a
# corrupt original, and the reason takes the JPEG's place.
_CORRUPT = -(2**31)


class DiskCopy:
    """Smaller copies in an ArrayRecord file.

    Args:
      original: the images that were copied.
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


def copy_to_disk(
    split: EncodedSplit, name: str, data: DataConfig, progress: Callable[[str], None]
) -> tuple[EncodedSplit, dict[str, Any]]:
    """Return the split on its smaller copy, made where there is none, and a description of that.

    Raises:
      BadInput: the folder cannot hold copies.
    """
    folder = _folder(split, name, data)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            originals = _fingerprint(split)
            about, why = _check(folder, originals)
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
    """Let one process at a time make or check a copy; the system frees a dead process's lock."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(f"{folder}.lock", "w"))
        except OSError:
            if not folder.exists():
                raise
            # Somebody else's copies, which can only be read.
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that makes copies in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fingerprint(split: EncodedSplit) -> str:
    """Return a digest of the originals' names, sizes and times, to tell whether they changed."""
    digest = hashlib.sha256(str(_VERSION).encode())
    for path in split.files():
        digest.update(os.fsencode(path))
        try:
            stat = os.stat(path)
            digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        except OSError:  # then the file is corrupt, not the copy
            digest.update(b"\0missing\0")
    return digest.hexdigest()


def _check(folder: pathlib.Path, originals: str) -> tuple[dict[str, Any] | None, str]:
    """Return the description of a complete and current copy, else None, and the reason."""
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
            return None, "it is not complete"
    except Exception as error:  # ArrayRecord raises any error of its C++ code
        return None, f"it is not complete: {' '.join(str(error).split())[:100]}"
    return about, "before"


def _count_records(folder: pathlib.Path) -> int:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(folder / _RECORDS))
    try:
        return reader.num_records()
    finally:
        reader.close()  # raises where the end of the file is corrupt


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
    # A process that died may have left one: nobody else holds the lock.
    shutil.rmtree(building, ignore_errors=True)
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
        for chunk in in_chunks(copy, len(split), f"{name}: copying", progress):
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
