"""Open regular files only: a pipe blocks whoever opens it, a link may lead anywhere."""

import errno
import functools
import os
import stat
from typing import Any


def open_regular(path: str | os.PathLike, mode: str = "r", **options: Any) -> Any:
    """Open a file as `open` does; raise OSError for a pipe, a device or a folder."""
    return open(path, mode, opener=_open_descriptor, **options)


def open_own(path: str | os.PathLike, mode: str, **options: Any) -> Any:
    """Open a file of a run directory, to write to it; raise OSError for a link, too."""
    return open(path, mode, opener=functools.partial(_open_descriptor, own=True), **options)


def _open_descriptor(path: str, flags: int, *, own: bool = False) -> int:
    # Non-blocking: else opening a pipe waits for its other end.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if own else 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link", path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", path)
    return descriptor


def end_of_lines(file: Any) -> int:
    """Return how many bytes of a binary file are whole lines; what follows has no end."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = file.seek(max(0, end - 2**16))
        if (place := file.read(end - start).rfind(b"\n")) >= 0:
            return start + place + 1
        end = start
    return 0
