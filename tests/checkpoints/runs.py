"""Runs for tests of resuming: ended without a word, and compared with undisturbed ones."""

import itertools
import pathlib
import re

import pytest

from jaxbench.checkpoints.checkpoint import Checkpoints, Policy
from jaxbench.modes.train import run_training
from jaxbench.records.writers.console import Console
from tests.conftest import LOOP, MICRO, config_of, records

# What depends on when and how fast, and on what a process holds.
_OF_TIME = re.compile(
    r"_s$|^elapsed|images_per_s|^mfu$|memory|^telemetry$|^warnings$|^compile_cache$|^phases|flops_per_s"
    r"|^goodput$|^num_resumes$"
)


def timeless(record):
    """A record without what differs between two runs of the same program."""
    if isinstance(record, dict):
        return {k: timeless(v) for k, v in record.items() if not _OF_TIME.search(k)}
    return record


EVERY_EPOCH = Policy(epochs=1, keep=99)


def trained(
    workdir,
    *,
    resume="none",
    policy=EVERY_EPOCH,
    say=None,
    telemetry_s=0,
    target_accuracy=None,
    **fields,
):
    config = config_of(MICRO, **{"log_every_steps": 4} | fields)
    console = Console()
    if say is not None:
        console.say = say.append
    how = {"telemetry_s": telemetry_s, "target_accuracy": target_accuracy, "resume": resume}
    return run_training(config, workdir and str(workdir), console, checkpoints=policy, **how)


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


class Stop(Exception):
    pass


def stop_after(monkeypatch, steps):
    """Has the training loop end once so many steps have been counted."""
    genuine = LOOP.count_step

    def counting(run, sums):
        if run.progress.step == steps:
            raise Stop
        return genuine(run, sums)

    monkeypatch.setattr(LOOP, "count_step", counting)


def interrupted(monkeypatch, workdir, step, **fields):
    """Trains a run that ends without a word after so many steps."""
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after(patch, step)
        trained(workdir, **fields)


def save_every(monkeypatch, steps):
    """Has a checkpoint written about every so many steps, wherever they are."""
    asked = itertools.count(1)
    genuine = Checkpoints.due

    def due(self, epochs_done=None, last=False):
        if epochs_done is not None:
            return genuine(self, epochs_done, last)
        return next(asked) % steps == 0

    monkeypatch.setattr(Checkpoints, "due", due)
