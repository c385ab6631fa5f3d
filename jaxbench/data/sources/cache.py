"""Copies of encoded splits that are quicker to read: in memory, or smaller ones on disk."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

from jaxbench.clock import Stopwatch
from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset
from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.images.encoded import EncodedSplit, Source
from jaxbench.data.sources.chunks import in_chunks
from jaxbench.data.sources.disk_copy import copy_to_disk
from jaxbench.data.sources.memory import check_fits_in_memory


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


def apply_cache(
    dataset: Dataset, data: DataConfig, progress: Callable[[str], None] = lambda text: None
) -> Dataset:
    """Replace encoded originals by copies, as `data.cache` asks.

    Args:
      dataset: encoded.
      data: `cache` and its settings.
      progress: called now and then with a line that says how far the copying is.

    Returns:
      The data set on its copies. Its `cache` describes them: their size, the time they took and
      their quality (PSNR against the same reduction before it was encoded).

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
            splits[name], about[name] = copy_to_disk(split, name, data, progress)
    record = {"kind": data.cache, "took_s": watch.elapsed_s(), **about}
    return dataclasses.replace(dataset, cache=record, **splits)


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

    contents: list[tuple[bytes, int] | None] = []
    for chunk in in_chunks(read, count, f"{name}: reading into memory", progress):
        contents += chunk
    held_bytes = sum(len(found[0]) for found in contents if found)
    copy = dataclasses.replace(split, source=MemoryCopy(split.source, contents))
    return copy, {"examples": count, "bytes": held_bytes}
