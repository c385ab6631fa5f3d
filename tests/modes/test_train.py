"""A run's records, however it ends."""

import errno
import os
import re

import cv2
import numpy as np
import pytest

from jaxbench.errors import Diverged
from jaxbench.records import run_dir
from jaxbench.schema import EpochRecord
from jaxbench.training.program import Network
from tests.conftest import MICRO, records, run_document, run_json, step_losses, table


def test_the_run_directory_holds_what_it_should(train):
    result = train(MICRO, epochs=3, num_devices=4, log_every_steps=4)
    folder = result.run_dir.path
    assert sorted(path.name for path in folder.iterdir()) == [
        "epochs.csv",
        "metrics.jsonl",
        "run.json",
        "run.lock",
        "telemetry.csv",
        "tensorboard",
    ]

    document = run_json(folder)
    assert (document["status"], document["reason"]) == ("done", None)
    assert document["parameters"] == 2 + 64 * 10 + 10
    assert document["config"]["batch_size"] == 128
    assert document["batch_norm_examples"] == document["batch_per_device"] == 32
    assert document["data"]["feed"] == "resident"
    environment = document["environment"]
    assert environment["num_devices"] == 4 and environment["versions"]["jax"]
    assert environment["host_memory_bytes"] > 2**30
    assert document["started_at"] < document["finished_at"]

    kinds = [record["kind"] for record in records(folder)]
    # 11 steps an epoch: records after steps 4, 8, 11, 12, 16, 20, 22 ...
    assert kinds[:2] == ["compile", "compile"] and kinds[-1] == "summary"
    assert kinds.count("epoch") == 3
    steps = [record["step"] for record in records(folder, "step")]
    assert steps == [4, 8, 11, 12, 16, 20, 22, 24, 28, 32, 33]
    for record in records(folder, "compile"):
        assert record["lower_s"] > 0 and record["compile_s"] > 0
        assert record["memory"]["total_bytes"] > 0

    epochs = records(folder, "epoch")
    for record in epochs:
        assert record["images"] == 11 * 128 and record["eval_count"] == 360
        assert record["images_per_s"] == pytest.approx(record["images"] / record["train_time_s"])
        assert record["images_per_s_per_device"] == pytest.approx(record["images_per_s"] / 4)
        assert record["epoch_time_s"] == pytest.approx(
            record["train_time_s"] + record["eval_time_s"]
        )
        assert 0 <= record["data_wait_s"] < record["train_time_s"]
        assert "peak_memory_bytes" not in record  # CPU devices do not count
    rows = table(folder / "epochs.csv")
    # Every figure of the record has a column; the others are empty.
    assert {name for name in rows[0] if rows[0][name]} == set(epochs[0]) - {"kind"}
    assert [float(row["eval_top1"]) for row in rows] == [r["eval_top1"] for r in epochs]
    assert rows[0]["peak_memory_bytes"] == ""

    summary = document["summary"]
    assert summary == records(folder, "summary")[0]
    assert summary["steady_epochs"] == 2
    # The clock is read twice for them.
    assert summary["wall_s"] == pytest.approx(sum(summary["phases_s"].values()), abs=0.05)
    assert {"compile", "train", "eval", "data_wait", "records"} <= set(summary["phases_s"])
    # The start of this process is not the start of the run.
    assert not {"import_s", "startup_s"} & set(summary)


def test_a_step_record_is_the_mean_over_its_steps(train):
    every = step_losses(train(MICRO, epochs=1, log_every_steps=1))
    fours = step_losses(train(MICRO, epochs=1, log_every_steps=4))
    means = [np.mean(every[start : start + 4]) for start in (0, 4, 8)]
    assert fours == pytest.approx(means, rel=1e-6)


