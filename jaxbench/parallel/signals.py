"""Raise Ctrl-C, SIGTERM and SIGHUP as exceptions, never in the middle of a record.

A signal handler can raise between taking a lock and the `with` that releases it, inside any
library. Whoever needs that lock next waits for ever: seen with the queue behind TensorBoard's event
files. So quick code that takes such locks runs under `defer_signals`. A process that still hangs is
forced to exit.

A process ends once, for the first signal: a scheduler that sends SIGTERM and SIGINT means one end.
Only a Ctrl-C some time later is a wish of its own: to end at once, whatever is lost.
"""

import contextlib
import math
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.clock import Stopwatch
from jaxbench.errors import Terminated
from jaxbench.terminal import warn

# How long a process may take from the signal to its end, unless --grace_period_s says otherwise.
# Clouds give 30 s (Google's spot machines) to 120 s (Amazon's) between the notice and the end.
GRACE_PERIOD_S = 20
# How soon to try again where an exception would be lost, and in which functions it would (the
# second is JAX's).
_SOON_S, _SWALLOWING = 0.02, ("__del__", "_xla_gc_callback")
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
# A Ctrl-C that comes sooner after the first signal belongs to it.
_SAME_END_S = 0.1

# The signal that the process ends for, and the time since.
_first: tuple[int, Stopwatch] | None = None
_at_once = False  # whether a second Ctrl-C has come
_depth = 0
_pending: int | None = None
_interruptible = False  # by a second Ctrl-C, while signals are deferred
_asking = False
_asked: int | None = None
_from_thread: BaseException | None = None
_instead: Callable[[int], None] | None = None
_lives_on = False  # whether the process has more to do after this end
_grace_period_s: float = GRACE_PERIOD_S


def raise_on_signals() -> None:
    """Have Ctrl-C raise KeyboardInterrupt, SIGTERM and SIGHUP raise Terminated from now on.

    For the main thread of an entry point. A Ctrl-C or SIGHUP that is ignored (nohup) stays ignored.
    """
    global _first, _at_once
    _first, _at_once = None, False
    signal.signal(signal.SIGTERM, _handle)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _handle)


def set_grace_period(seconds: float) -> None:
    """Set how long this process may take from a signal to its end; then it is forced to exit."""
    global _grace_period_s
    _grace_period_s = seconds


def extend_grace_period(seconds: float) -> None:
    """Let this process take at least so long to end: it has to end another one first."""
    set_grace_period(max(seconds, _grace_period_s))


def grace_period_s() -> float:
    """Return how long this process may take from a signal to its end."""
    return math.inf if _lives_on else _grace_period_s


@contextlib.contextmanager
def handle_ctrl_c() -> Iterator[None]:
    """Have Ctrl-C end what is inside the `with` as it ends a command, and the process live on.

    Nothing changes in other threads than the main one, and where Ctrl-C has another handler than
    Python's own.
    """
    global _first, _at_once, _lives_on
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not on_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    on_alarm = signal.getsignal(signal.SIGALRM)
    _first, _at_once, _lives_on = None, False, True
    signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if _first:
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, on_alarm)
        _first, _at_once, _lives_on = None, False, False


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Raise a signal that arrives inside the `with` at its end."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _pending is not None and not _is_deferring():
            number, _pending = _pending, None
            _raise(number)


@contextlib.contextmanager
def defer_first_signal() -> Iterator[None]:
    """Do the same, but let a second Ctrl-C end the `with`: for long work that takes no locks."""
    global _interruptible
    with defer_signals():
        if _at_once:
            _raise(_first[0])
        _interruptible = _depth == 1
        try:
            yield
        finally:
            _interruptible = False


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Have a first signal raise nothing inside the `with`; yield a function: whether it has come.

    For work that ends soon, at a point of its choosing. The end of the `with` raises it, unless
    another exception leaves it.
    """
    global _asking, _asked
    _asking = True
    try:
        yield lambda: _asked is not None
    finally:
        _asking, asked, _asked = False, _asked, None
    if asked is not None:
        _raise(asked)


def reason_of(error: BaseException) -> BaseException:
    """Return Terminated for a Ctrl-C that a SIGTERM or SIGHUP came with, else the error itself.

    Python calls the handler of SIGINT first, and after its exception the other's not before it is
    asked to.
    """
    if isinstance(error, KeyboardInterrupt) and _first:
        signal.pthread_sigmask(signal.SIG_BLOCK, [])  # calls handlers that have not been called
        if _first[0] != signal.SIGINT:
            return Terminated(signal.Signals(_first[0]).name)
    return error


def raise_in_main_thread(error: BaseException) -> None:
    """Have the main thread raise this error as it would for a signal; for other threads."""
    global _from_thread
    _from_thread = error
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


def stop_main_thread(number: int) -> None:
    """Send a signal to the main thread, unless it has had one; for other threads."""
    if _first is None:
        signal.pthread_kill(threading.main_thread().ident, number)


def instead_of_raising(ask: Callable[[int], None]) -> None:
    """Have a signal call a quick function with its number, for the rest of the process."""
    global _instead
    _instead = ask


def _handle(number: int, frame: Any) -> None:
    global _asked, _at_once, _first, _pending
    _limit_time(number)
    if _from_thread is None:
        if _instead:
            _instead(number)
            return
        if _first is None:
            _first = number, Stopwatch()
            if _asking:
                _asked = number
                return
        elif number == signal.SIGINT and _first[1].elapsed_s() > _SAME_END_S:
            _at_once = True
        else:
            if number != signal.SIGINT and _first[1].elapsed_s() <= _SAME_END_S:
                # Python handles signals that come together by their numbers, SIGINT first.
                _first = number, _first[1]
                _asked, _pending = _asked and number, _pending and number
            return
        number = _first[0]
    _deliver(number, frame)


def _limit_time(number: int) -> None:
    # Set once: a repeated signal gives no more time.
    if not _lives_on and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.signal(signal.SIGALRM, lambda *_: _force_exit(_EXIT_CODES[number]))
        signal.setitimer(signal.ITIMER_REAL, _grace_period_s)


def _deliver(number: int, frame: Any) -> None:
    """Raise a signal's exception, now or where it is not lost."""
    global _pending
    if _is_deferring():
        _pending = number
    elif any(outer.f_code.co_name in _SWALLOWING for outer, _ in traceback.walk_stack(frame)):

        def again(_: int, frame: Any) -> None:
            _limit_time(number)
            _deliver(number, frame)

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
    else:
        _raise(number)


def _is_deferring() -> bool:
    return _depth > (_at_once and _interruptible)


def _raise(number: int) -> None:
    if _from_thread is not None:
        raise _from_thread
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(signal.Signals(number).name)


def _force_exit(code: int) -> None:
    warn(f"jaxbench: did not end in {_grace_period_s:g} s, forced to exit")
    os._exit(code)
