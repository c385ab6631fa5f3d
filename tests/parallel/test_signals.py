"""Ctrl-C and SIGTERM: raised at once, or at the end of what may not be broken off."""

import contextlib
import errno
import os
import signal
import threading
import time
import weakref

import pytest

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput, Diverged, RunFailed, Terminated
from jaxbench.parallel import signals
from jaxbench.records.recorder import classify
from jaxbench.records.writers import Writers
from jaxbench.schema import Summary
from tests.in_process import fresh_process_state

SCHEDULERS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
SIGNALS = (signal.SIGINT, *(signal.Signals[name] for name in SCHEDULERS))


@pytest.fixture(autouse=True)
def handlers():
    with fresh_process_state():
        signals.raise_on_signals()
        yield


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end_of_what_defers_it(number):
    error, done = KeyboardInterrupt if number == signal.SIGINT else Terminated, []
    with pytest.raises(error), signals.defer_signals():
        with signals.defer_signals():
            os.kill(os.getpid(), number)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    signals.raise_on_signals()
    with pytest.raises(error):
        os.kill(os.getpid(), number)
        done.append("not deferred any more")
    assert done == ["inner", "outer"]


def test_a_graceful_stop_raises_at_its_end():
    seen = []
    with pytest.raises(Terminated), signals.graceful_stop() as stop_requested:
        seen.append(stop_requested())
        with signals.defer_signals():
            os.kill(os.getpid(), signal.SIGTERM)
        seen.append(stop_requested())
    assert seen == [False, True]


@pytest.mark.parametrize("number", SIGNALS)
def test_what_follows_the_first_signal_is_the_same_end(number):
    """A Ctrl-C too, if it comes at the same time: some schedulers send both."""
    with pytest.raises(Terminated, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS[1:])
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


def test_a_second_ctrl_c_ends_at_once(monkeypatch):
    codes = []
    monkeypatch.setattr(signals, "_SAME_END_S", 0.0)
    monkeypatch.setattr(os, "_exit", codes.append)
    with pytest.raises(Terminated), signals.defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        codes.append("ignored")
        os.kill(os.getpid(), signal.SIGINT)
    assert codes == ["ignored", 143]


def test_a_notebook_lives_on(monkeypatch):
    monkeypatch.setattr(signals, "_SAME_END_S", 0.0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for presses in (1, 2):
        done = []
        with pytest.raises(KeyboardInterrupt), signals.handle_ctrl_c(), signals.defer_signals():
            for press in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
                done.append(press)
        assert done == [0] and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("work", "error", "send"),
    [
        (contextlib.nullcontext, KeyboardInterrupt, (os.kill, os.getpid(), signal.SIGINT)),
        # The step under way may wait for the other process for ever.
        (signals.graceful_stop, Terminated, (signals.raise_in_main_thread, Terminated("gone"))),
    ],
)
def test_a_signal_in_a_finalizer_is_raised_after_it(work, error, send, monkeypatch):
    """Python ignores what a finalizer raises."""
    monkeypatch.setattr(signals._state, "other_end", None)  # so that it is None again at the end

    class Array:
        pass

    array = Array()
    weakref.finalize(array, *send)
    with pytest.raises(error), work():
        del array
        time.sleep(5)


@pytest.mark.parametrize("number", set(SIGNALS) - {signal.SIGTERM})
def test_a_signal_that_is_ignored_or_handled_stays_so(number):
    seen = []
    for handler in (signal.SIG_IGN, lambda *_: seen.append(number)):
        signal.signal(number, handler)
        signals.raise_on_signals()
        os.kill(os.getpid(), number)
    assert seen == [number]


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
        (RunFailed("a.jpg: an empty file"), 1, "a.jpg: an empty file"),
        (OSError(28, "No space left on device", "run"), 1, "run: No space left on device"),
        (OSError(errno.EFBIG, "File too large", "run"), 1, "run: File too large"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 1, "the disk: Disk quota exceeded"),
        (
            ImportError("libGL.so.1: no such file", name="cv2"),
            1,
            "ImportError: libGL.so.1: no such file",
        ),
        (ImportError("a mistake of ours", name="jaxbench.config.fields"), 1, None),
        (
            ValueError("failed to map segment\nfrom x"),
            1,
            "ValueError: failed to map segment from x",
        ),
        (MemoryError(), 1, "MemoryError"),
        (RuntimeError("can't start new thread"), 1, "RuntimeError: can't start new thread"),
        (
            ValueError("invalid truth value '2' for environment 'JAX_DISABLE_JIT'"),
            2,
            "JAX_DISABLE_JIT=2: JAX does not take this value; correct or unset the variable",
        ),
        (
            ValueError('Invalid value "two" for JAX flag jax_num_cpu_devices'),
            2,
            "JAX_NUM_CPU_DEVICES=two: JAX does not take this value; correct or unset the variable",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(), 143, "terminated"),
        (RuntimeError("a mistake of ours"), 1, None),
    ],
)
def test_what_a_program_ends_with(error, code, line):
    assert entry_point.exit_code(error) == (code, line)
