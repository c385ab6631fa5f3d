"""Ctrl-C and SIGTERM: raised at once, or at the end of what may not be broken off."""

import os
import signal

import pytest

from jaxbench import signals
from jaxbench.errors import Terminated
from jaxbench.writers import Writers


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
    with pytest.raises(error), signals.postponed():
        with signals.postponed():
            os.kill(os.getpid(), number)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with pytest.raises(error):
        os.kill(os.getpid(), number)
        done.append("not postponed any more")
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
        Writers(Pressing(), Keeping()).write({"kind": "epoch"})
    assert Keeping.records == [{"kind": "epoch"}]
