"""What commands print: lines that fit the width, live parts below them, and the next steps."""

import dataclasses
import io
import os
import sys

import pytest
import rich.console

from jaxbench import terminal
from jaxbench.records import next_steps
from jaxbench.records.run_dir import RunDir
from jaxbench.records.schema import EpochRecord, Summary, TrainSummary
from jaxbench.records.writers import console as consoles
from jaxbench.records.writers.console import Console, RichConsole
from jaxbench.records.writers.describe import describe_record
from jaxbench.records.writers.rows import record_row
from jaxbench.tables.text import GrowingTable
from tests.conftest import MICRO, needs_devices

STEER = "\x1b]0;owned\x07"


def width_of(lines):
    return max(map(len, lines))


def test_without_a_terminal_a_line_of_progress_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(consoles, "_PLAIN_INTERVAL_S", 0.0)
    console = Console(sys.stdout)
    for status in ("compiling ...", "compiling ...", "measuring", "compiling ..."):
        console.progress("[1/2] batch_size=8", 0, 2, status)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [
        "compiling ...",
        "measuring",
        "compiling ...",
    ]


@pytest.mark.parametrize(
    "flags",
    [
        (MICRO, "--experiment.replicas=independent"),
        (MICRO, "--target_accuracy=0.1", "--usd_per_hour=3"),
        (MICRO, "--experiment.step_log", "--experiment.precision=fp16"),
        (MICRO, "--mode=memory"),
        (MICRO, "--mode=describe"),
    ],
    ids=" ".join,
)
def test_all_lines_fit_80_columns(run_cli, flags):
    """Those of the modes that measure: see their own tests."""
    needs_devices(2)
    spec, *more = flags
    done = run_cli(f"--experiment={spec}", *more)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert width_of(lines) <= 80, max(lines, key=len)
    assert "…" not in done.stdout
    if "--mode=describe" not in flags:
        assert lines[-3].startswith("run directory: runs/")
        assert lines[-2].startswith("report: jaxbench report runs/")
        assert lines[-1].startswith("compare: jaxbench compare runs/")


EPOCH = EpochRecord(
    epoch=100,
    epochs=200,
    step=1,
    complete=True,
    epoch_time_s=200.0,
    train_time_s=1.0,
    data_wait_s=0.0,
    eval_time_s=0.0,
    images=1,
    images_per_s=123456.7,
    images_per_s_per_device=None,
    mfu=None,
    profiled_steps=0,
    train_loss=2.5,
    train_top1=1.0,
    learning_rate=1.23456e-05,
    elapsed_s=1.0,
)


def test_a_growing_table_has_its_titles_once_and_the_columns_that_fit(monkeypatch):
    table = GrowingTable()
    evaluated = dataclasses.replace(EPOCH, eval_loss=1.0, eval_top1=0.5, images_per_s=None)
    monkeypatch.setenv("COLUMNS", "110")
    titles, first, second = (
        *table.lines(record_row(EPOCH)),
        *table.lines(record_row(evaluated)),
    )
    assert titles.startswith("  epoch  train loss  train top-1 [%]  test loss  top-1 [%]  images/s")
    assert first.startswith("100/200       2.500           100.00                         123,457")
    assert second.split() == ["100/200", "2.500", "100.00", "1.000", "50.00", "200.0", "1.235e-05"]
    assert len(titles) == len(first) == len(second)
    # A column that turns up later stays; others' cells are blank.
    monkeypatch.setenv("COLUMNS", "120")
    views = table.lines(record_row(dataclasses.replace(evaluated, eval_top1_tta=0.6)))
    assert "with TTA" in views[0] and "60.00" in views[1]
    assert len(table.lines(record_row(EPOCH))) == 1
    # Several models, a loss scale: what is left out is the least of it.
    monkeypatch.setenv("COLUMNS", "80")
    many = {"train_top1_std": 0.1, "eval_top1_std": 0.2, "loss_scale": 65536.0}
    crowded, _ = GrowingTable().lines(record_row(dataclasses.replace(evaluated, **many)))
    assert len(crowded) <= 80 and "  std [%]" in crowded and "images/s" in crowded


def test_a_long_line_is_wrapped_and_a_long_word_has_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    path = "/long" * 20
    assert terminal.wrap(f"records in {path} since then") == [
        "records in",
        f"  {path}",
        "  since then",
    ]
    assert terminal.wrap("the whole run took a very long time 12.5 s")[1] == "  12.5 s"
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((3, 3)))
    assert terminal.width() == 40


