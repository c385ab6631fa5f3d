"""The part storage: decoding, reading, and checkpoints, in the folder of the card."""

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxbench.analysis.statistics import median_interval
from jaxbench.cards.card import Figure, measured
from jaxbench.checkpoints.checkpoint import create_orbax, read_checkpoint, write_checkpoint
from jaxbench.clock import Stopwatch
from jaxbench.data.images.decode import Image, centre_crop, load_decoder
from jaxbench.data.images.encoded import read_image_file
from jaxbench.hardware.system import drop_from_page_cache
from jaxbench.qualification.session import QualifySession

# Photographs as ImageNet's: 500 x 375 pixels, about 110 KB each.
_IMAGES, _IMAGE_SHAPE, _QUALITY, _DECODED_SHAPE = 32, (375, 500, 3), 90, (224, 224)
_CHUNK_BYTES = 2**24
_MOST_ROUNDS, _FEWEST_ROUNDS = 8, 3
# Bytes of the file that is read and of a checkpoint, for each second that there is; and the limits.
_BYTES_PER_S, _LEAST_BYTES, _MOST_BYTES = 2**21, 2**25, 2**31
_SHARE_OF_DISK = 0.1
_ARRAYS = 8


def measure(session: QualifySession, time_s: float) -> None:
    """Measure one core's decoding, cold and warm reads, a checkpoint's writing and restoring."""
    each_s = time_s / 5
    free_bytes = shutil.disk_usage(session.folder).free
    size = int(min(_MOST_BYTES, max(_LEAST_BYTES, _BYTES_PER_S * time_s)))
    if size > _SHARE_OF_DISK * free_bytes:
        needed = f"{free_bytes >> 20} MiB free, {10 * size >> 20} are needed"
        raise OSError(f"{session.folder}: {needed}")
    with tempfile.TemporaryDirectory(prefix="storage-", dir=session.folder) as name:
        folder = pathlib.Path(name)
        session.show("decoding images")
        session.figures.append(_decode(folder, each_s))
        session.show("reading a file")
        session.figures += _read(folder, size, each_s)
        session.show("writing and restoring checkpoints")
        session.figures += _checkpoint(folder, size, each_s)


def _rate(name: str, amount: float, times_s: Sequence[float]) -> Figure:
    rate, low, high = median_interval([amount / time_s for time_s in times_s])
    return measured(name, rate, (low, high))


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


def _decode(folder: pathlib.Path, time_s: float) -> Figure:
    """Measure one thread that reads and decodes photographs, as evaluation does."""
    import cv2

    load_decoder()
    generator = np.random.default_rng(0)
    paths = []
    for number in range(_IMAGES):
        # Noise of some pixels' size: about as many bytes a pixel as photographs have.
        small = generator.integers(0, 256, (_IMAGE_SHAPE[0] // 5, _IMAGE_SHAPE[1] // 5, 3), "u1")
        pixels = cv2.resize(small, _IMAGE_SHAPE[1::-1], interpolation=cv2.INTER_CUBIC)
        path = folder / f"{number}.jpeg"
        cv2.imwrite(str(path), pixels, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        paths.append(str(path))

    def decode() -> None:
        for path in paths:
            centre_crop(Image(read_image_file(path)).whole(), *_DECODED_SHAPE)

    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        return _rate("decode_images_per_s", _IMAGES, _timed(decode, time_s))
    finally:
        cv2.setNumThreads(threads)


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
