"""What the operating system tells, without JAX."""

import importlib.metadata
import os
import pathlib
import re


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
    """Return the size of the first core's largest cache; None where the system does not tell.

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
