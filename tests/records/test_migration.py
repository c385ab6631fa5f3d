"""Runs and sweeps of schema 1, as the program of that time wrote them, are read in today's names.

The folders in schema1/ are real runs of `micro`, shortened.
"""

import json
import pathlib

import pytest

from jaxbench.errors import BadInput
from jaxbench.records.migration import CONFIG_FIELDS, CONFIG_VALUES, migrate_result, migrate_run
from jaxbench.records.reader import load_run, missing_records, read_results
from jaxbench.records.schema import record_from_json
from jaxbench.records.schema.document import RunDocument
from jaxbench.records.schema.sweep import TrialResult

OLD = pathlib.Path(__file__).parent / "schema1"


# Schema 1 has no others.
@pytest.mark.parametrize("mode", ["train", "throughput", "scaling", "input", "memory", "conv2d"])
def test_an_old_run_has_the_fields_of_today(mode):
    assert "schema_version" not in json.loads((OLD / mode / "run.json").read_text())
    run = load_run(str(OLD / mode))
    assert (run.document["schema_version"], run.document["mode"]) == (2, mode)
    assert run.document["status"] == "done" and "job" not in run.document
    fields = {name: value for name, value in run.document.items() if name != "schema_version"}
    assert RunDocument(**fields).mode == mode
    for record in load_run(str(OLD / mode), steps=True).records:
        record_from_json(record)
    assert missing_records(run) is None
    [summary] = run.of_kind("summary")
    assert run.document["summary"] == summary and summary["wall_s"] > 0


def test_old_names_become_the_new_ones():
    train, throughput = load_run(str(OLD / "train")), load_run(str(OLD / "throughput"))
    assert train.document["target_accuracy"] == 0.01 and train.document["summary"]["import_s"] > 0
    assert throughput.of_kind("throughput")[0]["sync_residual_s"] >= 0
    assert throughput.document["summary"]["corrupt"] == {}
    config = train.document["config"]
    assert (config["replicas"], config["gradient_accumulation_steps"]) == ("data_parallel", 1)
    assert config["data"]["standardization"] == "dataset" and config["data"]["path"] == ""
    assert config["optimizer"]["weight_decay_mode"] == "coupled"


def test_every_old_field_has_a_field_of_today():
    """And none has an old one's name."""
    old, new = set(CONFIG_FIELDS), set(CONFIG_FIELDS.values())
    config = load_run(str(OLD / "train")).document["config"]
    here = {
        **config,
        **{f"{part}.{name}": 1 for part in ("data", "optimizer") for name in config[part]},
    }
    assert new <= set(here) and not old & set(here) and set(CONFIG_VALUES) <= set(here)
    migrated, _ = migrate_run(
        {"config": {"replicas": "together", "data": {"normalize_by": "image"}}}, []
    )
    assert migrated["config"] == {
        "replicas": "data_parallel",
        "data": {"standardization": "per_image"},
    }


@pytest.mark.parametrize(
    ("document", "records", "mode"),
    [
        # Ended before their first record.
        ({"job": "train", "steps_per_call": 1}, [], "throughput"),
        ({"job": "train", "link_gb_per_s": None}, [], "scaling"),
        ({"job": "train", "page_cache": "cold"}, [], "input"),
        ({"job": "train", "command_line": ["python", "--mode=fit"]}, [], "memory"),
        ({"job": "conv2d"}, [], "conv2d"),
        ({"job": "train"}, [], "train"),
        ({"job": "train"}, [{"kind": "compile"}, {"kind": "device"}], "scaling"),
        ({"job": "train"}, [{"kind": ["no", "text"]}, {}], "train"),
        ({"config": 3, "summary": "none", "command_line": None}, [], "train"),
    ],
)
def test_a_mode_is_found_whatever_is_left(document, records, mode):
    migrated, same = migrate_run(document, records)
    assert (migrated["mode"], same) == (mode, records)


def test_an_old_rate_is_that_of_the_whole_run():
    old = {"kind": "summary", "images_per_s": 50.0, "images_per_s_per_device": 25.0, "mfu": 0.1}
    rates = (10.0, 200.0, 100.0, 90.0)
    epochs = [
        {"kind": "epoch", "epoch": n, "complete": True, "images_per_s": rate}
        for n, rate in enumerate(rates, 1)
    ]
    document, [*same, summary] = migrate_run({"job": "train", "summary": old}, [*epochs, old])
    assert same == epochs and document["summary"] == summary
    assert summary["images_per_s_whole_run"] == 50.0 and summary["steady_epochs"] == 3
    names = ("images_per_s", "images_per_s_low", "images_per_s_high", "images_per_s_per_device")
    assert [summary[name] for name in names] == [100.0, 90.0, 200.0, 50.0]
    assert summary["mfu"] == pytest.approx(0.2)
    # Of one epoch there is no steady rate.
    _, [*_, summary] = migrate_run({"job": "train"}, [epochs[0], old])
    assert (summary["images_per_s"], summary["images_per_s_whole_run"]) == (None, 50.0)
    # A sweep's results are of the whole run too, but for those of other modes.
    figures = {"images_per_s": 50.0, "train_time_s": 3.0}
    line = migrate_result({"figures": figures})
    assert line["figures"] == {"images_per_s_whole_run": 50.0, "train_time_s": 3.0}
    today = {"figures": figures | {"steady_epochs": 3}}
    assert migrate_result(today) == today
    assert migrate_result({"figures": {"images_per_s": 50.0}})["figures"]["images_per_s"] == 50.0


def test_a_run_of_today_stays_as_it_is():
    document, records = {"schema_version": 2, "stop_at_top1": 1}, [{"kind": "summary", "late_s": 1}]
    assert migrate_run(document, records) == (document, records)


def test_a_later_schema_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema_version": 3, "status": "done"}')
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(BadInput, match="has schema 3, of a later jaxbench; this one reads up to 2"):
        load_run(str(tmp_path))


def test_an_old_sweeps_results_are_read():
    done, failed = (
        TrialResult.from_json(r) for r in read_results(OLD / "sweep" / "results.jsonl").values()
    )
    assert (done.status, failed.status) == ("done", "failed")
    assert done.figures.planned_bytes_per_device > 0 and done.run.startswith("cells/")


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("jaxbench.compare", [OLD / "throughput", OLD / "throughput"]),
        ("jaxbench.cost", [OLD / "train", "--usd_per_hour=1", "--target=0.01"]),
        ("jaxbench.report", [OLD, "--out=report.html"]),
    ],
)
def test_the_commands_read_old_runs(run_cli, module, args):
    done = run_cli(*map(str, args), module=module)
    assert done.returncode == 0, done.stderr
