"""Runs that are killed, stopped and damaged, and resumed: they leave the records of a whole run."""

import dataclasses
import datetime
import errno
import json
import os
import random
import re
import shutil
import signal
import threading

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.checkpoint import (
    Checkpoints,
    Policy,
    list_checkpoints,
    read_checkpoint,
    read_newest,
)
from jaxbench.checkpoints.resume import (
    CHECKPOINTS,
    Resume,
    check_same_experiment,
    find_resume,
    restore_records,
)
from jaxbench.cli import registry
from jaxbench.data.dataset import Split
from jaxbench.errors import BadInput, Terminated
from jaxbench.modes import runner
from jaxbench.parallel import signals
from jaxbench.records import run_lock
from tests.checkpoints.runs import (
    EVERY_EPOCH,
    Stop,
    assert_same_run,
    interrupted,
    save_every,
    stop_after,
    timeless,
    trained,
)
from tests.conftest import LOOP, MICRO, assert_same_state, records, refusal, run_json
from tests.in_process import fresh_process_state
from tests.recorded import STARTED, change_json


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of three epochs with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    result = trained(folder, epochs=3, num_devices=2)
    return folder, jax.device_get(result.state)


def assert_goodput(document):
    """The account of the run's whole time agrees with its dates and its epochs."""
    summary, first = document["summary"], document["attempts"][0]
    assert summary["num_resumes"] == len(document["attempts"]) - 1
    assert all(spent_s >= 0 for spent_s in summary["badput_s"].values())
    steps_s = summary["goodput"] * summary["total_wall_s"]
    assert steps_s == pytest.approx(summary["phases_s"]["train"], rel=0.05)
    assert steps_s + sum(summary["badput_s"].values()) == pytest.approx(summary["total_wall_s"])
    began, ended = (
        datetime.datetime.fromisoformat(date)
        for date in (first["started_at"], document["finished_at"])
    )
    assert summary["total_wall_s"] == pytest.approx((ended - began).total_seconds(), rel=0.05)
    assert summary["badput_s"]["down"] < summary["total_wall_s"] / 2
    assert summary["badput_s"]["compile"] >= summary["compile_s"] * 0.99


