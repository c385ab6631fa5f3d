"""A training run: which steps it has, what is queued, what a checkpoint keeps, its summary."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

import jaxbench
from jaxbench.modes.train import summarize
from jaxbench.schema import EpochRecord
from jaxbench.train import mean_norms
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.program import NORMS, UPDATES
from jaxbench.training.run import (
    DispatchLimiter,
    EpochSums,
    RunProgress,
    TrainPlan,
)
from tests.conftest import MICRO
from tests.recorded import filled


def epoch(number, train_time_s=4.0, complete=True, **evaluated):
    eval_time_s = 1.0 if evaluated else 0.0
    return filled(
        EpochRecord,
        epoch=number,
        complete=complete,
        epoch_time_s=train_time_s + eval_time_s,
        train_time_s=train_time_s,
        eval_time_s=eval_time_s,
        images=100,
        images_per_s=100 / train_time_s,
        images_per_s_per_device=50 / train_time_s,
        step=10 * number,
        elapsed_s=10.0 * number,
        eval_count=60 if evaluated else None,
        **evaluated,
    )


def summary_of(*epochs, **progress):
    return summarize(
        RunProgress(
            sums=EpochSums.beginning(len(epochs), ("loss", "count"), 1),
            epochs=list(epochs),
            step=10 * len(epochs),
            **progress,
        ),
        status="done",
        primary_metric="top1",
        num_devices=2,
        loss_scales=LossScales(None, (0,), print),
    )


def test_an_epoch_that_was_held_up_is_named():
    times_s = [9.0, 1.0, 1.1, 1.0, 8.7, 1.0]
    epochs = [epoch(number, time_s, eval_top1=0.5) for number, time_s in enumerate(times_s, 1)]
    [told] = summary_of(*epochs).warnings
    assert told.startswith("epoch 5 (8.70 s) took more than twice the median of 1.00 s")
    late = replace(epochs[2], eval_time_s=9.0, train_time_s=1.0, epoch_time_s=10.0)
    [told] = summary_of(*epochs[:2], late, epochs[3]).warnings
    assert told.startswith("the evaluation of epoch 3 (9.00 s)")


@pytest.mark.parametrize(
    ("times_s", "warning"),
    [
        ([9.0] + [1.0, 1.1] * 2, None),  # no interval
        ([9.0] + [1.0, 1.1] * 3, "epochs are too few (6) to check that they are independent"),
        ([9.0] + [1.0, 1.1] * 5, None),
        ([9.0, *[1.0] * 6, *[1.01] * 6], "epochs are not independent"),
    ],
)
def test_epochs_that_may_not_be_independent_are_told(times_s, warning):
    epochs = [epoch(number, time_s) for number, time_s in enumerate(times_s, 1)]
    warnings = summary_of(*epochs).warnings
    assert len(warnings) == bool(warning) and all(warning in line for line in warnings)


def test_of_a_run_that_has_done_nothing():
    summary = summary_of()
    assert (summary.epochs_done, summary.train_time_s, summary.images_per_s) == (0, 0, None)
    assert summary.compile_s is summary.median_epoch_s is summary.compile_cache is None


def test_times_and_rates_are_those_of_the_epochs():
    epochs = (
        epoch(1, 9.0, eval_top1=0.2),
        epoch(2, 5.0, eval_top1=0.4),
        epoch(3, 3.0),
        epoch(4, 4.0, eval_top1=0.3),
        epoch(5, 1.0, complete=False, eval_top1=0.3),
    )
    summary = summary_of(*epochs, compile_s=2.0, compile_cache=["hit", "miss"])
    assert (summary.first_epoch_s, summary.first_epoch_with_compile_s) == (10.0, 12.0)
    # Of the complete epochs with an evaluation, without the first.
    assert summary.median_epoch_s == 5.5
    # Of the complete epochs from the second on: 20, 33.3 and 25 images/s.
    assert (summary.images_per_s, summary.images_per_s_per_device) == (25.0, 12.5)
    assert (summary.images_per_s_low, summary.images_per_s_high) == (None, None)
    assert summary.images_per_s_range == pytest.approx([20.0, 100 / 3])
    assert summary.steady_epochs == 3
    assert summary.images_per_s_whole_run == pytest.approx(500 / 22)
    assert summary.compile_cache == "miss" and summary.invalid == []
    assert (summary.eval_top1, summary.best_eval_top1, summary.best_epoch) == (0.3, 0.4, 2)


@pytest.mark.parametrize("lost", [None, float("nan")])
def test_a_score_that_is_no_number_is_the_worst(lost):
    """It is None in a record that was read back."""
    epochs = (epoch(1, eval_top1=lost), epoch(2, eval_top1=0.1), epoch(3, eval_top1=lost))
    summary = summary_of(*epochs)
    assert (summary.best_eval_top1, summary.best_epoch) == (0.1, 2)
    plan = TrainPlan(30, 10, target_accuracy=0.1)
    assert [plan.reaches_target(record) for record in epochs] == [False, True, False]
    assert plan.describe_target(epochs, images_per_step=10)["images"] == 200
    assert not plan.describe_target(epochs[:1], images_per_step=10)["reached"]


def test_models_that_diverged_are_named():
    models = [{"seed": seed, "loss": loss} for seed, loss in ((5, 0.1), (6, None), (7, 1e400))]
    assert summary_of(epoch(1, eval_top1=0.1, eval_models=models)).diverged_seeds == [6, 7]


@pytest.mark.parametrize("plan", [(33, 11, 1), (14, 11, 2), (30, 10, 2), (50, 10, 3), (1, 11, 5)])
def test_epochs_make_up_the_run_and_the_last_is_evaluated(plan):
    plan = TrainPlan(*plan)
    epochs = range(plan.num_epochs)
    steps = [step for epoch in epochs for step in plan.steps(epoch)]
    assert steps == list(range(1, plan.total_steps + 1))
    evaluated = [epoch for epoch in epochs if plan.evaluates_after(epoch)]
    every = plan.eval_every_epochs
    assert evaluated == sorted({*epochs[every - 1 :: every], epochs[-1]})
    for done in epochs:
        assert plan.num_evaluations(done) == len([epoch for epoch in evaluated if epoch >= done])


def test_progress_comes_back_as_it_was_when_it_was_saved():
    """But for the times of a process."""

    def dumped(metadata):
        return json.dumps(metadata, default=np.ndarray.tolist)

    sums = ({"loss": [loss, 3 * loss], "count": [4.0, 4.0]} for loss in (0.6, 0.3))
    epoch = EpochSums(2, *sums, steps=2, interval_steps=1)
    kept = {"step": 26, "learning_rate": 0.1, "compile_cache": ["hit"]}
    saved = RunProgress(sums=epoch, import_s=1.0, **kept)
    metadata = saved.to_json()
    before = dumped(metadata)
    found = RunProgress.from_json(json.loads(before) | {"epochs": []})
    assert dumped(found.to_json()) == before and metadata == metadata | kept
    assert saved.import_s == 1.0 and found.import_s is None
    # What is added later is in the same sums, and in no checkpoint before.
    for run in (saved, found):
        run.sums.add({"loss": np.float32([1 / 3, 0]), "count": np.float32([4, 4])})
        run.invalid.append("later")
    assert dumped(found.to_json()) == dumped(saved.to_json()) != dumped(metadata) == before


def test_norms_are_means_over_an_epochs_updates():
    sums = EpochSums.beginning(0, (*NORMS, UPDATES), 2)
    assert mean_norms(sums) == {}  # every step was skipped
    for values in ([2, 1, 4, 1], [4, 3, 6, 1], [0, 0, 0, 0]):  # the last was skipped
        sums.add(
            {name: np.full(2, value) for name, value in zip((*NORMS, UPDATES), values, strict=True)}
        )
    assert mean_norms(sums) == dict(zip(NORMS, (3.0, 2.0, 5.0), strict=True))


def test_training_and_evaluation_keep_the_limit(tmp_path, monkeypatch):
    added, genuine = [], DispatchLimiter.add

    def add(self, result):
        genuine(self, result)
        added.append(len(self._results))

    monkeypatch.setattr(DispatchLimiter, "add", add)
    run = jaxbench.train(MICRO, workdir=tmp_path / "run", epochs=1, quiet=True, telemetry_s=0)
    evaluations = added[run.summary["steps"] :]
    assert len(evaluations) > 1 and max(added) == 4
