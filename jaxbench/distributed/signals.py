"""Raise Ctrl-C and SIGTERM as exceptions, never in the middle of a record.

An exception out of a signal handler can rise between a lock's being taken and the `with` that
would release it, inside any library; whoever needs that lock next then waits for ever (seen with
the queue behind TensorBoard's event files). So quick code that takes such locks runs under
`defer_signals`, and a process that still hangs is forced to exit.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.errors import Terminated

# How long a process may take from the signal to its end. Clouds give 30 s (Google's spot machines)
# to 120 s (Amazon's) between the notice and the end.
LONGEST_END_S = 20.0
# How soon to try again where an exception would be lost, and in which functions it would (the
# second is JAX's).
_SOON_S, _SWALLOWING = 0.02, ("__del__", "_xla_gc_callback")
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

_depth = 0
_pending: int | None = None
_asking = False
_asked = False
_from_thread: BaseException | None = None
_instead: Callable[[], None] | None = None


def raise_on_signals() -> None:
    """Have Ctrl-C raise KeyboardInterrupt and SIGTERM raise Terminated from now on.

    For the main thread of an entry point. A Ctrl-C that is ignored (nohup) stays ignored.
    """
    signal.signal(signal.SIGTERM, _handle)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Raise a signal that arrives inside the `with` at its end."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0 and _pending is not None:
            number, _pending = _pending, None
            _raise(number)


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Have SIGTERM raise nothing inside the `with`; yield a function: whether it has arrived.

    For work that ends soon, at a point of its choosing. The end of the `with` raises Terminated,
    unless another exception leaves it.
    """
    global _asking, _asked
    _asking = True
    try:
        yield lambda: _asked
    finally:
        _asking, asked, _asked = False, _asked, False
    if asked:
        raise Terminated


def raise_in_main_thread(error: BaseException) -> None:
    """Have the main thread raise this error as it would for a signal; for other threads."""
    global _from_thread
    _from_thread = error
    terminate_main_thread()


def terminate_main_thread() -> None:
    """Send SIGTERM to the main thread; for other threads."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


def instead_of_terminating(ask: Callable[[], None]) -> None:
    """Have SIGTERM call a quick function in place of raising, for the rest of the process."""
    global _instead
    _instead = ask


def _handle(number: int, frame: Any) -> None:
    global _asked, _pending
    # Set once: a repeated signal gives no more time.
    if hasattr(signal, "setitimer") and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.signal(signal.SIGALRM, lambda *_: _force_exit(_EXIT_CODES[number]))
        signal.setitimer(signal.ITIMER_REAL, LONGEST_END_S)
    if number == signal.SIGTERM and _from_thread is None and (_instead or _asking):
        if _instead:
            _instead()
        else:
            _asked = True
    elif _depth:
        _pending = number
    elif _is_swallowed(frame):
        _try_again(number)
    else:
        _raise(number)


def _is_swallowed(frame: Any) -> bool:
    """Return whether Python drops exceptions here: in finalizers and gc callbacks."""
    while frame is not None:
        if frame.f_code.co_name in _SWALLOWING:
            return True
        frame = frame.f_back
    return False


def _try_again(number: int) -> None:
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda _, frame: _handle(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)


def _raise(number: int) -> None:
    if _from_thread is not None:
        raise _from_thread
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _force_exit(code: int) -> None:
    print(
        f"jaxbench: did not end in {LONGEST_END_S:g} s, forced to exit", file=sys.stderr, flush=True
    )
    os._exit(code)
