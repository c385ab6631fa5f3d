"""What the operating system tells and does, without JAX."""

import importlib.metadata
import math
import os
import pathlib
import re
from typing import Any, Literal

import msgspec

from jaxbench.errors import BadInput, first_line

# Other work that takes more than this percentage of the host's processors disturbs measurements of
# CPUs: a step uses all cores and is as slow as the slowest. Beside accelerators a run needs few of
# them: other work disturbs it only if hardly any is left.
BUSY_PERCENT, _FULL_PERCENT = 10.0, 90.0
_ROOT = pathlib.Path("/")


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


def is_disturbed(other_percent: float, busy_percent: float, on_cpu: bool) -> bool:
    """Return whether other work on the host's processors, of all their work, slows a run down."""
    return other_percent > BUSY_PERCENT and (on_cpu or busy_percent > _FULL_PERCENT)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use, by affinity and container."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, cpu_quota())))


def cpu_quota() -> float:
    """Return the cores whose time the container may use: may be less than one, inf is no limit."""
    quotas = [math.inf]
    for folder in _cgroups():
        quota = search_file(folder / "cpu.max", r"^(\d+) ")
        period = search_file(folder / "cpu.max", r" (\d+)$")
        quota = quota or search_file(folder / "cpu.cfs_quota_us", r"^(\d+)$")  # -1: none
        period = period or search_file(folder / "cpu.cfs_period_us", r"^(\d+)$")
        if quota and period:
            quotas.append(int(quota) / int(period))
    return min(quotas)


def host_memory_bytes() -> tuple[int, int]:
    """Return the bytes of memory that this process may use at most, and those that are free.

    Both are the host's, or its container's if those are fewer.
    """
    import psutil  # not needed to read flags

    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    for folder in _cgroups():
        limits = [
            search_file(folder / name, r"^(\d+)$")
            for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        ]
        limit = min((int(limit) for limit in limits if limit), default=total)
        used = search_file(folder / "memory.current", r"^(\d+)$")
        used = used or search_file(folder / "memory.usage_in_bytes", r"^(\d+)$") or 0
        # The system takes pages of files back before it runs out. Version 1 names those of a group
        # without the groups in it, too.
        cached = sum(
            int(
                search_file(folder / "memory.stat", rf"^total_{name} (\d+)$")
                or search_file(folder / "memory.stat", rf"^{name} (\d+)$")
                or 0
            )
            for name in ("active_file", "inactive_file")
        )
        total = min(total, limit)
        if limit < memory.total:
            free = max(0, min(free, limit - int(used) + cached))
    return total, free


def _cgroups() -> list[pathlib.Path]:
    """Return the folders of this process's control groups and of those around them.

    A container may see them by the host's names or by its own, so every top is tried with both.
    """
    try:
        lines = (_ROOT / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    names = {"", *(line.split(":", 2)[-1].strip("/") for line in lines)}
    top = _ROOT / "sys/fs/cgroup"
    folders = set()
    for controller in ("", "unified", "cpu", "cpu,cpuacct", "memory"):
        for name in names:
            parts = pathlib.PurePath(controller, name).parts
            folders |= {top.joinpath(*parts[:count]) for count in range(len(parts) + 1)}
    return [folder for folder in folders if folder.is_dir()]


def last_level_cache_bytes() -> int | None:
    """Return the size of the first core's largest cache; None if the system does not tell."""
    files = _ROOT.glob("sys/devices/system/cpu/cpu0/cache/index*/size")
    sizes = [size for file in files if (size := search_file(file, r"^(\d+)K$"))]
    return max((int(size) * 1024 for size in sizes), default=None)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_tfds() -> Any:
    """Return TensorFlow Datasets, which itself logs what it cannot import and lacks its functions.

    Raises:
      BadInput: it is not complete: one line with the reason and what to install.
    """
    from absl import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)  # the log has the whole stack
    try:
        import tensorflow_datasets as tfds
        import tensorflow_datasets.public_api  # raises again what TFDS has only logged
    except Exception as error:  # also protobuf's own kinds
        missing = isinstance(error, ModuleNotFoundError) and error.name
        todo = missing or "-U tensorflow-datasets protobuf"
        raise BadInput(
            f"tensorflow_datasets cannot be imported: {type(error).__name__}: "
            f"{first_line(error)[:300].rstrip('.')}; pip install {todo}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    return tfds


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
