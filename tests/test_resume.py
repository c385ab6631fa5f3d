"""Runs that are killed, stopped and hurt, and go on: they leave what an undisturbed run leaves."""

import itertools
import json
import os
import pathlib
import re

import jax
import numpy as np
import pytest
from conftest import records, run_json, set_fields

from jaxbench import catalog
from jaxbench.checkpoints import Checkpoints, Policy, list_checkpoints, read_checkpoint
from jaxbench.resume import CHECKPOINTS
from jaxbench.train import Trainer, train_and_evaluate
from jaxbench.writers.console import PlainConsole

# What depends on when and how fast, and on what a process holds.
_OF_TIME = re.compile(
    r"_s$|^elapsed|images_per_s|^mfu$|memory|^telemetry$|^warnings$|^compile_cache$|^phases|flops_per_s"
)


def timeless(record):
    """A record without what differs between two runs of the same program."""
    if isinstance(record, dict):
        return {k: timeless(v) for k, v in record.items() if not _OF_TIME.search(k)}
    return record


EVERY_EPOCH = Policy(epochs=1, keep=99)


def trained(workdir, *, resume="none", policy=EVERY_EPOCH, say=None, **fields):
    config = catalog.load("quickstart:tiny")
    set_fields(config, **{"log_every_steps": 4} | fields)
    with open(os.devnull, "w") as quiet:
        console = PlainConsole(quiet)
        if say is not None:
            console.say = say.append
        return train_and_evaluate(
            config, str(workdir), console, telemetry_s=0, checkpoints=policy, resume=resume
        )


def states(workdir):
    """{name: the manifest's files of arrays} of a run's checkpoints."""
    folder = pathlib.Path(workdir) / CHECKPOINTS
    found = {}
    for name in list_checkpoints(folder):
        body = json.loads((folder / name / "manifest.json").read_text())["body"]
        found[name] = body
    return found


def final_state(workdir, target):
    folder = pathlib.Path(workdir) / CHECKPOINTS
    return read_checkpoint(folder, list_checkpoints(folder)[-1], target).state


def assert_same_run(one, other):
    """Both runs have the same records, tables and curves, but for time."""
    first, second = ([timeless(record) for record in records(run)] for run in (one, other))
    assert [r["kind"] for r in first] == [r["kind"] for r in second]
    assert first == second
    tables = [(pathlib.Path(run) / "epochs.csv").read_text().splitlines() for run in (one, other)]
    kept = [i for i, name in enumerate(tables[0][0].split(",")) if not _OF_TIME.search(name)]
    rows = [[[line.split(",")[i] for i in kept] for line in table] for table in tables]
    assert rows[0] == rows[1]
    assert curves(one) == curves(other)


def curves(workdir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(pathlib.Path(workdir) / "tensorboard"), {"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if not re.search(r"time/|images_per_s|memory|summary/", tag)
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of three epochs with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    result = trained(folder, epochs=3, num_devices=2)
    return folder, jax.device_get(result.state)


class _Stop(Exception):
    pass


def stop_after(monkeypatch, steps, error=_Stop):
    """Has the training loop end with an error once so many steps have been counted."""
    genuine = Trainer._count_step

    def counting(self, progress, metrics_RxM):
        if self._steps_done == steps:
            raise error
        return genuine(self, progress, metrics_RxM)

    monkeypatch.setattr(Trainer, "_count_step", counting)


def save_every(monkeypatch, steps):
    """Has a checkpoint written about every so many steps, wherever they are."""
    asked = itertools.count(1)
    genuine = Checkpoints.due

    def due(self, epochs_done=None, last=False):
        if epochs_done is not None:
            return genuine(self, epochs_done, last)
        return next(asked) % steps == 0

    monkeypatch.setattr(Checkpoints, "due", due)


@pytest.mark.parametrize(
    ("feed", "step"), [("resident", 8), ("resident", 17), ("stream", 11), ("stream", 32)]
)
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
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        with pytest.raises(_Stop):
            trained(run, **fields)
    assert 0 < max(states(run)[name]["point"]["step"] for name in states(run)) <= step
    resumed = trained(run, resume="auto", **fields)
    assert_same_run(whole, run)
    for ours, theirs in zip(
        jax.tree.leaves(jax.device_get(resumed.state)), jax.tree.leaves(state), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    document = run_json(run)
    [taken_up] = document["resumes"]
    assert document["status"] == "done" and taken_up["before"]["status"] == "failed"
    assert 0 < taken_up["step"] <= step and taken_up["lost_s"] >= 0
    # Done is done: nothing is touched.
    before = (run / "metrics.jsonl").read_bytes()
    assert trained(run, resume="auto", **fields).state is None
    assert (run / "metrics.jsonl").read_bytes() == before
