"""One model per device, each with a seed of its own."""

import jax
import numpy as np
import pytest

from jaxbench.errors import Diverged
from jaxbench.training.program import Program
from tests.conftest import MICRO, records, run_json, step_losses


@pytest.mark.parametrize(
    ("parallelism", "drawn"),
    [
        ("pmap", {"data__flip": True, "data__feed": "stream", "model__dropout": 0.5}),
        ("shard_map", {"model__dropout": 0.5}),
    ],
)
def test_replicas_are_those_of_single_device_runs(train, parallelism, drawn):
    """Dropout, augmentation, order and initial parameters all follow each model's own seed.

    With batch norm, whose running averages nobody may share.
    """
    fields = drawn | {
        "log_every_steps": 1,
        "precision": "fp64",
        "data__train_examples": 192,
        "data__eval_examples": 60,
        "batch_size": 48,
        "epochs": 1,
        "optimizer__name": "sgd",
        "optimizer__schedule": "constant",
    }
    together = train(
        MICRO, num_devices=2, replicas="independent", seed=5, parallelism=parallelism, **fields
    )
    [epoch] = records(together.run_dir.path, "epoch")
    assert [model["seed"] for model in epoch["eval_models"]] == [5, 6]
    kernels = np.asarray(together.state.params["head"]["kernel"])
    losses = []
    for place, seed in enumerate((5, 6)):
        alone = train(MICRO, num_devices=1, seed=seed, **fields)
        [expected] = records(alone.run_dir.path, "epoch")
        own = {"train": epoch["train_models"][place], "eval": epoch["eval_models"][place]}
        for name in ("train_loss", "train_top1", "eval_loss", "eval_top1", "eval_top5"):
            part, _, figure = name.partition("_")
            assert own[part][figure] == pytest.approx(expected[name], rel=1e-9), name
        np.testing.assert_allclose(
            kernels[place], np.asarray(alone.state.params["head"]["kernel"]), rtol=1e-9
        )
        losses.append(step_losses(alone))
    # They differ from each other, and the record has their mean and spread.
    assert len({round(model["loss"], 9) for model in epoch["eval_models"]}) == 2
    assert step_losses(together) == pytest.approx(np.mean(losses, axis=0), rel=1e-9)
    top1 = [model["top1"] for model in epoch["eval_models"]]
    assert len(set(top1)) > 1
    assert epoch["eval_top1"] == pytest.approx(np.mean(top1))
    assert epoch["eval_top1_std"] == pytest.approx(np.std(top1, ddof=1))
    assert (epoch["eval_top1_min"], epoch["eval_top1_max"]) == (min(top1), max(top1))
    # Every model evaluates the whole split and trains on all of its own batches.
    assert epoch["eval_count"] == 60 and epoch["images"] == 2 * 4 * 48
    assert together.summary["eval_models"] == epoch["eval_models"]
    document = run_json(together.run_dir.path)
    assert (document["models"], document["seeds"]) == (2, [5, 6])
    assert document["batch_per_device"] == document["batch_norm_examples"] == 48


def test_one_replica_that_diverges_does_not_end_the_others(train, monkeypatch, tmp_path):
    genuine = Program.initial_state

    def create(self, params_from_images, seed):
        state = genuine(self, params_from_images, seed)
        if seed in broken:
            return state.replace(params=jax.tree.map(lambda leaf: leaf * np.nan, state.params))
        return state

    monkeypatch.setattr(Program, "initial_state", create)
    broken = {1}
    document = run_json(train(MICRO, num_devices=2, replicas="independent").run_dir.path)
    assert document["status"] == "done"
    healthy, lost = document["summary"]["eval_models"]
    assert healthy["loss"] > 0 and lost["loss"] is None
    assert document["summary"]["eval_loss"] is None
    assert document["summary"]["diverged_seeds"] == [1]
    broken = {0, 1}
    with pytest.raises(Diverged):
        train(MICRO, num_devices=2, replicas="independent")
    assert run_json(tmp_path / "run2")["status"] == "diverged"
