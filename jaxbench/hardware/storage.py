"""Count bytes read from storage, and empty the system's page cache of files."""

import os
from collections.abc import Iterable

import psutil

from jaxbench.errors import BadInput


def storage_read_bytes() -> int | None:
    """Return the bytes that this process and its children have read from storage.

    Bytes from the page cache are not counted. None where the system does not count.
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
    """Drop files from the page cache, so that they are read from storage again.

    Raises:
      BadInput: this system cannot do that.
    """
    if not hasattr(os, "posix_fadvise"):
        raise BadInput("files cannot be read anew: this system cannot be told to forget them")
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # reading it will say so
            continue
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