@pytest.mark.parametrize(("feed", "step"), [("resident", 17), ("resident", 32), ("stream", 11)])
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(
    undisturbed, tmp_path, monkeypatch, step, feed
):
    """Checkpoints between any two steps, then an end without a word, then the rest."""
    whole, state = undisturbed
    if feed == "stream":
        state = trained(whole := tmp_path / "whole", epochs=3, num_devices=2, data__feed=feed).state
    run = tmp_path / "run"
    fields = {"epochs": 3, "num_devices": 2, "data__feed": feed}
    save_every(monkeypatch, 4)
    interrupted(monkeypatch, run, step, **fields)
    assert list_checkpoints(run / CHECKPOINTS)
    resumed = trained(run, resume="auto", **fields)
    assert_same_run(whole, run)
    assert_same_state(jax.device_get(resumed.state), state)
    document = run_json(run)
    first, entry = document["attempts"]
    assert document["status"] == "done" and first["status"] == "failed"
    assert 0 < entry["step"] <= step and entry["lost_s"] >= 0
    assert_goodput(document)
    # Done is done: nothing is touched.
    before = (run / "metrics.jsonl").read_bytes()
    assert trained(run, resume="auto", **fields).state is None
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.device
def test_a_resumed_run_has_the_undisturbed_ones_losses(tmp_path, monkeypatch):
    """On any device, to rounding: a GPU may add in another order the next time."""
    whole, run = trained(tmp_path / "whole").run_dir.path, tmp_path / "run"
    save_every(monkeypatch, 4)
    interrupted(monkeypatch, run, 17)
    trained(run, resume="auto")
    document = run_json(run)
    assert document["status"] == "done" and document["attempts"][1]["step"] > 11
    for kind, name in (("step", "loss"), ("epoch", "eval_loss")):
        ours, theirs = ([(r["step"], r[name]) for r in records(of, kind)] for of in (run, whole))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_ctrl_c_in_the_last_checkpoint_of_a_run_that_max_steps_ended(tmp_path, monkeypatch):
    run, genuine = tmp_path / "run", Checkpoints.save

    def save(*args):
        genuine(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", save)
        trained(run, max_steps=4, epochs=1)
    assert trained(run, resume="auto", max_steps=6, epochs=1).summary["steps"] == 6


def test_a_run_that_max_steps_ended_is_the_longer_one_once_it_is_continued(tmp_path):
    """From within an epoch and from its end; evaluations that the longer run lacks are cut."""
    fields = {"epochs": 3, "num_devices": 2, "eval_every_epochs": 2, "log_every_steps": 10}
    whole = trained(tmp_path / "whole", max_steps=30, **fields)
    run = tmp_path / "run"
    for max_steps in (2, 4, 11, 30):
        result = trained(run, resume="auto", max_steps=max_steps, **fields)
        assert records(run, "epoch")[-1]["step"] == max_steps
    assert_same_run(tmp_path / "whole", run)
    assert_same_state(jax.device_get(result.state), jax.device_get(whole.state))
    document = run_json(run)
    assert document["config"]["max_steps"] == 30 and document["summary"]["steps"] == 30
    assert_goodput(document)
    # Done is done, its end has a score, and it has no end before that.
    assert trained(run, resume="auto", max_steps=30, **fields).state is None
    assert checkpoint.best_checkpoint(run / CHECKPOINTS) == "step-000000030.epoch-00002"
    told = "max_steps=29: must be at least 30: the run goes on from step-000000030.epoch-00002"
    refusal(trained, run, resume="auto", max_steps=29, **fields, told=told)


def test_telemetry_covers_all_processes(tmp_path, monkeypatch):
    """Every image that counts is in its windows once, and the readings of both are kept."""
    # Windows are kept to a millisecond, which is much of one epoch and little of all.
    run, fields = tmp_path / "run", {"epochs": 30, "num_devices": 1, "telemetry_s": 0.1}
    interrupted(monkeypatch, run, 17, **fields)
    kept = len((run / "telemetry.csv").read_text().splitlines())
    trained(run, resume="auto", **fields)
    told = run_json(run)["summary"]["telemetry"]
    assert told["over"] == "the measured windows"
    assert told["measured_images"] == sum(epoch["images"] for epoch in records(run, "epoch"))
    trained_s = sum(epoch["train_time_s"] for epoch in records(run, "epoch"))
    assert told["measured_s"] == pytest.approx(trained_s, rel=0.05)
    rows = (run / "telemetry.csv").read_text().splitlines()
    assert told["devices"]["host"]["samples"] == len(rows) - 1 and kept > 1


def test_a_run_is_resumed_on_another_number_of_devices(tmp_path, monkeypatch):
    """The same to the rounding of fp32: sums over four devices have another order."""
    fields = {"epochs": 3, "batch_norm": "sync"}
    whole = trained(tmp_path / "whole", num_devices=4, **fields).run_dir.path
    run = tmp_path / "run"
    interrupted(monkeypatch, run, 17, num_devices=4, **fields)
    trained(run, resume="auto", num_devices=1, **fields)
    ours, theirs = ([r["eval_loss"] for r in records(name, "epoch")] for name in (run, whole))
    assert ours[0] == theirs[0] and ours[1:] != theirs[1:]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    document = run_json(run)
    first, entry = document["attempts"]
    assert (first["num_devices"], entry["num_devices"]) == (4, 1)
    assert entry["versions"]["jax"] == jax.__version__ and {"price", "XLA_FLAGS"} <= entry.keys()
    assert set(entry["versions"]) == {"python", "jax", "jaxlib", "jaxbench", "commit"}
    # What was done on four devices is no rate of one.
    summary = document["summary"]
    assert summary["images_per_s"] and summary["flops_per_image"]
    for name in ("images_per_s_per_device", "flops_per_s_per_device", "mfu"):
        assert summary.get(name) is None
    assert "num_devices 4, then 1: metrics per device are unknown" in summary["warnings"]


def test_a_resume_that_changes_batch_norms_statistics_is_warned_of(tmp_path, monkeypatch):
    """With batch_norm=local, on another number of devices. How often it prints is free."""
    run, said = tmp_path / "run", []
    interrupted(monkeypatch, run, 17, num_devices=2)
    summary = trained(run, resume="auto", num_devices=1, log_every_steps=2, say=said).summary
    [line] = [line for line in said if "it took them" in line]
    assert "from 128 images now, it took them from 64" in line
    changed = "batch_norm_examples 64, then 128: losses are not those of an undisturbed run"
    assert changed in summary["warnings"]
    counts = [entry["batch_norm_examples"] for entry in run_json(run)["attempts"]]
    assert counts == [64, 128]
    steps = [record["step"] for record in records(run, "step")]
    assert steps == [4, 8, 11, 12, 14, 16, 18, 20, 22]


def test_independent_models_are_resumed_though_one_diverged(tmp_path, monkeypatch):
    """Its nan is null in the record."""
    fields, genuine = {"num_devices": 2, "replicas": "independent"}, LOOP.evaluate

    def evaluate(run, state):
        sums, time_s = genuine(run, state)
        sums["loss"][0] = np.nan
        return sums, time_s

    monkeypatch.setattr(LOOP, "evaluate", evaluate)
    whole = trained(tmp_path / "whole", **fields).run_dir.path
    run = tmp_path / "run"
    save_every(monkeypatch, 3)
    interrupted(monkeypatch, run, 17, **fields)
    assert records(run, "epoch")[0]["eval_models"][0]["loss"] is None
    with pytest.raises(BadInput, match="num_devices=2 there, 1 here"):
        trained(run, resume="auto", **fields | {"num_devices": 1})
    trained(run, resume="auto", **fields)
    assert_same_run(whole, run)


def test_the_loss_scale_is_resumed(tmp_path, monkeypatch):
    """Checkpoints while it falls, and the learning rate lags behind by the steps it costs."""
    fields = {"num_devices": 2, "precision": "fp16"}
    monkeypatch.setattr("jaxbench.training.loss_scale.FIRST_SCALE", 2.0**34)
    whole = trained(tmp_path / "whole", **fields)
    run = tmp_path / "run"
    save_every(monkeypatch, 4)
    interrupted(monkeypatch, run, 9, **fields)
    resumed = trained(run, resume="auto", **fields)
    assert_same_run(whole.run_dir.path, run)
    ours, theirs = (jax.device_get(result.state) for result in (resumed, whole))
    assert_same_state(ours, theirs)
    scales = [record["loss_scale"] for record in records(run, "step")]
    assert run_json(run)["attempts"][-1]["step"] < 9 and scales[-1] < scales[0] < 2.0**34
    assert ours.loss_scale.scale == scales[-1] and ours.loss_scale.skipped_steps > 4


def copy_of(undisturbed, tmp_path, epochs=2):
    """The undisturbed run as it was after so many of its three epochs."""
    whole, _ = undisturbed
    run = tmp_path / "hurt"
    shutil.copytree(whole, run)
    for name in list_checkpoints(run / CHECKPOINTS)[epochs:]:
        shutil.rmtree(run / CHECKPOINTS / name)
    document = run_json(run)
    document |= {"status": "failed", "reason": "hurt", "summary": None}
    (run / "run.json").write_text(json.dumps(document))
    return run


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_taken(undisturbed, tmp_path):
    run = copy_of(undisturbed, tmp_path)
    before, newest = list_checkpoints(run / CHECKPOINTS)
    path = max(files_of(run / CHECKPOINTS / newest), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    said = []
    trained(run, resume="auto", epochs=3, num_devices=2, say=said)
    assert_same_run(undisturbed[0], run)
    _, entry = run_json(run)["attempts"]
    assert entry["checkpoint"] == before and list(entry["damaged_checkpoints"]) == [newest]
    assert any(newest in line and "damaged" in line for line in said)
    assert (run / CHECKPOINTS / f"{newest}.damaged").exists()


def test_with_no_checkpoint_auto_begins_again_and_a_path_is_refused(undisturbed, tmp_path):
    run = copy_of(undisturbed, tmp_path, epochs=1)
    [only] = list_checkpoints(run / CHECKPOINTS)
    (run / CHECKPOINTS / only / "manifest.json").write_text("{}")
    with pytest.raises(BadInput, match="no checkpoint that can be read"):
        trained(tmp_path / "new", resume=str(run), epochs=3, num_devices=2)
    assert not (tmp_path / "new").exists()
    said = []
    trained(run, resume="auto", epochs=3, num_devices=2, say=said)
    assert any("beginning again" in line for line in said)
    assert_same_run(undisturbed[0], run)
    assert run_json(run)["attempts"][-1]["checkpoint"] is None


def test_a_checkpoint_of_another_shape_is_refused(undisturbed):
    whole, state = undisturbed
    folder = whole / CHECKPOINTS
    newest = list_checkpoints(folder)[-1]
    wider = jax.tree.map(lambda leaf: np.zeros((*leaf.shape, 2), leaf.dtype), state)
    assert "another model's state" in refusal(
        read_checkpoint, folder, newest, wider, told="] in the checkpoint"
    )
    refusal(read_checkpoint, folder, newest, {"step": state.step}, told="absent here")


def test_one_process_at_a_time_resumes_a_run(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0)
    run, new = str(copy_of(undisturbed, tmp_path)), str(tmp_path / "new")
    first = find_resume(run, "auto", "")
    for workdir, resume in ((run, "auto"), (None, run), (new, run)):
        refusal(find_resume, workdir, resume, "", told="is still running in another process")
    first.close()
    find_resume(run, "auto", "").close()
    # Two may copy it at a time.
    for _ in range(2):
        find_resume(new, run, "")


def test_a_run_killed_in_its_first_moment_begins_again(undisturbed, tmp_path):
    whole, _ = undisturbed
    run = copy_of(undisturbed, tmp_path)
    for path in run.iterdir():
        if path.name != "run.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    trained(run, resume="auto", epochs=3, num_devices=2)
    assert_same_run(whole, run)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json.partial").write_text("{")
    assert find_resume(str(tmp_path / "half"), "auto", "") is None


def test_a_write_that_takes_longer_than_a_signal_leaves_is_warned_of_once(tmp_path, monkeypatch):
    monkeypatch.setattr(signals._state, "grace_period_s", 0.0)
    said = []
    writer = Checkpoints(tmp_path, EVERY_EPOCH, said.append)
    for epoch in (1, 2):
        writer.save({"a": np.zeros(3)}, {"step": epoch, "epochs_done": epoch}, None)
        writer.wait()
    [line] = said
    assert "s to write" in line and "--grace_period_s" in line
    assert len(writer.warnings) == 1 and len(list_checkpoints(tmp_path)) == 2


def test_the_newest_and_the_best_are_kept(tmp_path):
    writer = Checkpoints(tmp_path, Policy(epochs=1, keep=2), print)
    for epoch, score in enumerate((0.3, 0.9, float("nan"), None, 0.5), 1):
        writer.save({"a": np.full(3, epoch)}, {"step": epoch, "epochs_done": epoch}, score)
    writer.wait()
    assert [name[-1] for name in list_checkpoints(tmp_path)] == ["2", "4", "5"]
    # A later process knows the scores again.
    later = Checkpoints(tmp_path, Policy(epochs=1, keep=1), print)
    later.save({"a": np.full(3, 6)}, {"step": 6, "epochs_done": 6}, 0.6)
    later.wait()
    assert [name[-1] for name in list_checkpoints(tmp_path)] == ["2", "6"]


def test_a_checkpoint_without_a_score_does_not_replace_the_best(tmp_path):
    """Neither one in the middle of an epoch, nor one of the same step after a resume."""
    scores = {(11, 1): 0.9, (15, 1): None, (22, 2): 0.5, (26, 2): None, (30, 2): None}
    writer = Checkpoints(tmp_path, Policy(minutes=10, keep=1), print)
    for (step, epochs), score in scores.items():
        writer.save({"a": np.full(3, step)}, {"step": step, "epochs_done": epochs}, score)
    writer.wait()
    best, newest = list_checkpoints(tmp_path)
    assert (best, newest) == ("step-000000011.epoch-00001", "step-000000030.epoch-00002")
    # A run that is resumed from the best and stopped before its first step has its state, no score.
    resumed = Checkpoints(tmp_path, Policy(minutes=10, keep=1), print)
    resumed.save({"a": np.full(3, 11)}, {"step": 11, "epochs_done": 1}, None)
    resumed.wait()
    assert checkpoint.best_checkpoint(tmp_path) == best


@pytest.mark.parametrize("target_accuracy", [None, 0.01])
@pytest.mark.device
def test_a_run_that_is_done_keeps_its_final_state(tmp_path, target_accuracy):
    """Also one that ended before its first regular checkpoint, or reached its target accuracy."""
    result = trained(tmp_path / "run", policy=Policy(minutes=10), target_accuracy=target_accuracy)
    state = jax.device_get(result.state)
    assert list_checkpoints(tmp_path / "run" / CHECKPOINTS) == [
        "step-000000011.epoch-00001" if target_accuracy else "step-000000022.epoch-00002"
    ]
    folder = tmp_path / "run" / CHECKPOINTS
    kept = read_checkpoint(folder, list_checkpoints(folder)[-1], state).state
    assert_same_state(kept, state)


@pytest.mark.device
def test_nothing_is_saved_before_the_first_step(tmp_path):
    trained(tmp_path / "run", epochs=1, max_steps=4, policy=Policy(minutes=1e-9, keep=99))
    names = list_checkpoints(tmp_path / "run" / CHECKPOINTS)
    assert [int(name[5:14]) for name in names] == [1, 2, 3, 4]


@pytest.mark.device
def test_what_is_saved_is_what_was_there_then(tmp_path):
    """The copy is taken before the next step uses the memory again."""
    writer = Checkpoints(tmp_path, EVERY_EPOCH, print)
    array = jax.numpy.arange(100_000.0)
    expected = np.array(array)
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    writer.save({"a": array}, {"step": 1, "epochs_done": 1}, None)
    for _ in range(20):
        array = double(array)
    writer.wait()
    [name] = list_checkpoints(tmp_path)
    found = read_checkpoint(tmp_path, name, {"a": expected}).state["a"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--resume=auto",), "--resume=auto: give --workdir"),
        (("--resume=nowhere",), "nowhere: no run directory"),
        (("--checkpoint_minutes=-1",), "--checkpoint_minutes=-1: must be 0 (never) or more"),
        (("--checkpoint_minutes=nan",), "--checkpoint_minutes=nan: must be"),
        (("--checkpoint_epochs=-1",), "checkpoint_epochs=-1: "),
        (("--keep_checkpoints=0",), "keep_checkpoints=0: "),
        (("--mode=throughput", "--resume=auto"), "it needs --mode=train"),
    ],
)
def test_checkpoint_flags_that_cannot_be_are_refused(refused, args, told):
    refused(f"--experiment={MICRO}", *args, told=told)


def test_a_new_run_holds_its_lock_to_its_end(tmp_path, monkeypatch):
    """Process id, host name and time do not matter: they differ between containers."""
    run, genuine = tmp_path / "run", LOOP.evaluate
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0)

    def evaluate_and_look(*args):
        document = run_json(run) | {"pid": 1, "started_at": "1999-01-01T00:00:00+00:00"}
        document["environment"]["hostname"] = "elsewhere"
        (run / "run.json").write_text(json.dumps(document))
        assert run_lock.is_running(run)
        for resume in ("auto", "none"):
            with pytest.raises(BadInput, match="is still running|is not empty"):
                trained(run, resume=resume, epochs=1, num_devices=1)
        return genuine(*args)

    monkeypatch.setattr(LOOP, "evaluate", evaluate_and_look)
    assert trained(run, epochs=1, num_devices=1).summary["status"] == "done"
    assert not run_lock.is_running(run)


@pytest.mark.parametrize(
    ("number", "function", "step"),
    [(signal.SIGTERM, "train_epoch", 11), (signal.SIGINT, "evaluate", 22)],
)
def test_a_signal_saves_what_has_been_done(
    undisturbed, tmp_path, monkeypatch, number, function, step
):
    """Sent for real, in the middle of an epoch, after one step of it, or of its evaluation."""
    run, genuine = tmp_path / "run", getattr(LOOP, function)

    def interrupted(run, *args):
        if len(run.progress.epochs) == 1:
            os.kill(os.getpid(), number)
        return genuine(run, *args)

    error = KeyboardInterrupt if number == signal.SIGINT else Terminated
    with monkeypatch.context() as patch, fresh_process_state(), pytest.raises(error):
        signals.raise_on_signals()
        patch.setattr(LOOP, function, interrupted)
        trained(run, epochs=3, num_devices=2, policy=Policy(minutes=10))
    assert run_json(run)["status"] == ("preempted" if error is Terminated else "interrupted")
    assert list_checkpoints(run / CHECKPOINTS) == [f"step-{step:09d}.epoch-00001"]
    trained(run, resume="auto", epochs=3, num_devices=2)
    assert run_json(run)["attempts"][-1]["step"] == step
    assert_same_run(undisturbed[0], run)


@pytest.mark.device
def test_a_run_without_checkpoints_says_so(tmp_path, monkeypatch):
    said = []
    stop_after(monkeypatch, 13)
    with pytest.raises(Stop):
        trained(tmp_path / "run", epochs=3, policy=Policy(), say=said)
    [start, end] = [line for line in said if "no checkpoint" in line]
    assert "--checkpoint_minutes=10" in start and end.startswith("no checkpoint was written")


def test_no_flipped_bit_goes_unnoticed(undisturbed, tmp_path):
    """One bit of every file of the newest checkpoint, and files cut short or gone."""
    run = copy_of(undisturbed, tmp_path)
    folder = run / CHECKPOINTS
    before, newest = list_checkpoints(folder)
    target = jax.tree.map(np.asarray, undisturbed[1])
    draw, tried = random.Random(0), 0

    def flip(data):
        place = draw.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]

    for path in files_of(folder / newest):
        whole = path.read_bytes()
        for hurt in (flip, flip, lambda data: data[: len(data) // 2], None):
            if hurt is None:
                path.unlink()
            else:
                path.write_bytes(damaged := hurt(whole))
                if damaged == whole:
                    continue  # an empty file has no half
            said = []
            read = read_newest(folder, target, said.append, set_aside=False)
            assert read.name == before and list(read.damaged) == [newest], path
            assert len(said) == 1 and newest in said[0] and "\n" not in said[0]
            tried += 1
        path.write_bytes(whole)
    assert tried > 30
    assert read_newest(folder, target, print, set_aside=False).name == newest


def test_a_run_branches_off_into_a_new_folder(undisturbed, tmp_path):
    """From any of its checkpoints, or as a copy; the run itself stays as it is."""
    whole, branch, copied = copy_of(undisturbed, tmp_path), tmp_path / "branch", tmp_path / "copied"
    fields = {"epochs": 3, "num_devices": 2}
    first, *_ = list_checkpoints(whole / CHECKPOINTS)
    [process] = run_json(whole)["attempts"]
    earlier, process = process | {"started_at": STARTED}, process | {"step": 11, "lost_s": 7.0}
    change_json(whole / "run.json", attempts=[earlier, process])
    before = {path: path.read_bytes() for path in files_of(whole)}
    source = str(whole / CHECKPOINTS / first)
    with pytest.raises(BadInput, match="would be lost; give a new --workdir"):
        trained(None, resume=source, **fields)
    trained(branch, resume=source, **fields)
    trained(copied, resume=str(whole), **fields)
    assert {path: path.read_bytes() for path in files_of(whole)} == before
    assert_same_run(undisturbed[0], branch)
    assert run_json(branch)["attempts"][-1]["from"] == str(whole)
    # It has that checkpoint too, to resume from.
    assert first in list_checkpoints(branch / CHECKPOINTS)
    # What the other run did after the checkpoint is not lost. A copy is the same run.
    assert "goodput" not in run_json(branch)["summary"]
    assert [one.get("lost_s") for one in run_json(branch)["attempts"]][:-1] == [0.0]
    assert [one.get("lost_s") for one in run_json(copied)["attempts"]][:-1] == [None, 7.0]
    assert run_json(copied)["summary"]["goodput"] > 0


def another_data_set(monkeypatch, run):
    genuine = runner.load_dataset

    def load(*args):
        dataset = genuine(*args)
        images, labels = dataset.eval.inputs_Nx.copy(), dataset.eval.labels_Nx.copy()
        images[0, 0, 0, 0] ^= 1
        return dataclasses.replace(dataset, eval=Split(images, labels))

    monkeypatch.setattr(runner, "load_dataset", load)


def changed_run(**fields):
    return lambda _, run: (run / "run.json").write_text(json.dumps(run_json(run) | fields))


def made_deterministic(monkeypatch, run):
    describe = runner.describe_environment
    on_gpu = {"backend": "gpu"}  # on CPUs the flag makes no difference
    monkeypatch.setattr(runner, "describe_environment", lambda devices: describe(devices) | on_gpu)
    document = run_json(run)
    document["environment"]["variables"]["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"
    (run / "run.json").write_text(json.dumps(document))


def damaged_records(monkeypatch, run):
    path = run / "metrics.jsonl"
    path.write_bytes(re.sub(rb'("train_loss": \d\.)\d', rb"\g<1>", path.read_bytes(), count=1))


RECORDS = "; put the file back, or begin anew"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batch_size": 64}, "was made with another experiment: batch_size=128 there, 64 here"),
        ({"model__dropout": 0.5}, "model.dropout=0.0 there, 0.5 here"),
        ({"epochs": 4, "seed": 3}, "seed=0 there, 3 here"),
        (another_data_set, "was made with another data set: eval_checksum="),
        (changed_run(target_accuracy=0.3), "was made with --target_accuracy=0.3, this is None"),
        (made_deterministic, "was made with --deterministic, this is without it"),
        (changed_run(mode="throughput"), "cannot be read: it is not that of a training run"),
        (damaged_records, RECORDS),
        (lambda _, run: os.truncate(run / "metrics.jsonl", 99), RECORDS),
        (lambda _, run: (run / "metrics.jsonl").unlink(), RECORDS),
    ],
)
def test_another_run_is_refused_and_nothing_is_changed(
    undisturbed, tmp_path, monkeypatch, change, told
):
    run, fields = copy_of(undisturbed, tmp_path), {"epochs": 3, "num_devices": 2}
    if isinstance(change, dict):
        fields |= change
    else:
        change(monkeypatch, run)
    before = {path: path.read_bytes() for path in files_of(run)}
    refusal(trained, run, resume="auto", **fields, told=told)
    assert {path: path.read_bytes() for path in files_of(run)} == before


def test_smaller_copies_of_the_images_are_another_experiment(tmp_path):
    config = registry.load(MICRO)
    recorded = json.loads(json.dumps(dataclasses.asdict(config)))
    resumed = Resume(tmp_path, {"config": recorded}, lambda: None)
    config.data.path = "elsewhere"
    check_same_experiment(resumed, config)
    config.data.cache = "resized"
    refusal(check_same_experiment, resumed, config, told="data.cache=none there, resized here")


def test_records_after_the_checkpoint_are_cut_and_damaged_curves_are_kept(undisturbed, tmp_path):
    """Garbage after a loss of power; epochs.csv is in metrics.jsonl; nothing else has the rest."""
    run = copy_of(undisturbed, tmp_path)
    (run / "epochs.csv").write_text("damaged")
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'\x00\xff\n{"kind"\n')
    [events] = (run / "tensorboard").glob("events*")
    events.write_bytes(events.read_bytes()[:40] + b"xx" + events.read_bytes()[42:])
    said = []
    trained(run, resume="auto", epochs=3, num_devices=2, say=said)
    assert [timeless(r) for r in records(run)] == [timeless(r) for r in records(undisturbed[0])]
    tables = [(folder / "epochs.csv").read_text() for folder in (run, undisturbed[0])]
    assert tables[0].splitlines()[:3] == tables[1].splitlines()[:3]
    assert len(tables[0].splitlines()) == 4
    assert run_json(run)["attempts"][-1]["short"] == [f"tensorboard/{events.name}"]
    [line] = [line for line in said if line.startswith("warning: kept, but not as")]
    assert events.name in line


