"""What a terminal is shown, and streams that cannot be written to."""

import errno
import os
import sys

import pytest

from jaxbench import terminal
from jaxbench.records.writers.console import Console
from tests.conftest import MICRO

STEER = "\x1b]0;owned\x07\x1b[2J"


class Full:
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: self.write("")  # noqa: E731

    def fileno(self):
        raise OSError("a test's stream")


def test_what_steers_a_terminal_is_replaced():
    assert terminal.printable(f"a{STEER}b\n\r\x9b\u202e\udcff") == "a?]0;owned??[2Jb?????"
    assert terminal.printable("Größe\u3000画像 é") == "Größe\u3000画像 é"


@pytest.mark.parametrize(
    "command",
    [
        ("jaxbench.main", f"--experiment={STEER}"),
        ("jaxbench.main", f"--experiment={MICRO}", f"--workdir={STEER}/x", "--compile_cache=off"),
        ("jaxbench.report", f"{STEER}"),
        ("jaxbench.compare", f"{STEER}", "b"),
    ],
    ids=lambda command: command[0],
)
def test_names_do_not_steer_the_terminal(run_cli, tmp_path, command):
    if len(command) > 2:
        (tmp_path / STEER).mkdir()
        (tmp_path / STEER / "x").write_text("")
    done = run_cli(*command[1:], module=command[0])
    assert done.returncode == 2 and "owned" in done.stderr and done.stderr.count("\n") == 1
    assert "\x1b" not in done.stdout + done.stderr


def test_a_value_that_looks_like_markup_is_shown_as_it_is(run_cli):
    done = run_cli(f"--experiment={MICRO}", "--mode=describe", "--experiment.data.name=[/x]")
    assert done.returncode == 0 and "'[/x]'" in done.stdout


def test_a_console_goes_on_where_nothing_can_be_written(capsys):
    Console(Full()).say("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", Full())
        terminal.warn("lost")
        terminal.flush_streams()


def test_closed_streams_lead_nowhere(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    terminal.open_closed_streams()
    print("nobody reads this", flush=True)
    sys.stdout.close()


def test_a_reader_that_has_ended_is_seen(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert not terminal.is_unread()
        os.close(reading)
        assert terminal.is_unread()
