"""The part storage: reading and checkpoints, in the folder of the card."""

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxbench.analysis.rate import estimate
from jaxbench.cards.card import Figure, measured
from jaxbench.checkpoints.checkpoint import create_orbax, read_checkpoint, write_checkpoint
from jaxbench.clock import Stopwatch
from jaxbench.hardware.system import drop_from_page_cache
from jaxbench.qualification.session import QualifySession

_CHUNK_BYTES = 2**24
_MOST_ROUNDS, _FEWEST_ROUNDS = 8, 3
# Bytes of the file that is read and of a checkpoint, for each second that there is; and the limits.
_BYTES_PER_S, _LEAST_BYTES, _MOST_BYTES = 2**21, 2**25, 2**31
_SHARE_OF_DISK = 0.1
_ARRAYS = 8


def measure(session: QualifySession, time_s: float) -> None:
    """Measure cold and warm reads, a checkpoint's writing and restoring."""
    each_s = time_s / 4
    free_bytes = shutil.disk_usage(session.folder).free
    size = int(min(_MOST_BYTES, max(_LEAST_BYTES, _BYTES_PER_S * time_s)))
    if size > _SHARE_OF_DISK * free_bytes:
        raise OSError(f"{free_bytes >> 20} MiB free, {10 * size >> 20} are needed")
    with tempfile.TemporaryDirectory(prefix="storage-", dir=session.folder) as name:
        folder = pathlib.Path(name)
        session.show("reading a file")
        session.figures += _read(folder, size, each_s)
        session.show("writing and restoring checkpoints")
        session.figures += _checkpoint(folder, size, each_s)


def _rate(name: str, amount: float, times_s: Sequence[float]) -> Figure:
    return measured(name, estimate([amount / time_s for time_s in times_s]))


def _timed(
    call: Callable[[], object], time_s: float, before: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the seconds of each of some calls, after one that is thrown away.

    Args:
      time_s: for all calls; there are `_FEWEST_ROUNDS` in any case.
      before: is called before each call, and not timed.
    """
    times_s, whole = [], Stopwatch()
    while len(times_s) <= _FEWEST_ROUNDS or (
        len(times_s) <= _MOST_ROUNDS and whole.elapsed_s() < time_s
    ):
        before()
        watch = Stopwatch()
        call()
        times_s.append(watch.elapsed_s())
    return times_s[1:]


def _read(folder: pathlib.Path, size: int, time_s: float) -> Iterator[Figure]:
    path = folder / "file"
    # Random, or a file system that compresses would store next to nothing.
    path.write_bytes(np.random.default_rng(1).bytes(size))
    buffer = bytearray(_CHUNK_BYTES)

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    cold_s = _timed(read, time_s, before=lambda: _forget([path]))
    yield _rate("read_cold_gb_per_s", size / 1e9, cold_s)
    yield _rate("read_warm_gb_per_s", size / 1e9, _timed(read, time_s))
    path.unlink()


def _forget(paths: Sequence[pathlib.Path]) -> None:
    """Have the page cache forget files; what is not on the disk yet cannot be forgotten."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    drop_from_page_cache(map(str, paths))


def _checkpoint(folder: pathlib.Path, size: int, time_s: float) -> Iterator[Figure]:
    """Measure checkpoints as training writes and reads them: digests, and flushed to the disk."""
    generator, orbax = np.random.default_rng(2), create_orbax()
    elements = size // _ARRAYS // 4
    state = {f"array{n}": generator.standard_normal(elements, "f4") for n in range(_ARRAYS)}
    num_bytes = sum(array.nbytes for array in state.values())
    name = "step-000000001.epoch-00001"
    write_s = _timed(lambda: write_checkpoint(orbax, folder, name, state, {}, None), time_s)
    yield _rate("checkpoint_write_gb_per_s", num_bytes / 1e9, write_s)
    files = [path for path in (folder / name).rglob("*") if path.is_file()]
    restore_s = _timed(lambda: read_checkpoint(folder, name, state), time_s, lambda: _forget(files))
    yield _rate("checkpoint_restore_gb_per_s", num_bytes / 1e9, restore_s)
