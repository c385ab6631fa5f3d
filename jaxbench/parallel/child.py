"""Run one program in a process of its own, with limits, and return how it ended."""

import contextlib
import itertools
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.clock import Stopwatch
from jaxbench.errors import OUT_OF_MEMORY
from jaxbench.parallel.signals import GRACE_PERIOD_S, grace_period_s, set_grace_period

# Seconds that a program has from the end of its grace period, at which it exits, to SIGKILL.
_MARGIN_S = 2.0
_GRACE_PERIOD = re.compile(r"--?grace_period_s=(\d+)")
_POLL_S = 0.2
_TAIL_BYTES = 20_000
# What C++ gives up with: `F1123 07:25:00.901337 26813 file.cc:9] Check failed: ...`.
_FATAL = re.compile(r"F\d{4} \S+ +\d+ [\w.]+:\d+\] (.+)")
# Slurm logs that it killed a task out of memory; srun's exit code does not show it.
_KILLED_BY_SLURM = re.compile(r"slurmstepd\S* error: Detected \d+ oom.kill event")
# Ends that leave a program no time to write why.
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV)
# The control groups of this process, and where the system shows them.
_CGROUP, _CGROUPS = pathlib.Path("/proc/self/cgroup"), pathlib.Path("/sys/fs/cgroup")
# What starts a program several times tells each process their number and its own, in variables.
STARTERS = {
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "MPI": ("PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, and those of PBS and Cray
    "MVAPICH": ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    "jsrun": ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),  # LSF
    "torchrun": ("WORLD_SIZE", "RANK"),
    "a TPU multislice": ("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"),
}
# Becomes a command that ends with the process PARENT (on Linux): LAUNCHER PARENT LIMIT COMMAND...
# LIMIT: bytes of private memory (RLIMIT_DATA), 0 for none. Only the command's own process can set
# this, and one with threads (JAX has many) must not do it between fork and exec.
_LAUNCHER = """
import ctypes, os, resource, signal, sys
parent, limit, *command = sys.argv[1:]
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):  # it ended in between
        sys.exit(1)
if int(limit):
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
os.execv(command[0], command)
"""
# -I and -S start the interpreter quickly; the command that it becomes is not affected.
LAUNCHER = (sys.executable, "-I", "-S", "-c", _LAUNCHER)


class ProcessResult(NamedTuple):
    """How a program ended."""

    status: str  # `exited`, `timeout`, or `oom` if the system or the program reports it
    reason: str | None  # None if it exited with 0
    # As a shell has it: 128 + the signal's number for a signal; None if nobody knows.
    exit_code: int | None
    wall_s: float


class Child:
    """A program in a process of its own, with limits. On Linux it ends with this process.

    Args:
      command: the program's absolute path and its arguments.
      log: the file for its output.
      timeout_s: seconds to SIGTERM; SIGKILL follows 2 s after the program's --grace_period_s.
      memory_limit_mb: MiB of private memory for each of its processes.
      variables: of its environment, besides those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: pathlib.Path,
        *,
        timeout_s: float | None = None,
        memory_limit_mb: float | None = None,
        variables: Mapping[str, str] | None = None,
    ):
        self.log, self._timeout_s = log, timeout_s
        self._grace_s = seconds_to_end(command)
        # This process ends the child first.
        set_grace_period(max(self._grace_s + _MARGIN_S, grace_period_s()))
        self._kills = _oom_kills()
        self._clock = Stopwatch()
        # What has started this process several times has not started the program.
        dropped = {*itertools.chain(*STARTERS.values())}
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [*LAUNCHER, str(os.getpid()), str(int((memory_limit_mb or 0) * 2**20)), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal goes to this process only, which then ends its child.
                start_new_session=True,
                env=inherited | {"PYTHONUNBUFFERED": "1"} | dict(variables or {}),
            )

    def wait(self) -> ProcessResult | None:
        """Wait a moment; return how it ended, None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL_S)
        timed_out = self._clock.elapsed_s() > (self._timeout_s or math.inf)
        if self._process.poll() is None:
            if not timed_out:
                return None
            self.end()
        code = self._process.returncode
        status, reason = "exited", None
        if timed_out:
            status, reason = "timeout", f"took longer than {self._timeout_s:g} s"
        elif code:
            kills = None if self._kills is None else (_oom_kills() or 0) > self._kills
            status, reason = _explain(code, self.log, kills)
        return ProcessResult(
            status, reason, code if code >= 0 else 128 - code, self._clock.elapsed_s()
        )

    def end(self) -> None:
        """End it if it runs; SIGKILL goes to the processes that it has started too."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def seconds_to_end(command: Sequence[str]) -> float:
    """Return how long a program may take from SIGTERM to its end."""
    flags_s = [int(match[1]) for word in command if (match := _GRACE_PERIOD.fullmatch(word))]
    return ([GRACE_PERIOD_S, *flags_s])[-1] + _MARGIN_S


def run_child(command: Sequence[str], log: pathlib.Path, **limits: Any) -> ProcessResult:
    """Run a program to its end, see `Child`; an exception in this process ends it first."""
    child = Child(command, log, **limits)
    try:
        while (result := child.wait()) is None:
            pass
        return result
    finally:
        child.end()


def last_line(log: pathlib.Path) -> str:
    """Return the last line of a log that is not empty."""
    return next(iter(_last_lines(log)), "")


def _last_lines(log: pathlib.Path) -> list[str]:
    """Return a log's last lines that are not empty, the very last one first.

    Lines in which srun repeats how its tasks ended are excluded.
    """
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return [line for line in reversed(lines) if line and not line.startswith("srun: ")]


def _explain(return_code: int, log: pathlib.Path, system_killed: bool | None) -> tuple[str, str]:
    """Return the status and reason of a program that failed, perhaps killed out of memory."""
    lines = _last_lines(log)
    number = -return_code if return_code < 0 else return_code - 128  # as srun has it
    killed_by = signal.Signals(number).name if return_code < 0 or number in _CRASHES else None
    if killed_by == "SIGKILL" and system_killed:
        return "oom", "killed by the system, which was out of memory"
    # A program that crashed could not record its end: its output may tell.
    memory = OUT_OF_MEMORY if number in _CRASHES or return_code == 127 else _KILLED_BY_SLURM
    if line := next(filter(memory.search, lines), None):
        return "oom", line.removeprefix("what():").strip()
    fatal = next((match[1] for line in lines if (match := _FATAL.match(line))), None)
    if killed_by:
        may_be = "; the system may have been out of memory"
        unknown = may_be if killed_by == "SIGKILL" and system_killed is None else ""
        return "exited", f"killed by {killed_by}" + (f": {fatal}" if fatal else unknown)
    return "exited", fatal or (lines or ["no output"])[0].removeprefix("jaxbench: ")


def _oom_kills() -> int | None:
    """Return how many processes of this one's control group were killed out of memory.

    None if it does not count: other programs' ends, which /proc/vmstat counts too, say nothing.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in _CGROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            file = "memory/{}/memory.oom_control" if controllers else "{}/memory.events"
            # A container may see its own group as the root.
            for place in (path.strip("/"), "."):
                with contextlib.suppress(OSError):
                    text = (_CGROUPS / file.format(place)).read_text()
                    if match := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
                        return int(match[1])
    return None
