"""The run's clock: nothing else in jaxbench reads time.

Phases are exclusive: entering one pauses the one around it, so the phases and the remainder
(`other`) add up to the whole. JAX only queues work, so a phase that should cover device work
must end with `wait_until`.
"""

import contextlib
import datetime
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

Moment = datetime.datetime
Answer = TypeVar("Answer")
# How long a driver may take: it wakes the boards of a large host in seconds.
_PATIENCE_S = 15.0
# {source: the future of its last answer}, see `ask`.
_answers: dict[str, Any] = {}
# The sources of which an answer is overdue: nobody waits for them again.
_hanging: set[str] = set()


class Clock:
    """Seconds spent in each named phase since the clock was made."""

    def __init__(self):
        self._start_s = time.perf_counter()
        self._since_s = self._start_s
        self._began_s = _read_clocks()
        self._open = ["other"]
        self._spent_s = {"other": 0.0}

    def add(self, totals_s: Mapping[str, float]) -> None:
        """Count what an earlier process spent on the same run, as if it had been this one."""
        for phase, spent_s in totals_s.items():
            self._spent_s[phase] = self._spent_s.get(phase, 0.0) + spent_s
            self._start_s -= spent_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the `with` as `name`, and as nothing else."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now_s = time.perf_counter()
        phase = self._open[-1]
        self._spent_s[phase] = self._spent_s.get(phase, 0.0) + now_s - self._since_s
        self._since_s = now_s

    def wall_s(self) -> float:
        return time.perf_counter() - self._start_s

    def elapsed_s(self) -> dict[str, float]:
        """Return the seconds since the clock was made, by each clock that the system has.

        `run` is the clock of all metrics. `date` follows whoever sets it. `uptime` counts
        while the machine is suspended.
        """
        now_s = _read_clocks()
        return {name: now_s[name] - self._began_s[name] for name in now_s if name in self._began_s}

    def totals_s(self) -> dict[str, float]:
        """Return the seconds of each phase so far; their sum is `wall_s()` at this moment."""
        self._charge()
        return dict(self._spent_s)


def _read_clocks() -> dict[str, float]:
    clocks_s = {"run": time.perf_counter(), "date": time.time()}
    # The kernel's count: what stands between a process and its clocks does not reach it.
    with contextlib.suppress(OSError, ValueError):
        clocks_s["uptime"] = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    return clocks_s


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self):
        self._start_s = time.perf_counter()

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start_s


def process_cpu_s() -> float:
    """Return the processor seconds that this process's threads have taken."""
    return time.process_time()


def wait_until(ready: Callable[[], bool]) -> None:
    """Return once `ready()` is true.

    It looks again and again rather than blocking in the runtime, so that Ctrl-C is answered at
    once however long it takes. The pauses grow with the wait (a tenth of it, 50 ms at most).
    """
    watch = Stopwatch()
    while not ready():
        time.sleep(min(0.05, max(2e-5, watch.elapsed_s() / 10)))


def ask(source: str, call: Callable[[], Answer], patience_s: float | None = None) -> Answer:
    """Return what a call returns, or raise what it raises, if that may never happen.

    The call has a thread of its own: no signal is handled in a thread that hangs in C. A driver is
    given its usual time by None.

    Raises:
      TimeoutError: the source does not answer in time, or still owes the answer to another call.
    """
    from concurrent.futures import Future

    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    def wait_for(future: Future[Answer]) -> None:
        watch, limit_s = Stopwatch(), _PATIENCE_S if patience_s is None else patience_s
        if source not in _hanging:
            wait_until(lambda: future.done() or watch.elapsed_s() > limit_s)
        if not future.done():
            _hanging.add(source)
            raise TimeoutError(f"{source} does not answer")
        _hanging.discard(source)

    if source in _answers:  # of another thread, or of a call that was interrupted
        wait_for(_answers[source])
    _answers[source] = answer
    threading.Thread(target=run, name=f"ask {source}", daemon=True).start()
    wait_for(answer)
    return answer.result()


def pause(time_s: float) -> None:
    """Do nothing for so long."""
    time.sleep(time_s)


def process_age_s() -> float | None:
    """Return the seconds since this process was started; None if the system is not Linux."""
    try:
        # Field 22 of proc_pid_stat(5), in ticks since the machine's start; the second, in brackets,
        # may hold blanks.
        fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, AttributeError, IndexError):
        return None


def seconds_since_1970(moment: str) -> float | None:
    """Return an ISO date and time in seconds; None if it is none, or has no time zone."""
    try:
        date = Moment.fromisoformat(moment)
        return date.timestamp() if date.tzinfo else None
    except (ValueError, TypeError, OverflowError):
        return None


def now(ago_s: float = 0.0) -> Moment:
    """Return the date and time, or that of some seconds ago, with the local time zone."""
    return Moment.now().astimezone() - datetime.timedelta(seconds=ago_s)


def rough_duration(seconds: float) -> str:
    """Return a duration to about two digits: 0.8 s, 33 s, 3 min 20 s."""
    if seconds < 99.5:
        return f"{seconds:.{int(seconds < 9.95)}f} s"
    return duration(round(seconds))


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 8.21 s, 3 min 20 s, 5 h 7 min, 54 d 3 h."""
    if seconds < 99.995:
        return f"{seconds:.2f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h} h"
    return f"{h} h {m} min" if h else f"{m} min {s} s"
