"""What is read from storage, and what the system's page cache has in memory already."""

import os
from collections.abc import Iterable

import psutil

from jaxbench.errors import BadInput


def storage_read_bytes() -> int | None:
    """Bytes that storage has given this process and its children, None where nobody counts them.

    What the page cache had is not in it.
    """
    process = psutil.Process()
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.io_counters().read_bytes
    except (AttributeError, psutil.Error):  # not on this system, or a child that has just ended
        return None
    return total


def drop_from_page_cache(paths: Iterable[str]) -> None:
    """Has the system forget these files' contents, so that they are read from storage again.

    Raises:
      BadInput: this system cannot do that.
    """
    if not hasattr(os, "posix_fadvise"):
        raise BadInput("--page_cache=cold: this system cannot be told to forget files")
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # told when its turn comes
            continue
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
