"""Ctrl-C and SIGTERM: raised at once, or at the end of what may not be broken off."""

import os
import signal

import pytest

from jaxbench.cli import entry_point
from jaxbench.distributed import signals
from jaxbench.errors import BadInput, Diverged, Terminated
from jaxbench.records.schema import Summary
from jaxbench.records.writers import Writers


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in signals._EXIT_CODES}
    signals.raise_on_signals()
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_waits_for_the_end_of_what_is_postponed(number, error):
    done = []
    with pytest.raises(error), signals.defer_signals():
        with signals.defer_signals():
            os.kill(os.getpid(), number)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with pytest.raises(error):
        os.kill(os.getpid(), number)
        done.append("not defer_signals any more")
    assert done == ["inner", "outer"]


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
