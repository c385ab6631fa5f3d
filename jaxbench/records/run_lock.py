"""The lock of a run directory, which says whether the run is running.

The system releases it when the process ends, however it ends. Process ids, host names and clocks
differ between containers and hosts; a lock does not.
"""

import fcntl
import os
import pathlib

from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import BadInput
from jaxbench.terminal import warn

# A file and not the folder itself: NFS shares locks of files that are open for writing alone.
LOCK = "run.lock"
# `is_running` holds the lock for a moment; a claim waits longer than that.
_PATIENCE_S = 1.0
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lock_run(path: pathlib.Path) -> int:
    """Lock a run directory for this process; return the descriptor that holds the lock.

    Child processes do not inherit it. Where the file system has no locks, a line says so.

    Raises:
      BadInput: a process is running there.
      OSError: the folder cannot be written to.
    """
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
    watch = Stopwatch()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if watch.elapsed_s() >= _PATIENCE_S:
                os.close(descriptor)
                raise BadInput(f"{path}: is still running in another process") from None
            pause(0.02)
        except OSError as error:
            why = f"cannot be locked ({error.strerror}): start no other run there"
            warn(f"jaxbench: {path}: {why}")
            return descriptor


def is_running(path: pathlib.Path) -> bool | None:
    """Return whether a process holds the lock of a run directory; None if nobody can tell."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
