"""Raise Ctrl-C and the signals of schedulers as exceptions, never in the middle of a record.

A signal handler can raise between taking a lock and the `with` that releases it, inside any
library. Whoever needs that lock next waits for ever: seen with the queue behind TensorBoard's event
files. So code that takes such locks runs under `defer_signals`.

The first signal ends the process in order, within its grace period. A later Ctrl-C ends it at once.
Other later signals are ignored: a scheduler that sends SIGTERM and SIGINT means one end, which is
the scheduler's, not the user's.
"""

import contextlib
import math
import os
import signal
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from jaxbench.clock import Stopwatch
from jaxbench.errors import Terminated
from jaxbench.terminal import warn

# How long a process may take from the signal to its end, unless --grace_period_s says otherwise.
# Clouds give 30 s (Google's spot machines) to 120 s (Amazon's) between the notice and the end.
GRACE_PERIOD_S = 20
# What ends a process as SIGTERM does: a lost connection; what Slurm, SGE and LSF send before a time
# limit (`--signal=USR1@120`, submitit, Lightning); a soft limit of processor time.
LIKE_SIGTERM = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# 143 for all of them: scripts that start a run again ask for one code.
_EXIT_CODES: dict[int, int] = dict.fromkeys((signal.SIGTERM, *LIKE_SIGTERM), 143)
_EXIT_CODES[signal.SIGINT] = 130
# A Ctrl-C that comes sooner after the first signal belongs to it.
_SAME_END_S = 0.5
# Functions that swallow exceptions (the second is JAX's, the third weakref's), and when to try
# again after one.
_SWALLOWING, _RETRY_S = ("__del__", "_xla_gc_callback", "finalize.__call__"), 0.02

_state = types.SimpleNamespace(
    first=None,  # the signal that the process ends for, its age
    other_end=None,  # the error that another thread raises in the main thread
    callback=None,  # called instead of raising
    depth=0,  # of `defer_signals`
    pending=False,  # whether the end of `defer_signals` raises
    stops_gracefully=False,  # whether the end of `graceful_stop` raises
    grace_period_s=GRACE_PERIOD_S,  # without end in a process that lives on
)


def raise_on_signals() -> None:
    """Have Ctrl-C raise KeyboardInterrupt, SIGTERM and `LIKE_SIGTERM` Terminated from now on.

    For the main thread of an entry point. A signal that is ignored (nohup) or has a handler keeps
    it; SIGTERM alone is always raised.
    """
    _state.first = None
    signal.signal(signal.SIGTERM, _handle)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)
    for number in LIKE_SIGTERM:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _handle)


@contextlib.contextmanager
def handle_ctrl_c() -> Iterator[None]:
    """Have Ctrl-C end the `with` as it ends a command, while the process (a notebook) lives on.

    A second Ctrl-C raises KeyboardInterrupt at once. Nothing changes in other threads than the main
    one, or if Ctrl-C has another handler than Python's own.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not on_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _state.first, before_s = None, _state.grace_period_s
    set_grace_period(math.inf)
    signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        set_grace_period(before_s)
        _state.first = None


def set_grace_period(seconds: float) -> None:
    """Set how long this process may take from a signal to its end; then it is forced to exit."""
    _state.grace_period_s = seconds


def grace_period_s() -> float:
    """Return how long this process may take from a signal to its end."""
    return _state.grace_period_s


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Raise a signal that arrives inside the `with` at its end."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
        if _state.pending and not _state.depth:
            _state.pending = False
            _raise()


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function: whether a signal has come. The end of the `with` raises it.

    For work that ends soon, at a point of its choosing. Another exception that leaves the `with`
    takes its place. The end of another process is raised at once: this one may wait for it.
    """
    _state.stops_gracefully = True
    try:
        yield lambda: _state.first is not None
    finally:
        _state.stops_gracefully = False
    if _state.first:
        _raise()


def reason_of(error: BaseException) -> BaseException:
    """Return Terminated for a Ctrl-C that came with another signal, else the error itself."""
    if isinstance(error, KeyboardInterrupt) and _state.first:
        signal.pthread_sigmask(signal.SIG_BLOCK, [])  # calls handlers that have not been called
        if _state.first[0] != signal.SIGINT:
            return Terminated(signal.Signals(_state.first[0]).name)
    return error


def raise_in_main_thread(error: BaseException) -> None:
    """Have the main thread raise this error as it would for a signal; for other threads."""
    _state.other_end = error
    # It runs: it has an identifier.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)  # type: ignore[arg-type]


def stop_main_thread(number: int) -> None:
    """Send a signal to the main thread, unless it has had one; for other threads."""
    if _state.first is None:
        signal.pthread_kill(threading.main_thread().ident, number)  # type: ignore[arg-type]


def set_signal_callback(callback: Callable[[int], None]) -> None:
    """Have signals call a quick function with their number instead of raising."""
    _state.callback = callback


def _handle(number: int, frame: FrameType | None) -> None:
    if not signal.getitimer(signal.ITIMER_REAL)[0]:  # a repeated signal gives no more time
        _limit_time(number)
    if _state.other_end is None:
        if _state.callback:
            _state.callback(number)
            return
        if _state.first:
            if number == signal.SIGINT and _state.first[1].elapsed_s() > _SAME_END_S:
                if _state.grace_period_s == math.inf:
                    raise KeyboardInterrupt
                warn("jaxbench: ended at once by a second Ctrl-C")
                os._exit(_EXIT_CODES[_state.first[0]])
            if number != signal.SIGINT and _state.first[1].elapsed_s() <= _SAME_END_S:
                # Python handles signals that come together by their numbers, SIGINT first.
                _state.first = number, _state.first[1]
            return
        _state.first = number, Stopwatch()
        if _state.stops_gracefully:
            return
    _deliver(number, frame)


def _deliver(number: int, frame: FrameType | None) -> None:
    """Raise the exception now, at the end of `defer_signals`, or when it is not swallowed."""
    if _state.depth:
        _state.pending = True
    elif any(
        {caller.f_code.co_name, caller.f_code.co_qualname} & {*_SWALLOWING}
        for caller, _ in traceback.walk_stack(frame)
    ):

        def retry(_: int, frame: FrameType | None) -> None:
            _limit_time(number)
            if _state.other_end or not _state.stops_gracefully:
                _deliver(number, frame)

        signal.signal(signal.SIGALRM, retry)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
    else:
        _raise()


def _raise() -> NoReturn:
    if _state.other_end:
        raise _state.other_end
    number = _state.first[0]
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(signal.Signals(number).name)


def _limit_time(number: int) -> None:
    """Have the process exit at the end of its grace period."""

    def force_exit(*_: Any) -> None:
        warn(f"jaxbench: did not end in {_state.grace_period_s:g} s, forced to exit")
        os._exit(_EXIT_CODES[number])

    if _state.grace_period_s < math.inf:
        signal.signal(signal.SIGALRM, force_exit)
        signal.setitimer(signal.ITIMER_REAL, _state.grace_period_s)
