"""What the operating system tells and does, without JAX."""

import contextlib
import importlib.metadata
import math
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from jaxbench.errors import BadInput
from jaxbench.files import open_regular


class Check(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of the doctor.

    Attributes:
      name: what was looked at.
      status: ok, warning or problem.
      detail: what it is.
      advice: what to do if it is not ok.
    """

    name: str
    status: Literal["ok", "warning", "problem"]
    detail: str
    advice: str = ""


def search_file(path: str | pathlib.Path, pattern: str) -> str | None:
    """Return a pattern's group as it first occurs in a file of the system, None without it."""
    try:
        match = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def last_level_cache_bytes(root: pathlib.Path = pathlib.Path("/")) -> int | None:
    """Return the size of the first core's largest cache; None if the system does not tell.

    Args:
      root: the folder that holds sys.
    """
    files = root.glob("sys/devices/system/cpu/cpu0/cache/index*/size")
    sizes = [size for file in files if (size := search_file(file, r"^(\d+)K$"))]
    return max((int(size) * 1024 for size in sizes), default=None)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def storage_read_bytes() -> int | None:
    """Return the bytes that this process and its children have read from storage.

    Bytes from the page cache are not counted. None if the system does not count.
    """
    import psutil  # not needed to read flags

    process = psutil.Process()
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.io_counters().read_bytes
    except (AttributeError, psutil.Error):  # not on this system, or a child that has just ended
        return None
    return total


def drop_from_page_cache(paths: Iterable[str]) -> None:
    """Drop files from the page cache, so that they are read from storage again.

    Raises:
      BadInput: this system cannot do that.
    """
    if not hasattr(os, "posix_fadvise"):
        raise BadInput("files cannot be read anew: this system cannot be told to forget them")
    for path in paths:
        # One that cannot be opened is named when it is read.
        with contextlib.suppress(OSError), open_regular(path, "rb", most_bytes=math.inf) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
