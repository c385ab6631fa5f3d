"""Reading a run with many training steps, which are not kept in memory."""

import dataclasses
import io
import itertools
import json
import sys

import pytest

import jaxbench
from jaxbench.errors import BadInput
from jaxbench.files import end_of_lines
from jaxbench.records.reader import load_run, read_records
from jaxbench.records.schema import StepRecord
from tests.conftest import run_document
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


@pytest.mark.parametrize("version", [1, 3, None])
def test_another_schema_is_refused(tmp_path, version):
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": version, "status": "done"}))
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(BadInput, match=f"has schema {version}; this jaxbench reads 2"):
        load_run(str(tmp_path))
