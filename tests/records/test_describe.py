"""The lines that records are worth on the console: plain text, one fact a line."""

import dataclasses
import io

import pytest

from jaxbench.records.reader import load_run
from jaxbench.records.schema import ScalingRecord, Summary, TargetRecord
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.describe import describe_record, scaling_table
from jaxbench.records.writers.targets import compiled_facts, target_table
from jaxbench.tables.text import text_table
from tests.conftest import ROOT

# Runs of `micro`, shortened, one for each mode.
RUNS = ROOT / "tests" / "records" / "runs"


def lines_of(mode):
    out = io.StringIO()
    console = Console(out)
    for record in load_run(str(RUNS / mode)).records:
        console.write(record)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("train", "train_step: estimated memory (XLA) on each device: 0.1533 MiB"),
        ("train", "  1/2       1.770            45.03     0.8267      79.44     3,932    0.3659"),
        ("train", "done after 4.57 s: top-1 79.44% of 360 test images"),
        ("train", "compile 3.1 s, first epoch 0.37 s"),
        ("train", "3,932 images/s over the whole run"),
        (
            "train",
            "whole epochs: training 0.36 s, evaluating 0.01 s; before them, data ",
        ),
        ("train", "top-1 of 1.00% reached in epoch 1, 4.57 s from the start (0.36 s of training,"),
        ("train", "start-up: 5.83 s to the end of the first step, with 1.30 s for imports that "),
        ("train", "time of the whole run: compile 2.6 s, init 0.6 s, lower 0.5 s, "),
        ("throughput", "train_step         442,204  401,606 to "),
        ("throughput", "the whole run: 0.001"),
        ("throughput", "warning: windows still differed by more than 2%"),
        ("scaling", "      0  cpu"),
        ("scaling", "all-reduce of 2,608 bytes over 2 devices: 0.17"),
        ("scaling", "a step on 2 devices has 1 all-reduce of 2,632 bytes (the largest 2,632);"),
        (
            "scaling",
            "device 1 (cpu) takes 1.163 times as long as device 0 (cpu) for the same batch",
        ),
        ("scaling", "PREDICTED, weak,    8 devices: 1,046,830 to 1,650,27"),
        ("memory", "done after 0.90 s"),
        ("input", "prepare_and_send    315,007      299,872 to 374,301"),
        ("conv2d", "      3         1        1        0.23"),
    ],
)
def test_a_record_is_told_in_lines(mode, told):
    assert [line for line in lines_of(mode) if line.startswith(told)], lines_of(mode)


def test_a_rate_is_told_with_what_it_is_of():
    [old] = load_run(str(RUNS / "train")).of_kind(Summary)

    def told(**rate):
        lines = describe_record(dataclasses.replace(old, images_per_s_per_device=5.0, **rate))
        return next(line for line in lines if " images/s" in line)

    ends = {"images_per_s_low": 8.0, "images_per_s_high": 12.0}
    several = (
        "10.00 images/s (5.000 per device; median of {} epochs from the 2nd on, {} 8.000 to 12.00)"
    )
    rate = {"images_per_s": 10.0, "images_per_s_low": None, "images_per_s_high": None}
    few = told(**rate, images_per_s_range=[8.0, 12.0], steady_epochs=5)
    assert few.endswith(several.format(5, "range"))
    assert told(**rate | ends, steady_epochs=6).endswith(several.format(6, "95 % interval"))
    assert told(**rate, steady_epochs=1).endswith("(5.000 per device; of one epoch, not the 1st)")


def test_a_run_without_a_summary_of_its_own_is_told():
    summary = Summary(status="failed", invalid=["one"], warnings=["two"], corrupt={"a": "b"})
    assert describe_record(summary) == [
        "failed",
        "1 corrupt images left out (run.json names them)",
        "invalid: one",
        "warning: two",
    ]


def test_scaling_records_are_a_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    records = load_run(str(RUNS / "scaling")).of_kind(ScalingRecord)
    heading, *rows = scaling_table(records)
    assert heading.startswith("scaling  devices  global batch  images/s  ")
    assert rows[1].split()[:4] == ["weak", "2", "128", "256,532"]
    assert rows[1].endswith(" 627 steps") and not rows[0].endswith("steps")
    lost = dataclasses.replace(records[0], images_per_s=None, status="oom")
    assert scaling_table([lost])[1].split()[:3] == ["weak", "1", "64"]


@pytest.mark.parametrize("scaling", [None, "strong"])
def test_targets_keep_the_columns_of_the_guide_in_80_characters(monkeypatch, scaling):
    monkeypatch.setenv("COLUMNS", "80")
    record = TargetRecord(
        target="gpu:rtx2080ti:2",
        origin="compiled",
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
        ceiling={"images_per_s": 1234567.0, "bound_by": "links"},
        collectives={"all-reduce": {"count": 1, "bytes": 10**8}},
        scaling=scaling,
        efficiency_no_overlap=0.5,
        efficiency_full_overlap=0.99,
    )
    _, heading, row, left_out = target_table([record])
    ends = ("strong 64", " exchanged  efficiency") if scaling else (record.target, " compile")
    assert row.startswith(ends[0]) and heading.endswith(ends[1]) and len(heading) <= 80
    assert "fits    needed [GiB]    ceiling  bound by" in heading
    assert "yes  7.000 of 8.250  1,234,567     links" in row
    assert left_out.split(": ")[1] == ("lowering, compile, batch)" if scaling else "lowering)")


def test_a_compiled_steps_traffic_stands_beside_the_least():
    record = TargetRecord(
        target="gpu:h100",
        origin="compiled",
        compiler="some 1.0",
        device_kind="a GPU",
        num_devices=1,
        batch_size=16,
        batch_per_device=16,
        precision="fp32",
        device_memory_bytes=2**30,
        fits=True,
        memory={"total_bytes": 2**20},
        collectives={},
        custom_calls={},
        transposes={"count": 0, "bytes": 0},
        converts={"count": 0, "bytes": 0},
        moved_bytes=3_000_000,
        bytes_lower_bound=2_000_000,
        state_donated=True,
    )
    traffic = "  memory traffic: 3.000 MB"
    assert f"{traffic}, 1.50 times the least of 2.000 MB (predicted)" in compiled_facts([record])
    unknown = dataclasses.replace(record, bytes_lower_bound=None)
    assert traffic in compiled_facts([unknown])


def test_a_tables_columns_are_aligned_and_its_rows_are_one_line():
    wide = "x" * 300
    heading, *rows = text_table(["name", "[bold]"], [["a", "1,000"], [wide, "[red]2"]])
    assert rows == [f"{'a':>300}   1,000", f"{wide}  [red]2"]
    assert heading.split() == ["name", "[bold]"] and len(heading) == len(rows[0])