def test_a_short_table_ends_with_a_whole_line(tmp_path):
    (tmp_path / "telemetry.csv").write_text("time,elapsed_s\n1,2\n3,")
    marks = {"telemetry.csv": [999, "00"], "metrics.jsonl": [9, "00"]}
    assert sorted(restore_records(tmp_path, marks, print)) == sorted(marks)
    assert (tmp_path / "telemetry.csv").read_text() == "time,elapsed_s\n1,2\n"


@pytest.mark.device
def test_a_checkpoint_that_cannot_be_written_is_warned_of_and_the_run_continues(
    tmp_path, monkeypatch
):
    genuine, said, run = ocp.Checkpointer.save, [], tmp_path / "run"

    def full(orbax, path, state):
        genuine(orbax, path, state)
        if "00022" not in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ocp.Checkpointer, "save", full)
    result = trained(run, epochs=2, num_devices=1, say=said)
    [warning] = [w for w in result.summary["warnings"] if "checkpoint" in w]
    assert "step-000000011.epoch-00001: No space left on device" in warning
    assert result.summary["status"] == "done" and f"warning: {warning}" in said
    assert [path.name for path in (run / CHECKPOINTS).iterdir()] == ["step-000000022.epoch-00002"]


def test_why_writes_fail_is_said_once(tmp_path, monkeypatch):
    text = "OUT_OF_RANGE: Failed to write 3 bytes: File too large [os_error_code='27']"
    errors = [ValueError(text), ValueError(text), OSError(errno.EDQUOT, "Disk quota exceeded")]

    def fail(*args):
        raise errors[said_by - 1]

    monkeypatch.setattr(checkpoint, "write_checkpoint", fail)
    writer = checkpoint.Checkpoints(tmp_path, checkpoint.Policy(epochs=1), lambda line: None)
    for said_by in (1, 2, 3):
        writer.save({"a": np.zeros(3)}, {"step": said_by, "epochs_done": said_by}, None)
        writer.wait()
    endings = ("epoch-00001: File too large", "epoch-00003: Disk quota exceeded")
    assert [one.endswith(end) for one, end in zip(writer.warnings, endings, strict=True)] == [1, 1]


