"""Reading a run with many training steps, which are not kept in memory."""

import dataclasses
import io
import itertools
import json
import math
import sys

import pytest

import jaxbench
from jaxbench.errors import BadInput
from jaxbench.files import end_of_lines
from jaxbench.modes import MODES
from jaxbench.records.reader import load_run, read_records
from jaxbench.records.schema import RECORDS, StepRecord
from tests.conftest import run_document
from tests.recorded import recorded_run
from tests.records.test_validity import EPOCH


@pytest.fixture
def run(tmp_path):
    """A run directory with five steps, an epoch in the middle; writes lines after them."""
    (tmp_path / "run.json").write_text(json.dumps(run_document().to_json()))
    step = StepRecord(step=1, epoch=1, loss=1.0, learning_rate=0.1, elapsed_s=1.0)
    records = [dataclasses.replace(step, step=number) for number in range(1, 5)]
    records = [*records[:2], EPOCH, *records[2:], dataclasses.replace(step, step=5, loss_scale=8.0)]
    lines = [json.dumps(record.to_json()) + "\n" for record in records]

    def write(*more):
        (tmp_path / "metrics.jsonl").write_text("".join([*lines, *more]))
        return str(tmp_path)

    return write


def test_steps_are_read_only_where_they_are_asked_for(run):
    path = run()
    loaded = load_run(path)
    assert loaded.records == [EPOCH]
    everything = load_run(path, steps=True)
    assert len(everything.records) == 6
    assert jaxbench.Run(path).records == [record.to_json() for record in everything.records]
    # One line at a time.
    assert [one["kind"] for one in itertools.islice(read_records(path), 3)][2] == "epoch"


@pytest.mark.parametrize(
    ("lines", "corrupt"),
    [
        (('{"kind": "st',), None),
        (('{"kind": "st', "\n{}\n"), 7),
        (("[1]\n",), 7),
        (("x\n", "{}\n"), 7),
    ],
)
def test_only_the_last_line_may_be_cut_off(run, lines, corrupt):
    path = run(*lines)
    if corrupt is None:
        assert len(load_run(path, steps=True).records) == 6
    else:
        with pytest.raises(BadInput, match=f"metrics.jsonl: line {corrupt} is corrupt"):
            load_run(path)


@pytest.mark.parametrize("with_pandas", [True, False])
def test_a_table_of_steps_has_all_their_columns(run, monkeypatch, with_pandas):
    if not with_pandas:
        monkeypatch.setitem(sys.modules, "pandas", None)
    else:
        pytest.importorskip("pandas")
    path = run()
    table = jaxbench.Run(path).table("step")
    if not with_pandas:
        assert [row["step"] for row in table] == [1, 2, 3, 4, 5]
        assert sum(row["loss_scale"] is None for row in table) == 4
        return
    assert [*table["step"]] == [1, 2, 3, 4, 5] and table["loss_scale"].isna().sum() == 4
    assert len(jaxbench.Run(path).table("scaling")) == 0


class Counted(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    count = 0

    def read(self, size=-1):
        content = super().read(size)
        self.count += len(content)
        return content


@pytest.mark.parametrize("content", [b"", b"x", b"\n", b"a\nb", b"a\n" + b"x" * 200_000])
def test_where_whole_lines_end(content):
    assert end_of_lines(io.BytesIO(content)) == content.rfind(b"\n") + 1
    # Of a long file the end is read, not all of it.
    file = Counted(b"line\n" * 1_000_000 + content[:4])
    end_of_lines(file)
    assert file.count <= 2**16


@pytest.mark.parametrize("version", [1, 3, None, "2"])
def test_another_schema_is_refused(tmp_path, version):
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": version, "status": "done"}))
    (tmp_path / "metrics.jsonl").write_text("")
    told = "'2', which is no number" if version == "2" else version
    with pytest.raises(BadInput, match=f"has schema {told}; this jaxbench reads 2"):
        load_run(str(tmp_path))


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
        *((("resumes",), value) for value in ([1], [{"step": 1, "elapsed_s": 1.0}])),
    ],
)
def test_a_wrong_value_in_run_json_is_one_line(tmp_path, path, value):
    fields = {"summary": {"eval_top1": 0.5}, "price": {"usd_per_hour": 2.0}}
    if "predictions" in path:
        fields = {"summary": {"predictions": [PREDICTION]}, "mode": "scaling"}
    run = recorded_run(tmp_path / "run", **fields)
    load_run(str(run))
    document = part = json.loads((run / "run.json").read_text())
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    (run / "run.json").write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"^[^\n]*run.json: [^\n]*`\$[^\n]*`$") as error:
        load_run(str(run))
    assert len(str(error.value)) < 300


def test_a_wrong_value_in_a_record_is_one_line(tmp_path):
    run = recorded_run(tmp_path / "run", [dataclasses.replace(EPOCH, epoch=-1)])
    with pytest.raises(BadInput, match=r"metrics.jsonl, record 1: .* >= 1 - at `\$.epoch`"):
        load_run(str(run))


def test_modes_of_records_are_those_of_the_program():
    summaries = {kind for kind in RECORDS if kind.endswith("_summary")}
    assert summaries == {f"{mode}_summary" for mode in (*MODES, "compile")}
