"""Run one program in a process of its own, with limits, and say how it ended."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxbench.clock import Stopwatch
from jaxbench.errors import OUT_OF_MEMORY

# Seconds that a program has from SIGTERM to SIGKILL.
_GRACE_S = 15.0
_POLL_S = 0.2
_TAIL_BYTES = 20_000
_FATAL = re.compile(r"F\d{4} \S+ +\d+ [\w.]+:\d+\] (.+)")
# -I and -S start the interpreter quickly; the command that it becomes is not affected.
LAUNCHER = (sys.executable, "-I", "-S", str(pathlib.Path(__file__).with_name("child_launcher.py")))


class ProcessResult(NamedTuple):
    """How a program ended."""

    status: str  # `exited`, `timeout`, or `oom` where the system or the program says so
    reason: str | None  # None where it exited with 0
    exit_code: int  # as a shell has it: 128 + the signal's number for a signal
    wall_s: float


def run_child(
    command: Sequence[str],
    log: pathlib.Path,
    *,
    timeout_s: float | None = None,
    memory_limit_mb: float | None = None,
    variables: Mapping[str, str] | None = None,
    watch: Callable[[str], None] = lambda line: None,
) -> ProcessResult:
    """Run a program to its end. On Linux it ends with this process, however that ends.

    Args:
      command: the program's absolute path and its arguments.
      log: the file for its output.
      timeout_s: seconds until SIGTERM; SIGKILL follows 15 s later.
      memory_limit_mb: MiB of private memory for each of its processes (RLIMIT_DATA).
      variables: of its environment, beside this process's own.
      watch: called now and then with its last line of output.

    Returns:
      How it ended. An exception in this process ends the program first.
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
            # Ctrl-C in the terminal goes to this process alone, which then ends its child.
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(variables or {}),
        )
    try:
        timed_out = False
        while process.poll() is None and not timed_out:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            watch(next(iter(_last_lines(log)), ""))
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
    """End a program that still runs; SIGKILL goes to the processes that it has started too."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _explain(return_code: int, log: pathlib.Path, system_killed: bool) -> tuple[str, str]:
    """Return the status and reason of a program that failed."""
    lines = _last_lines(log)
    killed_by = signal.Signals(-return_code).name if return_code < 0 else None
    if killed_by == "SIGKILL" and system_killed:
        return "oom", "killed by the system, which was out of memory"
    if killed_by in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGKILL") or return_code == 127:
        # It could not record its end; its last output tells.
        said = next(filter(OUT_OF_MEMORY.search, lines), None)
        if said is not None:
            return "oom", said.removeprefix("what():").strip()
    # What C++ gives up with: `F1123 07:25:00.901337 26813 file.cc:9] Check failed: ...`.
    fatal = next((found[1] for line in lines if (found := _FATAL.match(line))), None)
    if killed_by:
        return "exited", f"killed by {killed_by}" + (f": {fatal}" if fatal else "")
    return "exited", fatal or (lines or ["it said nothing"])[0].removeprefix("jaxbench: ")


def _last_lines(log: pathlib.Path) -> list[str]:
    """Return the last lines that are not empty, the very last one first."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.strip() for line in reversed(lines) if line.strip()]


def _oom_kills() -> int:
    """Return how many processes the system has killed out of memory; 0 where it does not say."""
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/vmstat").read_text()
        if match := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(match[1])
    return 0
