"""The lines that records are worth on the console: plain text, one fact a line."""

import io

import pytest
from msgspec.structs import replace

from jaxbench.records.reader import load_run
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.describe import describe_record, scaling_table
from jaxbench.records.writers.rows import record_row
from jaxbench.records.writers.targets import compiled_facts, target_table
from jaxbench.schema import EpochRecord, ScalingRecord, Summary, TargetRecord, TrainSummary
from jaxbench.tables.text import GrowingTable
from tests.conftest import ROOT
from tests.recorded import filled

# Runs of `micro`, shortened, one for each mode.
RUNS = ROOT / "tests" / "records" / "runs"


@pytest.mark.parametrize("mode", ["train", "throughput", "scaling", "memory", "input", "conv2d"])
def test_the_transcript_of_a_mode(mode, snapshot):
    out = io.StringIO()
    console = Console(out)
    for record in load_run(str(RUNS / mode)).records:
        console.write(record)
    assert out.getvalue() == snapshot


def test_a_rate_and_what_it_is_of(snapshot):
    [old] = load_run(str(RUNS / "train")).of_kind(Summary)
    old = replace(old, images_per_s=10.0, images_per_s_per_device=5.0)
    ends = {"images_per_s_low": 8.0, "images_per_s_high": 12.0}
    few = {"images_per_s_low": None, "images_per_s_high": None}
    lines = [
        next(line for line in describe_record(replace(old, **rate)) if " images/s" in line)
        for rate in (
            few | {"images_per_s_range": [8.0, 12.0], "steady_epochs": 5},
            ends | {"steady_epochs": 6},
            few | {"images_per_s_range": None, "steady_epochs": 1},
        )
    ]
    assert "\n".join(lines) == snapshot


WARNINGS = ["two", "a: windows are odd", "a: window 3 is odd", "b: windows are odd"]


def test_summaries(snapshot):
    badput_s = {"startup": 10.0, "lost_work": 30.04, "down": 0.0}
    goodput = {"goodput": 0.6, "badput_s": badput_s, "total_wall_s": 100.1}
    records = [
        Summary(status="failed", invalid=["one"], warnings=WARNINGS),
        # Short phases are not listed.
        Summary(status="done", phases_s={"eval": 0.04, "train": 0.2}),
        # Only a run that was resumed has a goodput.
        *(filled(TrainSummary, status="done", num_resumes=n, **goodput) for n in (0, 2)),
    ]
    assert "\n\n".join("\n".join(describe_record(record)) for record in records) == snapshot


def test_a_growing_table_has_its_titles_once_and_the_columns_that_fit(monkeypatch, snapshot):
    train = {"epoch": 100, "epochs": 200, "epoch_time_s": 200.0, "images_per_s": 123456.7}
    train |= {"train_loss": 2.5, "train_top1": 1.0, "learning_rate": 1.23456e-05}
    epoch = filled(EpochRecord, **train)
    evaluated = replace(epoch, eval_loss=1.0, eval_top1=0.5, images_per_s=None)
    # A column that turns up later stays; others' cells are blank.
    later = replace(evaluated, eval_top1_tta=0.6)
    table, shown = GrowingTable(), []
    for columns, record in ((110, epoch), (110, evaluated), (120, later), (120, epoch)):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown += table.lines(record_row(record))
    # Several models, a loss scale: what is left out is the least of it.
    monkeypatch.setenv("COLUMNS", "80")
    many = {"train_top1_std": 0.1, "eval_top1_std": 0.2, "loss_scale": 65536.0}
    crowded = GrowingTable().lines(record_row(replace(evaluated, **many)))
    assert max(map(len, crowded)) <= 80
    assert "\n".join([*shown, *crowded]) == snapshot


def test_scaling_records_are_a_table(monkeypatch, snapshot):
    monkeypatch.setenv("COLUMNS", "120")
    records = load_run(str(RUNS / "scaling")).of_kind(ScalingRecord)
    lost = replace(records[0], images_per_s=None, status="oom")
    assert "\n".join([*scaling_table(records), *scaling_table([lost])]) == snapshot


TARGET = filled(
    TargetRecord,
    target="gpu:rtx2080ti:2",
    compiler="some 1.0",
    device_kind="a GPU",
    num_devices=64,
    batch_size=1024,
    batch_per_device=16,
    precision="fp32",
    device_memory_bytes=int(8.25 * 2**30),
    fits=True,
    needed_bytes=7 * 2**30,
    lower_s=10.0,
    compile_s=125.0,
    collectives={"all-reduce": {"count": 1, "bytes": 10**8}},
)


@pytest.mark.parametrize("scaling", [None, "strong"])
def test_targets_keep_the_columns_of_the_guide_in_80_characters(monkeypatch, scaling, snapshot):
    monkeypatch.setenv("COLUMNS", "80")
    lines = target_table([replace(TARGET, scaling=scaling)])
    assert len(lines[1]) <= 80
    assert "\n".join(lines) == snapshot


def test_what_a_compiled_step_does(snapshot):
    calls = {"b": 2, "a": 1}
    facts = {"memory": {"total_bytes": 2**20}, "state_donated": True, "custom_calls": calls}
    assert "\n".join(compiled_facts([replace(TARGET, **facts)])) == snapshot