def steps(tmp_path, monkeypatch, status, mode="train", argv=(), checkpoint=False):
    """The lines at the end of a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", list(argv))
    path = type(tmp_path)("runs/a b")
    if checkpoint:
        (path / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
    out = io.StringIO()
    document = {"status": status, "mode": mode}
    next_steps.say_next_steps(Console(out), RunDir(path, document))
    return out.getvalue().splitlines()


MAIN = ("python", "-m", "jaxbench.main", "--experiment=cnn10")


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ((*MAIN, "--workdir", "old", "--resume=auto"), " ".join(MAIN)),
        (
            ("/v/bin/python", "/v/bin/jaxbench", "main", "--experiment=a"),
            "/v/bin/python /v/bin/jaxbench main --",
        ),
        (("python", "notebook.py"), "the same command with --workdir=runs/a b --resume=auto"),
    ],
)
def test_a_run_that_was_stopped_says_how_it_is_resumed(tmp_path, monkeypatch, argv, command):
    for status in ("interrupted", "preempted"):
        first, *lines = steps(tmp_path, monkeypatch, status, argv=argv, checkpoint=True)
        assert first == "run directory: runs/a b"
        told = " ".join(line.removesuffix("\\").strip() for line in lines)
        assert told.startswith(f"resume: {command}") and told.endswith(" --resume=auto")
        # Of a flag that is given twice the last one counts.
        assert told.rindex("--workdir=runs/a b") > told.rfind("--workdir old")
        assert width_of(lines) <= 80


def test_the_next_steps_follow_from_the_status(tmp_path, monkeypatch):
    assert steps(tmp_path, monkeypatch, "done") == [
        "run directory: runs/a b",
        "report: jaxbench report 'runs/a b'",
        "compare: jaxbench compare 'runs/a b' OTHER",
    ]
    # What was compiled for a machine that is not here cannot be compared.
    compiled = steps(tmp_path, monkeypatch, "done", mode="compile")
    assert compiled[1:] == ["report: jaxbench report 'runs/a b'"]
    for status in ("oom", "diverged"):
        assert steps(tmp_path, monkeypatch, status)[1:] == [
            "why it ended: the field reason in runs/a b/run.json"
        ]
    assert steps(tmp_path, monkeypatch, "interrupted", mode="scaling")[1:] == []
    [line] = steps(tmp_path, monkeypatch, "interrupted")[1:]
    assert line.startswith("no checkpoint was written")


def test_a_long_command_can_be_copied(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    words = ["jaxbench", "main", *(f"--experiment.field{n}={n}" for n in range(5)), "x y" * 30]
    next_steps.say_command(Console(out), "resume", *words)
    *lines, last = out.getvalue().splitlines()
    assert len(lines) > 2 and all(len(line) <= 60 and line.endswith(" \\") for line in lines)
    assert last.strip() == f"'{'x y' * 30}'"


def test_short_phases_are_announced_and_not_listed():
    out = io.StringIO()
    with Console(out).phase("reading"):
        pass
    assert out.getvalue() == "reading ...\n"
    assert describe_record(Summary(status="done", phases_s={"eval": 0.04, "train": 0.2})) == [
        "done",
        "time of the whole run: train 0.2 s",
    ]


def test_only_a_run_that_was_resumed_tells_its_goodput():
    badput_s = {"startup": 10.0, "lost_work": 30.04, "down": 0.0}
    fields = dict.fromkeys(TrainSummary.required()) | {"status": "done", "num_resumes": 0}
    fields |= {"goodput": 0.6, "badput_s": badput_s, "total_wall_s": 100.1}
    quiet = describe_record(TrainSummary(**fields))
    [line] = set(describe_record(TrainSummary(**fields | {"num_resumes": 2}))) - {*quiet}
    assert line == (
        "goodput: 60.0% of 1 min 40 s over 3 processes, one after another; the rest: "
        "lost_work 30.0 s, startup 10.0 s"
    )


@pytest.fixture
def live():
    """A console on a terminal of 80 columns that keeps what it draws."""
    stream = io.StringIO()
    drawn = rich.console.Console(
        file=stream, force_terminal=True, width=80, height=24, color_system=None, record=True
    )
    console = RichConsole(drawn)
    yield console, stream
    console.close()


def test_what_is_below_the_lines_is_drawn_and_removed(live):
    console, stream = live
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
