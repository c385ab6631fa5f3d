"""The speed run's network in whole runs: compiling one takes longer than a fast test may."""

import jax
import numpy as np
import pytest

from jaxbench.checkpoints.checkpoint import Policy, list_checkpoints
from jaxbench.models.speed_net import SpeedNetConfig, whitening_kernel
from jaxbench.records.writers.describe import describe_record
from jaxbench.schema import decode_record
from tests.conftest import assert_same_state, records, table
from tests.models.speed_net import images, run


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Four epochs, of which the third and the last are evaluated, all of them saved."""
    folder = tmp_path_factory.mktemp("speed") / "run"
    return run(folder, Policy(minutes=0, epochs=1, keep=9), epochs=4, eval_every_epochs=3)


def test_whitening_stays_and_its_bias_learns(result):
    params = jax.device_get(result.state.params)
    assert np.array_equal(params["whitening"]["kernel"], whitening_kernel(images()[:100]))
    assert params["whitening"]["bias"].any()
    assert "scale" not in params["norm1_1"]
    assert result.summary["phases_s"]["init_from_images"] > 0


def test_only_some_epochs_are_evaluated(result):
    folder = result.run_dir.path
    epochs = records(folder, "epoch")
    assert ["eval_top1" in record for record in epochs] == [False, False, True, True]
    assert [record["eval_time_s"] > 0 for record in epochs] == [False, False, True, True]
    assert all(record["train_loss"] > 0 for record in epochs)
    assert [bool(row["eval_top1_tta"]) for row in table(folder / "epochs.csv")] == [0, 0, 1, 1]
    summary = result.summary
    assert summary["eval_top1_tta"] == epochs[-1]["eval_top1_tta"]
    assert summary["best_epoch"] in (3, 4)
    # Like with like: an epoch without an evaluation is less work.
    evaluated_s = [record["epoch_time_s"] for record in epochs[2:]]
    assert summary["median_epoch_s"] == pytest.approx(np.mean(evaluated_s))
    assert summary["train_time_s"] == pytest.approx(sum(e["train_time_s"] for e in epochs))
    assert summary["eval_time_s"] == pytest.approx(sum(e["eval_time_s"] for e in epochs))
    said = "\n".join(describe_record(decode_record(summary)))
    assert "with test-time augmentation" in said


def test_a_resumed_run_does_not_look_at_the_images_again(result, tmp_path, monkeypatch):
    def never(self, images_NxHxWxC):
        raise AssertionError("it is in the checkpoint")

    monkeypatch.setattr(SpeedNetConfig, "parameters_from_images", never)
    saved = result.run_dir.path / "checkpoints"
    second = saved / list_checkpoints(saved)[1]
    again = run(tmp_path / "run", resume=str(second), epochs=4, eval_every_epochs=3)
    assert_same_state(result.state.params, again.state.params)
    assert again.summary["eval_top1_tta"] == result.summary["eval_top1_tta"]


@pytest.mark.slow
def test_everything_at_once_goes_on_bit_for_bit(tmp_path):
    """fp16, recomputed norms, a model on each device, views, few evaluations, a checkpoint."""
    fields = {
        "precision": "fp16",
        "remat": "save_dots",
        "replicas": "independent",
        "num_devices": 2,
        "epochs": 3,
        "eval_every_epochs": 2,
        "data__train_examples": 64,
        "test_time_augmentation": "mirror",
        "log_every_steps": 1,
    }
    whole = run(tmp_path / "run", Policy(minutes=0, epochs=1, keep=9), **fields)
    epochs = records(whole.run_dir.path, "epoch")
    assert ["eval_top1_tta" in record for record in epochs] == [False, True, True]
    assert len(epochs[-1]["eval_models"]) == len(epochs[-1]["loss_scale_models"]) == 2
    assert all(model["top1_tta"] <= 1 for model in epochs[-1]["eval_models"])
    # Of the metrics' end, which training and evaluation have different things at.
    for record in (*epochs, *records(whole.run_dir.path, "step")):
        assert 2**8 <= record["loss_scale"] <= 2**16
        assert record["skipped_steps"] == sum(
            model["skipped_steps"] for model in record["loss_scale_models"]
        )
    assert whole.summary["diverged_seeds"] == []
    saved = whole.run_dir.path / "checkpoints"
    first = saved / list_checkpoints(saved)[0]
    again = run(tmp_path / "again", resume=str(first), **fields)
    assert_same_state(whole.state, again.state)
    assert again.summary["eval_models"] == whole.summary["eval_models"]
