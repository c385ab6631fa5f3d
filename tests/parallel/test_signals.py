"""Ctrl-C and SIGTERM: raised at once, or at the end of what may not be broken off."""

import contextlib
import os
import signal
import threading

import pytest

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput, Diverged, Terminated
from jaxbench.parallel import signals
from jaxbench.records.recorder import classify
from jaxbench.records.schema import Summary
from jaxbench.records.writers import Writers


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in signals._EXIT_CODES}
    signals.raise_on_signals()
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signals.raise_on_signals()  # forgets those that came
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, Terminated),
        (signal.SIGHUP, Terminated),
    ],
)
def test_a_signal_waits_for_the_end_of_what_is_postponed(number, error):
    done = []
    with pytest.raises(error), signals.defer_signals():
        with signals.defer_signals():
            os.kill(os.getpid(), number)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    signals.raise_on_signals()
    with pytest.raises(error):
        os.kill(os.getpid(), number)
        done.append("not defer_signals any more")
    assert done == ["inner", "outer"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_follows_the_first_signal_is_the_same_end(number):
    with pytest.raises(Terminated, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "work", [signals.graceful_stop, signals.defer_signals, contextlib.nullcontext]
)
def test_of_signals_that_come_together_ctrl_c_is_not_the_reason(work, number):
    thread, together = threading.get_ident(), {signal.SIGINT, number}
    with pytest.raises((KeyboardInterrupt, Terminated)) as raised, work():
        signal.pthread_sigmask(signal.SIG_BLOCK, together)
        for each in together:
            signal.pthread_kill(thread, each)  # another thread would let it through
        signal.pthread_sigmask(signal.SIG_UNBLOCK, together)
    name = signal.Signals(number).name
    assert classify(raised.value) == ("preempted", f"terminated ({name})")
    assert entry_point.exit_code(raised.value) == (143, "terminated")


def test_the_first_signal_stays_the_reason(monkeypatch):
    monkeypatch.setattr(signals, "_SAME_END_S", 0.0)
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises((Terminated, KeyboardInterrupt)) as raised:
            os.kill(os.getpid(), number)
        assert raised.type is Terminated and str(raised.value) == "SIGTERM"


def test_a_hangup_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.raise_on_signals()
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_second_ctrl_c_breaks_off_only_what_may_be(monkeypatch):
    monkeypatch.setattr(signals, "_SAME_END_S", 0.0)
    done = []
    with pytest.raises(KeyboardInterrupt), signals.defer_first_signal():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("after the first")
        with signals.defer_signals():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("holds a lock")
        done.append("after the second")
    assert done == ["after the first", "holds a lock"]
    with pytest.raises(KeyboardInterrupt), signals.defer_first_signal():
        done.append("never begun")
    assert done[-1] != "never begun"


def test_every_writer_has_a_record_before_ctrl_c_is_raised():
    class Pressing:
        def write(self, record):
            os.kill(os.getpid(), signal.SIGINT)

    class Keeping:
        records = []

        def write(self, record):
            self.records.append(record)

    with pytest.raises(KeyboardInterrupt):
        Writers(Pressing(), Keeping()).write(Summary(status="done"))
    assert Keeping.records == [Summary(status="done")]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (BadInput("no such thing"), 2, "no such thing"),
        (Diverged("the loss is nan"), 1, "the loss is nan"),
        (OSError(28, "No space left on device", "run"), 1, "run: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(), 143, "terminated"),
        (RuntimeError("a mistake of ours"), 1, None),
    ],
)
def test_what_a_program_ends_with(error, code, line):
    assert entry_point.exit_code(error) == (code, line)
