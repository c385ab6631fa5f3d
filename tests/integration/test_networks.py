"""Real networks, whole recipes: what the fast half asks of the smallest network, asked of these."""

import numpy as np
import pytest

from tests.conftest import step_losses
from tests.training.test_train_step import relative_difference

EXACT = {"precision": "fp64", "log_every_steps": 1}
VIT = {"data__crop_padding": 4, "data__mixup": 0.2, "data__rand_augment": (2, 10)}
GPT = {"optimizer__warmup_epochs": 0, "data__eval_examples": 21}


@pytest.mark.parametrize(
    ("experiment", "fields", "on_eight", "falls_to"),
    [
        # It hardly learns in so few steps.
        (
            "vit_cifar10:tiny",
            VIT | {"epochs": 3, "optimizer__learning_rate": 0.01},
            {"remat": "blocks"},
            1.01,
        ),
        # The state split over the devices.
        ("gpt_bytes:tiny", GPT, {"parallelism": "fsdp", "remat": "blocks"}, 0.8),
    ],
)
def test_any_number_of_devices_trains_the_same(train, experiment, fields, on_eight, falls_to):
    """The whole run in fp64; blocks that are computed again change nothing."""
    fields = EXACT | fields
    one = train(experiment, num_devices=1, **fields)
    eight = train(experiment, num_devices=8, **fields | on_eight)
    losses = step_losses(one)
    assert losses[-1] < falls_to * losses[0] and np.std(losses) > 1e-3
    assert relative_difference(step_losses(eight), losses) < 1e-8
    for key in ("eval_loss", "eval_top1", "eval_count"):
        assert eight.summary[key] == pytest.approx(one.summary[key], rel=1e-8)
    assert eight.summary["eval_count"] == fields.get(
        "data__eval_examples", one.summary["eval_count"]
    )