@pytest.mark.parametrize(("feed", "unshown_channels"), [("resident", 2), ("stream", 5)])
@pytest.mark.device
def test_tensorboard_shows_the_records_and_the_feeds_images(train, feed, unshown_channels):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fields = {"data__source": "synthetic", "data__image_shape": (32, 32, 3), "data__feed": feed}
    result = train(MICRO, data__train_examples=256, data__eval_examples=100, **fields)
    events = EventAccumulator(str(result.run_dir.path / "tensorboard")).Reload()
    for tag, kind, name in (("eval/top1", "epoch", "eval_top1"), ("train/loss", "step", "loss")):
        shown = [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]
        kept = records(result.run_dir.path, kind)
        assert [(record["step"], record[name]) for record in kept] == shown
    [images] = events.Images("train/images")
    row_HxWxC = cv2.imdecode(np.frombuffer(images.encoded_image_string, np.uint8), -1)
    assert row_HxWxC.shape == (32, 16 * 32, 3) and row_HxWxC.std() > 0
    # Images that nothing shows are trained, too.
    fields["data__image_shape"] = (32, 32, unshown_channels)
    train(MICRO, data__train_examples=128, max_steps=1, **fields)


@pytest.mark.device
def test_max_steps_ends_a_run_in_the_middle_of_an_epoch(train):
    result = train(MICRO, max_steps=14)
    first, second = records(result.run_dir.path, "epoch")
    assert (first["complete"], first["step"], first["images"]) == (True, 11, 11 * 128)
    assert (second["complete"], second["step"], second["images"]) == (False, 14, 3 * 128)
    assert second["eval_count"] == 360
    # An epoch cut short says nothing about the time of an epoch.
    assert result.summary["first_epoch_s"] and "median_epoch_s" not in result.summary
    # Nor about the steady state.
    assert "images_per_s" not in result.summary and result.summary["images_per_s_whole_run"] > 0


@pytest.mark.device
def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(train, tmp_path):
    with pytest.raises(Diverged):
        train(MICRO, optimizer__learning_rate=1e20)
    document = run_json(tmp_path / "run1")
    assert document["status"] == "diverged" and "at step" in document["reason"]
    assert records(tmp_path / "run1")[-1]["status"] == "diverged"
    # The one update there is breaks the network, after the last training loss was looked at.
    with pytest.raises(Diverged, match="evaluation loss"):
        train(MICRO, max_steps=1, optimizer__learning_rate=1e38)
    assert run_json(tmp_path / "run2")["status"] == "diverged"


