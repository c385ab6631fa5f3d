"""What a terminal is shown, and streams that cannot be written to."""

import errno
import io
import os
import sys

import pytest
import rich.console

from jaxbench import terminal
from jaxbench.records.writers.console import Console, RichConsole
from tests.conftest import MICRO

STEER = "\x1b]0;owned\x07\x1b[2J"


class Full:
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: self.write("")  # noqa: E731
    isatty = lambda self: False  # noqa: E731

    def fileno(self):
        raise OSError("a test's stream")


def test_what_steers_a_terminal_is_replaced():
    assert terminal.printable(f"a{STEER}b\n\r\x9b\u202e\udcff") == "a?]0;owned??[2Jb?????"
    assert terminal.printable("Größe\u3000画像 é") == "Größe\u3000画像 é"


class Terminal(io.StringIO):
    isatty = lambda self: True  # noqa: E731


@pytest.mark.parametrize(
    "console", [Console, lambda out: RichConsole(rich.console.Console(file=out))]
)
def test_a_status_has_a_colour_only_if_a_terminal_shows_it(monkeypatch, console):
    lines = ("warning: slow", "done in 3 s", "verdict: FAIL", "okay", "done-ish", "a warning")

    def shown(out):
        for line in lines:
            console(out).say(line)
        return out.getvalue().splitlines()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = ["\x1b[33mwarning\x1b[0m: slow", "\x1b[32mdone\x1b[0m in 3 s"]
    coloured += ["verdict: \x1b[31mFAIL\x1b[0m", *lines[3:]]
    assert shown(Terminal()) == coloured
    if console is Console:
        assert shown(io.StringIO()) == [*lines]
    for name, value in {"NO_COLOR": "1", "TERM": "dumb"}.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert shown(Terminal()) == [*lines]


@pytest.mark.parametrize(
    "command",
    [
        ("jaxbench.main", f"--experiment={STEER}"),
        ("jaxbench.main", f"--experiment={MICRO}", f"--workdir={STEER}/x", "--compile_cache=off"),
        ("jaxbench.compare", f"{STEER}", "b"),
    ],
    ids=lambda command: command[0],
)
def test_names_do_not_steer_the_terminal(refused, tmp_path, command):
    if len(command) > 2:
        (tmp_path / STEER).mkdir()
        (tmp_path / STEER / "x").write_text("")
    done = refused(*command[1:], module=command[0], told="owned")
    assert "\x1b" not in done.stderr


def test_a_value_that_looks_like_markup_is_shown_as_it_is(run_cli):
    data = ("--experiment.data.source=npz", "--experiment.data.path=[/x]")
    done = run_cli(f"--experiment={MICRO}", "--mode=describe", *data)
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
