"""One program in a process of its own, with limits; says how it ended."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxbench.clock import Stopwatch
from jaxbench.errors import OUT_OF_MEMORY, BadInput

# How long a program may take from SIGTERM to its end.
_GRACE_S = 15.0
_POLL_S = 0.2
_TAIL_BYTES = 20_000
# -I, -S: as quick as an interpreter starts; COMMAND's own is not touched by that.
LAUNCHER = (sys.executable, "-I", "-S", str(pathlib.Path(__file__).with_name("child_launcher.py")))


class ProcessResult(NamedTuple):
    """How a program ended.

    Attributes:
      status: `exited`, `oom` (the system or the program says that memory ran out) or `timeout`.
      reason: in words; None where it exited with 0.
      exit_code: as a shell has it, 128 + the signal's number for one.
      wall_s: seconds from start to end.
    """

    status: str
    reason: str | None
    exit_code: int
    wall_s: float


def check_memory_limit(memory_limit_mb: float | None) -> None:
    """Raises BadInput where this system cannot limit a process's memory."""
    if memory_limit_mb and not sys.platform.startswith("linux"):
        raise BadInput("--memory_limit_mb: only Linux can limit the memory of a process")


def run_child(
    command: Sequence[str],
    log: pathlib.Path,
    *,
    timeout_s: float | None = None,
    memory_limit_mb: float | None = None,
    watch: Callable[[str], None] = lambda line: None,
) -> ProcessResult:
    """Runs a program to its end; it ends with this process, however this one ends (on Linux).

    Args:
      command: the program, by its whole path, and its arguments.
      log: takes what it prints.
      timeout_s: after so long it is asked to end, and then made to.
      memory_limit_mb: MiB of private memory that each of its processes may have (RLIMIT_DATA).
      watch: told its last line now and then.

    Returns:
      How it ended. An exception on the way ends the program first.
    """
    kills = _oom_kills()
    limit_bytes = int(memory_limit_mb * 2**20) if memory_limit_mb else 0
    clock = Stopwatch()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*LAUNCHER, str(os.getpid()), str(limit_bytes), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for the parent, which ends its child in its own way.
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        timed_out = False
        while process.poll() is None and not timed_out:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            watch(_last_line(log))
            timed_out = bool(timeout_s) and clock.elapsed_s() > timeout_s
    finally:
        _end(process)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    status, reason = "exited", None
    if timed_out:
        status, reason = "timeout", f"took longer than {timeout_s:g} s"
    elif code:
        status, reason = _explain(process.returncode, log, _oom_kills() > kills)
    return ProcessResult(status, reason, code, clock.elapsed_s())


def _end(process: subprocess.Popen) -> None:
    """Ends the program and what it has started, if it still runs."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _explain(return_code: int, log: pathlib.Path, system_killed: bool) -> tuple[str, str]:
    """Returns status and reason of a program that did not end well."""
    lines = _tail(log)
    killed_by = signal.Signals(-return_code).name if return_code < 0 else None
    if killed_by == "SIGKILL" and system_killed:
        return "oom", "killed by the system, which was out of memory"
    if killed_by in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGKILL") or return_code == 127:
        # It could not write its record any more; what it said last must do.
        said = next((line for line in reversed(lines) if OUT_OF_MEMORY.search(line)), None)
        if said is not None:
            return "oom", said.strip().removeprefix("what():").strip()
    if killed_by:
        return "exited", f"killed by {killed_by}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return "exited", last.removeprefix("jaxbench: ")


def _tail(log: pathlib.Path) -> list[str]:
    with open(log, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def _last_line(log: pathlib.Path) -> str:
    return next((line.strip() for line in reversed(_tail(log)) if line.strip()), "")


def _oom_kills() -> int:
    """How often the system has killed a process for want of memory; 0 where it does not say."""
    try:
        text = pathlib.Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0