def test_orbax_is_not_asked_if_there_is_no_room(tmp_path, monkeypatch):
    some = os.statvfs(tmp_path)
    few = os.statvfs_result([*some[:4], 20, *some[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.write_checkpoint(None, tmp_path, "some", {"a": np.zeros(3)}, {}, None)


def test_what_orbax_writes_too_late_is_removed(tmp_path):
    class Late:
        def save(self, path, state):
            threading.Timer(0.02, path.mkdir, kwargs={"parents": True}).start()
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.raises(OSError, match="Disk quota exceeded"):
        checkpoint.write_checkpoint(Late(), tmp_path, "some", {"a": np.zeros(3)}, {}, None)
    assert not (tmp_path / "some.part").exists()


def test_only_what_a_killed_process_left_is_removed(tmp_path):
    """With the next checkpoint, which is written through a link to another disk."""
    name = "step-000000001.epoch-00001"
    for leftover in ("download.part", f"{name}.part", f"{name}.dead", "x.dead"):
        (tmp_path / "disk" / leftover).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    writer = Checkpoints(tmp_path / "link", EVERY_EPOCH, print)
    writer.save({"a": np.zeros(3)}, {"step": 1, "epochs_done": 1}, None)
    writer.wait()
    assert {p.name for p in (tmp_path / "disk").iterdir()} == {"download.part", "x.dead", name}
