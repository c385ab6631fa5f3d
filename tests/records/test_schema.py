"""The schema of records: what is written, left out and refused."""

import json
import typing

import pytest
from msgspec.structs import replace

from jaxbench.metrics import Here, Metric
from jaxbench.records.run_dir import create_run_dir
from jaxbench.records.writers import Writers
from jaxbench.records.writers.files import CsvWriter, JsonlWriter
from jaxbench.schema import (
    METRICS,
    RECORDS,
    EpochRecord,
    MaxBatchResult,
    RunDocument,
    ScalingRecord,
    StepRecord,
    Summary,
    TrainSummary,
    TrialFigures,
    TrialResult,
    columns_of,
    decode_record,
    required_fields,
)
from tests.conftest import records, run_document, run_json, table
from tests.recorded import filled

DESCRIBED = (*RECORDS.values(), RunDocument, TrialResult, TrialFigures, MaxBatchResult)
EPOCH = filled(EpochRecord, train_loss=2.0)
STEP = {"kind": "step", "step": 4, "epoch": 1, "loss": 2.0, "learning_rate": 0.1, "elapsed_s": 3.0}


@pytest.mark.parametrize("kind", RECORDS.values(), ids=RECORDS)
def test_every_kind_can_be_read_back_without_what_may_be_left_out(kind):
    record = filled(kind)
    assert required_fields(kind) <= record.to_json().keys()
    found = decode_record(record.to_json())
    # Without a field of its own a summary is one of no mode.
    assert issubclass(kind, type(found)) and found.to_json() == record.to_json()


def test_what_has_its_default_is_left_out():
    assert decode_record(STEP).to_json() == STEP
    assert list(decode_record(STEP).to_json())[0] == "kind"
    assert decode_record(STEP | {"top1": None, "profiled": None}).to_json() == STEP
    assert not {"peak_memory_bytes", "eval_top1"} & EPOCH.to_json().keys()


def test_what_a_newer_version_wrote_is_read():
    assert decode_record(STEP | {"later": 2.0}).to_json() == STEP


def test_run_json_has_the_documents_fields_only(tmp_path):
    run_dir = create_run_dir(str(tmp_path / "run"), "some", run_document(rounds=7))
    assert run_json(tmp_path / "run") == run_document(rounds=7).to_json()
    assert list(run_json(tmp_path / "run"))[:3] == ["schema_version", "experiment", "mode"]
    run_dir.update(status="done", finished_at="now")
    with pytest.raises(TypeError, match="run.json has no field finished"):
        run_dir.update(finished="now")
    with pytest.raises(ValueError, match="must be one of"):
        run_dir.update(status="ok")
    assert run_json(tmp_path / "run")["finished_at"] == "now"


def test_csv_columns_follow_the_fields(tmp_path):
    columns = columns_of(EpochRecord)
    assert columns[:4] == ["epoch", "epochs", "step", "complete"]
    assert not {"eval_models", "eval_metrics"} & set(columns)
    assert columns.index("train_top1") < columns.index("eval_loss") < columns.index("eval_count")
    assert {"scaling", "efficiency", "reason"} < set(columns_of(ScalingRecord))
    writers = Writers(CsvWriter(tmp_path / "epochs.csv", EpochRecord))
    writers.write(decode_record(STEP))
    writers.write(replace(EPOCH, eval_top1=0.5, eval_top5=0.9, mfu=float("nan")))
    writers.close()
    [row] = table(tmp_path / "epochs.csv")
    assert list(row) == columns
    # Unknown values and nan are empty cells.
    assert (row["eval_top1"], row["peak_memory_bytes"], row["mfu"]) == ("0.5", "", "")


def test_a_file_that_is_continued_keeps_its_columns(tmp_path):
    """It may be of a run that an older version began, which had fewer figures."""
    (tmp_path / "epochs.csv").write_text("epoch,train_loss\n1,2.5\n")
    writer = CsvWriter(tmp_path / "epochs.csv", EpochRecord)
    writer.write(replace(EPOCH, epoch=2))
    writer.close()
    lines = (tmp_path / "epochs.csv").read_text().splitlines()
    assert lines == ["epoch,train_loss", "1,2.5", "2,2.0"]


def test_curves_are_of_steps_and_epochs():
    step = StepRecord(step=4, epoch=1, loss=2.0, top1=float("nan"), learning_rate=0.1, elapsed_s=3)
    assert step.points() == {"train/loss": 2.0, "train/learning_rate": 0.1}
    epoch = replace(EPOCH, eval_top1=0.5)
    assert epoch.points()["eval/top1"] == 0.5 and epoch.points()["train/epoch_loss"] == 2.0
    # A summary has the last evaluation's figures, and no step.
    assert filled(TrainSummary, eval_top1=0.5).points() == Summary(status="done").points() == {}


def test_a_line_holds_what_json_can(tmp_path):
    writer = JsonlWriter(tmp_path)
    writer.write(Summary(status="done", wall_s=float("inf"), warnings=["ä"]))
    writer.close()
    [line] = records(tmp_path)
    assert line == json.loads(
        '{"kind": "summary", "status": "done", "wall_s": null, "invalid": [], "warnings": ["ä"]}'
    )


def test_a_name_is_described_once_and_has_one_type():
    types, described = {}, []
    for cls in DESCRIBED:
        for name, hint in cls.__annotations__.items():
            marks = {type(one) for one in getattr(hint, "__metadata__", ())}
            described += [name] * (Metric in marks)
            # In one class it may be another thing.
            if Here not in marks:
                parts = typing.get_args(typing.get_type_hints(cls)[name])
                kind = parts[0] if type(None) in parts else typing.get_type_hints(cls)[name]
                types.setdefault(name, []).append(kind)
    assert len(described) == len({*described}) > 250
    assert {*described} == {*types} <= METRICS.keys()
    assert not [name for name, kinds in types.items() if any(one != kinds[0] for one in kinds)]
