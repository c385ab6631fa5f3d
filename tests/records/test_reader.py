"""Reading a run with many training steps, which are not kept in memory."""

import io
import itertools
import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxbench
from jaxbench.files import end_of_lines
from jaxbench.modes import MODES
from jaxbench.records.reader import load_run, read_records
from jaxbench.schema import RECORDS, StepRecord
from tests.conftest import refusal, run_document
from tests.recorded import change_json, epochs, filled, recorded_run
from tests.strategies import changed

[EPOCH] = epochs([320.0])


@pytest.fixture
def run(tmp_path):
    """A run directory with five steps, an epoch in the middle; writes lines after them."""
    (tmp_path / "run.json").write_text(json.dumps(run_document().to_json()))
    steps = [filled(StepRecord, step=number) for number in range(1, 5)]
    records = [*steps[:2], EPOCH, *steps[2:], filled(StepRecord, step=5, loss_scale=8.0)]
    lines = [json.dumps(record.to_json()) + "\n" for record in records]

    def write(*more):
        (tmp_path / "metrics.jsonl").write_text("".join([*lines, *more]))
        return str(tmp_path)

    return write


def test_steps_are_read_only_where_they_are_asked_for(run):
    path = run()
    loaded = load_run(path)
    assert loaded.records == [EPOCH]
    everything = [*read_records(path)]
    assert len(everything) == 6
    assert jaxbench.Run(path).records == everything
    # One line at a time.
    assert [one["kind"] for one in itertools.islice(read_records(path), 3)][2] == "epoch"


def test_the_last_line_may_be_cut_off(run):
    assert len([*read_records(run('{"kind": "st'))]) == 6


def test_a_table_of_steps_has_all_their_columns(run, monkeypatch):
    path = run()
    table = jaxbench.Run(path).table("step")
    assert [*table["step"]] == [1, 2, 3, 4, 5] and table["loss_scale"].isna().sum() == 4
    assert len(jaxbench.Run(path).table("scaling")) == 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = jaxbench.Run(path).table("step")
    assert [(row["step"], row["loss_scale"]) for row in rows][3:] == [(4, None), (5, 8.0)]


@given(st.binary(max_size=50) | st.just(b"a\n" + b"x" * 200_000))
def test_where_whole_lines_end(content):
    assert end_of_lines(io.BytesIO(content)) == content.rfind(b"\n") + 1


def test_of_a_long_file_the_end_is_read(tmp_path):
    with open(tmp_path / "hole", "w+b") as file:
        file.seek(2**36)  # more than this machine's memory
        file.write(b"line\n")
        assert end_of_lines(file) == 2**36 + 5


@pytest.mark.parametrize("version", [1, 3, None, "2"])
def test_schema_of_another_version_is_refused(tmp_path, version):
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": version, "status": "done"}))
    (tmp_path / "metrics.jsonl").write_text("")
    told = "'2', which is no number" if version == "2" else version
    refusal(load_run, str(tmp_path), told=f"has schema {told}; this jaxbench reads 2")


PREDICTION = {
    **{"scaling": "weak", "num_devices": 8, "batch_per_device": 16, "link_bytes_per_s": 1e9},
    **{"link_source": "measured", "assumptions": "none", "images_per_s_no_overlap": 9.0},
    **{"images_per_s_full_overlap": 9.0, "efficiency_no_overlap": 1.0},
    "efficiency_full_overlap": 1.0,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((("config", "batch_size"), value) for value in ("64", 0, 1e300, None)),
        *((("config", name), value) for name, value in (("data", True), ("precision", 5))),
        (("config", "data", "sequence_length"), 10**400),
        (("config", "anything"), math.nan),
        *((("summary", "predictions", 0), value) for value in (None, {}, 8)),
        *((("summary", "predictions", 0, "num_devices"), value) for value in ("8", 0)),
        (("summary", "predictions", 0, "images_per_s_full_overlap"), None),
        *((("summary", "eval_top1"), value) for value in (7.5, -0.1)),
        *((("summary", "images_per_s"), value) for value in (-5, math.inf, math.nan)),
        (("summary", "telemetry"), {"devices": {"host": 1}}),
        *((("parameters",), value) for value in (10**400, -1, 1.5)),
        *((("status",), value) for value in ("great", None)),
        (("mode",), "x"),
        (("environment", "num_devices"), -1),
        *((("started_at",), value) for value in ("yesterday", "2026-02-30T00:00:00+00:00")),
        *((("price", "usd_per_hour"), value) for value in (-1, 0, "1")),
        *((("attempts",), value) for value in ([1], [{"step": 1, "lost_s": 1.0}])),
    ],
)
def test_a_wrong_value_in_run_json_is_one_line(tmp_path, path, value):
    fields = {"summary": {"eval_top1": 0.5}, "price": {"usd_per_hour": 2.0}}
    if "predictions" in path:
        fields = {"summary": {"predictions": [PREDICTION]}, "mode": "scaling"}
    run = recorded_run(tmp_path / "run", **fields)
    load_run(str(run))
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(changed(document, path, value)))
    line = refusal(load_run, str(run), told="run.json: ")
    assert "`$" in line and line[-1] == "`" and len(line) < 300


def test_a_resumed_run_of_a_version_between_two_releases_is_refused(tmp_path):
    """Else its `resumes`, an unknown field, would be dropped, and with it what was lost."""
    run = recorded_run(tmp_path / "run")
    change_json(run / "run.json", resumes=[{"step": 1, "elapsed_s": 1.0, "lost_s": 9.0}])
    refusal(load_run, str(run), told="run.json: `resumes` was written by a jaxbench between")


def test_modes_of_records_are_those_of_the_program():
    summaries = {kind for kind in RECORDS if kind.endswith("_summary")}
    assert summaries == {f"{mode}_summary" for mode in (*MODES, "compile")}
