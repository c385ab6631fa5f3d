"""What commands print: lines that fit the width, live parts below them, and the next steps."""

import io
import os
import pathlib
import shlex
import sys

import pytest
import rich.console

from jaxbench import terminal
from jaxbench.records import next_steps
from jaxbench.records.run_dir import RunDir
from jaxbench.records.writers import console as consoles
from jaxbench.records.writers.console import Console, RichConsole
from tests.conftest import LOOP, MICRO

STEER = "\x1b]0;owned\x07"


def width_of(lines):
    return max(map(len, lines))


def test_without_a_terminal_a_line_of_progress_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(consoles, "_PLAIN_INTERVAL_S", 0.0)
    console = Console(sys.stdout)
    for status in ("compiling ...", "compiling ...", "measuring", "compiling ..."):
        console.progress("[1/2] batch_size=8", 0, 2, status)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split("  ")[-1] for line in lines]
    assert shown == ["compiling ...", "measuring", "compiling ..."]


@pytest.mark.parametrize(
    "flags",
    [
        ("--experiment.replicas=independent",),
        ("--target_accuracy=0.1", "--usd_per_hour=3", "--experiment.step_log"),
        ("--mode=memory",),
        ("--mode=describe",),
    ],
    ids=" ".join,
)
def test_all_lines_fit_80_columns(run_cli, monkeypatch, flags):
    """Those of the modes that measure: see their own tests."""
    monkeypatch.setattr(next_steps, "LONG_S", 0.0)
    monkeypatch.setattr(LOOP, "MEASURED_S", 0.0)
    done = run_cli(f"--experiment={MICRO}", *flags)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert width_of(lines) <= 80, max(lines, key=len)
    assert "…" not in done.stdout
    is_training = not any(flag.startswith("--mode") for flag in flags)
    assert done.stdout.count("this takes about") == is_training
    if "--mode=describe" not in flags:
        hints = 1 if "--mode=memory" in flags else 2  # memory has no rate to compare
        assert lines[-hints].startswith("report: jaxbench report")


def test_a_warning_is_printed_once(capsys):
    console = Console(sys.stdout)
    for line in ("warning: a", "warning: b", "warning: a", "line", "line"):
        console.say(line)
    assert capsys.readouterr().out.split("\n")[:-1] == ["warning: a", "warning: b", "line", "line"]


def test_a_long_line_is_wrapped_and_a_long_word_has_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    path = "/long" * 20
    wrapped = terminal.wrap(f"records in {path} since then")
    assert wrapped == ["records in", f"  {path}", "  since then"]
    assert terminal.wrap("the whole run took a very long time 12.5 s")[1] == "  12.5 s"
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((3, 3)))
    assert terminal.width() == 40


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Returns the lines at the end of a run."""
    monkeypatch.chdir(tmp_path)
    path = pathlib.Path("runs/a b")

    def say(status, mode="train", argv=(), checkpoint=False, **fields):
        monkeypatch.setattr(sys, "orig_argv", list(argv))
        if checkpoint:
            (path / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
        out = io.StringIO()
        document = {"status": status, "mode": mode, "config": {"batch_size": 128}} | fields
        next_steps.say_next_steps(Console(out), RunDir(path, document))
        return out.getvalue().splitlines()

    return say


MAIN = ("python", "-m", "jaxbench.main", "--experiment=cnn10")


@pytest.mark.parametrize("status", ["interrupted", "preempted"])
@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ((*MAIN, "--workdir", "old", "--resume=auto"), " ".join(MAIN)),
        (
            ("/v/bin/python", "/v/bin/jaxbench", "main", "--experiment=a"),
            "/v/bin/python /v/bin/jaxbench main --",
        ),
        (("python", "notebook.py"), "the same command with '--workdir=runs/a b' --resume=auto"),
    ],
)
def test_a_run_that_was_stopped_says_how_it_is_resumed(steps, status, argv, command):
    first, *lines = steps(status, argv=argv, checkpoint=True)
    assert first == "run directory: runs/a b"
    told = " ".join(line.removesuffix("\\").strip() for line in lines)
    assert told.startswith(f"resume: {command}") and told.endswith(" --resume=auto")
    # Of a flag that is given twice the last one counts.
    assert told.rindex("--workdir=runs/a b") > told.rfind("--workdir old")
    assert width_of(lines) <= 80


def test_the_next_steps_follow_from_the_status(steps, snapshot):
    ends = (("done", "train"), ("done", "compile"), ("oom", "train"), ("diverged", "train"))
    ends += (("interrupted", "scaling"), ("interrupted", "train"))
    told = [f"{status} {mode}:\n" + "\n".join(steps(status, mode)) for status, mode in ends]
    assert "\n\n".join(told) == snapshot


def test_the_next_command_of_a_trained_experiment_runs_as_it_is(steps):
    argv = (*MAIN, "--workdir=old", "--experiment.batch_size", "128", "--experiment.epochs=3")
    said = " ".join(line.strip(" \\") for line in steps("done", argv=argv))
    assert shlex.split(said.partition("next: ")[2]) == [
        *("jaxbench", "sweep", "--experiment=cnn10", "--experiment.epochs=3"),
        "--grid=batch_size=128,256",
    ]
    # A batch is no larger than the training split.
    for examples, title in ((256, "next: "), (255, "compare: ")):
        lines = steps("done", argv=argv, data={"train_examples": examples})
        assert any(line.startswith(title) for line in lines), examples


@pytest.mark.parametrize(("seconds", "lines"), [(599, 0), (3600, 1)])
def test_only_a_long_run_says_how_long_it_takes(seconds, lines):
    out = io.StringIO()
    next_steps.say_time_left(Console(out), seconds, "a step takes 90 s")
    assert out.getvalue().count("\n") == lines == out.getvalue().count("1 h 0 min")


def test_a_long_command_can_be_copied(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    words = ["jaxbench", "main", *(f"--experiment.field{n}={n}" for n in range(5)), "x y" * 30]
    next_steps.say_command(Console(out), "resume", *words)
    *lines, last = out.getvalue().splitlines()
    assert len(lines) > 2 and all(len(line) <= 60 and line.endswith(" \\") for line in lines)
    assert last.strip() == f"'{'x y' * 30}'"


def test_what_is_below_the_lines_is_drawn_and_removed():
    stream = io.StringIO()
    drawn = rich.console.Console(
        file=stream, force_terminal=True, width=80, height=24, color_system=None, record=True
    )
    console = RichConsole(drawn)
    console.progress(f"epoch 1/2{STEER}[red]", 3, 10, "[b]9.0 images/s")
    console.say("a line " * 20)
    with console.phase(f"compiling{STEER} [x]"):
        pass
    console.close()
    text = stream.getvalue()
    assert "owned[red]" in text.replace("?", "") and "3/10  [b]9.0 images/s" in text
    assert "\x1b]0" not in text and "compiling" in text
    # The cursor is shown again.
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
