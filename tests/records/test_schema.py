"""The schema of records: what is written, left out and refused."""

import csv
import dataclasses
import json

import pytest

from jaxbench.records.run_dir import create_run_dir
from jaxbench.records.schema import (
    RECORDS,
    EpochRecord,
    Record,
    ScalingRecord,
    StepRecord,
    Summary,
    TrainSummary,
    record_from_json,
)
from jaxbench.records.writers import Writers
from jaxbench.records.writers.files import CsvWriter, JsonlWriter
from tests.conftest import records, run_document, run_json
from tests.records.test_validity import EPOCH

STEP = {"kind": "step", "step": 4, "epoch": 1, "loss": 2.0, "learning_rate": 0.1, "elapsed_s": 3.0}


def all_kinds(cls=Record):
    own = [cls] if hasattr(cls, "kind") else []
    return {*own, *(kind for sub in cls.__subclasses__() for kind in all_kinds(sub))}


def test_every_kind_can_be_read_back():
    assert all_kinds() == set(RECORDS)
    for kind in RECORDS:
        line = {"kind": kind.kind} | dict.fromkeys(kind.required(), 1)
        assert type(record_from_json(line)) is kind
        assert line.items() <= record_from_json(line).to_json().items()


def test_what_has_its_default_is_left_out():
    assert record_from_json(STEP).to_json() == STEP
    assert list(record_from_json(STEP).to_json())[0] == "kind"
    assert record_from_json(STEP | {"top1": None, "profiled": False}).to_json() == STEP
    # What every record of a kind has is null where it is unknown.
    assert EPOCH.to_json()["peak_memory_bytes"] is None and "eval_top1" not in EPOCH.to_json()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"kind": "stp"}, "no kind of record: 'stp'"),
        (STEP | {"los": 2.0}, "unexpected keyword argument 'los'"),
        ({name: STEP[name] for name in STEP if name != "loss"}, "argument: 'loss'"),
        # Its other fields say which summary it is.
        ({"kind": "summary", "status": "done", "cells": 3}, "argument: 'findings'"),
        ({"kind": "summary", "verdict": None}, "argument: 'status'"),
        ({"kind": "summary", "status": "done", "top1": 0.5}, "unexpected .* 'top1'"),
    ],
)
def test_an_unknown_or_missing_field_is_refused(line, told):
    with pytest.raises(TypeError, match=told):
        record_from_json(line)


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
    with pytest.raises(ValueError, match="mode 'fit': must be one of train, "):
        run_document(mode="fit")


def test_csv_columns_follow_the_fields(tmp_path):
    columns = EpochRecord.csv_columns()
    assert columns[:4] == ["epoch", "step", "complete", "epoch_time_s"]
    assert columns[-1] == "elapsed_s" and "epochs" not in columns and "eval_models" not in columns
    assert columns.index("train_top1") < columns.index("eval_loss") < columns.index("eval_count")
    assert ScalingRecord.csv_columns()[:5] == [
        *("scaling", "num_devices", "batch_size", "batch_per_device", "images_per_s")
    ]
    writers = Writers(CsvWriter(tmp_path / "epochs.csv", EpochRecord, {"eval_top1"}))
    writers.write(record_from_json(STEP))
    writers.write(dataclasses.replace(EPOCH, eval_top1=0.5, eval_top5=0.9, mfu=float("nan")))
    writers.close()
    with open(tmp_path / "epochs.csv", newline="") as file:
        [row] = csv.DictReader(file)
    # The optional fields that were asked for; unknown values and nan are empty cells.
    assert [name for name in row if name.startswith("eval_top")] == ["eval_top1"]
    assert (row["eval_top1"], row["peak_memory_bytes"], row["mfu"]) == ("0.5", "", "")
    # A run that is resumed continues the file.
    writer = CsvWriter(tmp_path / "epochs.csv", EpochRecord, {"eval_top1"})
    writer.write(EPOCH)
    writer.close()
    assert len((tmp_path / "epochs.csv").read_text().splitlines()) == 3


def test_curves_are_of_steps_and_epochs():
    step = StepRecord(step=4, epoch=1, loss=2.0, top1=float("nan"), learning_rate=0.1, elapsed_s=3)
    assert step.points() == {"train/loss": 2.0, "train/learning_rate": 0.1}
    epoch = dataclasses.replace(EPOCH, eval_top1=0.5)
    assert epoch.points()["eval/top1"] == 0.5 and epoch.points()["train/epoch_loss"] == 1.0
    tags = [field.metadata.get("tag") for kind in RECORDS for field in dataclasses.fields(kind)]
    assert set(epoch.points()) < set(tags)
    # A summary has the last evaluation's figures, and no step.
    summary = dict.fromkeys(TrainSummary.required(), 1) | {"eval_top1": 0.5}
    assert TrainSummary(**summary).points() == Summary(status="done").points() == {}


def test_a_line_holds_what_json_can(tmp_path):
    writer = JsonlWriter(tmp_path)
    writer.write(Summary(status="done", wall_s=float("inf"), warnings=["ä"]))
    writer.close()
    [line] = records(tmp_path)
    assert line == json.loads(
        '{"kind": "summary", "status": "done", "wall_s": null, "invalid": [], "warnings": ["ä"]}'
    )