def test_a_full_disk_is_in_the_record(train, tmp_path, monkeypatch):
    """From the second epoch on nothing can be written, but in space that a file already has."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullDisk:
        add_images = staticmethod(lambda *_, **more: None)
        close = staticmethod(full)

        def write(self, record):
            if isinstance(record, EpochRecord) and record.epoch == 2:
                monkeypatch.setattr(os, "fsync", full)
                full()

    monkeypatch.setattr("jaxbench.modes.train.TensorBoardWriter", lambda *_: FullDisk())
    with pytest.raises(OSError, match="No space left"):
        train(MICRO)
    document = run_json(tmp_path / "run1")
    assert document["status"] == "failed" and "No space left" in document["reason"]
    assert not (tmp_path / "run1" / "run.json.partial").exists()


def test_a_stop_right_after_the_start_is_in_the_record(train, tmp_path, monkeypatch):
    def interrupt(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxbench.modes.runner.JsonlWriter", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(MICRO)
    assert run_json(tmp_path / "run1")["status"] == "interrupted"


@pytest.mark.device
def test_the_step_log_has_the_published_form(run_cli, tmp_path, slow_feed):
    slow_feed(0.03)
    fields = {"step_log": "true", "data.feed": "stream", "data.num_threads": 1}
    fields |= {"data.prefetch_batches": 1}
    flags = [f"--experiment.{name}={value}" for name, value in fields.items()]
    done = run_cli(f"--experiment={MICRO}", *flags, "--workdir=run")
    assert done.returncode == 0, done.stderr
    form = r"^step (\d+), loss = \d+\.\d\d \((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)$"
    lines = re.findall(form, done.stdout, re.MULTILINE)
    kept = records(tmp_path / "run", "step")
    assert [int(step) for step, _, _ in lines] == [10, 11, 20, 22]
    for (_, rate, step_s), record in zip(lines, kept, strict=True):
        assert float(rate) == pytest.approx(record["images_per_s"], abs=0.06)
        assert float(step_s) == pytest.approx(record["step_time_s"], abs=0.0006)
        assert record["images_per_s"] == pytest.approx(128 / record["step_time_s"])
    # The intervals make up the epochs' time: nothing is counted twice or given away.
    for epoch in records(tmp_path / "run", "epoch"):
        intervals = [record for record in kept if record["epoch"] == epoch["epoch"]]
        counts = [10, 1] if epoch["epoch"] == 1 else [9, 2]
        spent_s = np.dot(counts, [record["step_time_s"] for record in intervals])
        # Some batches, 5 at most, were made ready before.
        assert 0.03 * (11 - 5) <= spent_s <= epoch["train_time_s"]


def test_two_runs_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moment = run_dir.now()
    monkeypatch.setattr(run_dir, "now", lambda: moment)
    paths = [run_dir.create_run_dir(None, "some:tiny", run_document()).path for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.parent.name == "some-tiny" for path in paths)


def test_a_run_ends_with_the_evaluation_that_reaches_its_target(train):
    reached = train(MICRO, target_accuracy=0.02)
    summary = reached.summary
    assert summary["status"] == "done" and summary["epochs_done"] == 1
    [epoch] = records(reached.run_dir.path, "epoch")
    assert summary["target_accuracy"] == {
        **{"score": "top1", "value": 0.02, "reached": True, "epoch": 1, "steps": epoch["step"]},
        "images": epoch["step"] * 128,
        "time_s": epoch["elapsed_s"],
        "epochs_time_s": epoch["epoch_time_s"],
        "train_time_s": epoch["train_time_s"],
        # No GPU tells, and nobody said what the hardware costs.
        **dict.fromkeys(("energy_j", "energy_covers", "usd")),
    }
    assert epoch["epoch_time_s"] < epoch["elapsed_s"] < summary["wall_s"]
    never = train(MICRO, target_accuracy=1.0).summary
    assert never["epochs_done"] == 2 and not never["target_accuracy"]["reached"]
    assert never["target_accuracy"]["time_s"] is None and never["target_accuracy"]["epoch"] is None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--target_accuracy=94",), "must be a fraction"),
        (("--target_accuracy=nan",), "must be a fraction"),
        (("--target_accuracy=0.9", "--experiment.replicas=independent"), "at different times"),
    ],
)
def test_a_target_accuracy_that_cannot_be_is_refused(refused, args, told):
    refused(f"--experiment={MICRO}", *args, told=told)


@pytest.mark.device
def test_a_feed_that_loses_images_makes_a_run_invalid(run_cli, tmp_path, monkeypatch):
    """Steps that count fewer images than they have would be too fast by as much."""
    genuine = Network.unpack_train_sums

    def losing(self, packed):
        metrics = genuine(self, packed)
        return metrics | {"count": metrics["count"] - 1}

    monkeypatch.setattr(Network, "unpack_train_sums", losing)
    done = run_cli(f"--experiment={MICRO}", "--experiment.epochs=1", "--workdir=run")
    document = run_json(tmp_path / "run")
    assert done.returncode == 1
    assert document["status"] == document["summary"]["status"] == "invalid"
    assert "images trained in steps of" in document["reason"]


def test_rates_that_no_processor_has_make_a_run_invalid(train, monkeypatch):
    """And what is doubtful about its compiled steps and its test split is among its warnings."""
    monkeypatch.setattr("jaxbench.modes.train.flops_limit", lambda devices: 1.0)
    monkeypatch.setattr(
        "jaxbench.modes.runner.missing_arithmetic", lambda record, flops: [record.function]
    )
    summary = train(MICRO, epochs=2, data__eval_examples=20).summary
    assert summary["status"] == "invalid"
    [told] = summary["invalid"]
    assert re.match(r"epoch [12]: \S+ TFLOP/s on a device by the network's own arithmetic", told)
    assert summary["warnings"][:2] == ["train_step", "eval_step"]
    assert any(
        line.startswith("the evaluation split has 20 images") for line in summary["warnings"]
    )
