"""Become another program, after setting limits that only its own process can set.

    python child_launcher.py PARENT LIMIT_BYTES COMMAND...

A script of its own, because a process with threads (JAX has many) must not do this between fork and
exec. Needs nothing but the standard library.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: str, limit_bytes: str, *command: str) -> None:
    """Become `command`, which is killed when the process `parent` ends (on Linux).

    Args:
      parent: the id of the process that started this one.
      limit_bytes: of private memory, 0 for no limit.
      command: the program and its arguments.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it ended in between
            sys.exit(1)
    if int(limit_bytes):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit_bytes), int(limit_bytes)))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
