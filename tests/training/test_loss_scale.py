"""fp16: a loss scale that follows the gradients, and steps that overflow and change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxbench.cli import registry
from jaxbench.errors import Diverged
from jaxbench.modes.train import run_training
from jaxbench.parallel.mesh import create_training_mesh, unequal_copies
from jaxbench.records.writers.console import Console
from jaxbench.train import build_program
from jaxbench.training.loss_scale import (
    FIRST_SCALE,
    HIGHEST_SCALE,
    LOWEST_SCALE,
    LossScale,
    LossScales,
    all_finite,
    first_loss_scale,
)
from jaxbench.training.optimizers import create_schedule
from jaxbench.training.program import NORMS, UPDATES
from tests.conftest import MICRO, assert_same_state, config_of, records, run_json, set_fields
from tests.micro import SmallConfig

# One convolution, no batch norm; gradients and nothing else move the parameters.
CONVOLUTION = {"model": SmallConfig(norm=False), "optimizer__weight_decay": 0.0}
# 4 steps an epoch.
SYNTHETIC = {
    "data__source": "synthetic",
    "data__train_examples": 256,
    "data__eval_examples": 100,
    "batch_size": 64,
}


class Steps:
    """A training step of a small network under momentum, on batches of 4 images a device."""

    def __init__(self, num_devices=1, **fields):
        config = registry.load(MICRO)
        config.data.feed, config.data.source = "synthetic", "synthetic"
        config.batch_size, config.num_devices = 4 * num_devices, num_devices
        config.optimizer.name, config.optimizer.learning_rate = "sgd", 0.1
        fields = {"model__hidden": (8,), "precision": "fp16"} | fields
        set_fields(config, **fields)
        if config.replicas == "independent":
            config.batch_size = 4
        self.mesh, layout = create_training_mesh(config)
        self.program = build_program(config, self.mesh, layout, steps_per_epoch=1)
        self.state = jax.device_get(self.program.place_train_state())

    def row(self, labels_D):
        """Random images; all of a device's have one label."""
        devices = len(labels_D)
        images = np.random.default_rng(0).integers(0, 256, (devices, 4, 8, 8, 1), np.uint8)
        return {
            "images": images,
            "labels": np.repeat(np.int32(labels_D)[:, None], 4, axis=1),
            "indices": np.arange(4 * devices, dtype=np.int32).reshape(devices, 4),
            "seed": np.zeros(devices, np.uint32),
            "epoch": np.zeros(devices, np.int32),
        }

    def take(self, state, row, steps=1):
        """Returns the placed state after so many steps on a row, and the last one's metrics."""
        placed = self.program.place_train_state(state)
        data = self.mesh.replicate({"mean": np.full(1, 128.0, "f4"), "std": np.full(1, 64.0, "f4")})
        for _ in range(steps):
            placed, metrics = self.program.train_step(placed, data, self.mesh.shard(row))
        return placed, self.program.network.unpack_train_sums(metrics)


@pytest.fixture(scope="module")
def steps():
    return Steps()


def with_scale(state, scale, good_steps=0):
    like = state.loss_scale
    return state.replace(
        loss_scale=LossScale(
            np.full_like(like.scale, scale),
            np.full_like(like.good_steps, good_steps),
            like.skipped_steps,
        )
    )


def gradient(state):
    """What momentum holds after the first step: the gradient."""
    return optax.tree_utils.tree_get(jax.device_get(state).opt_state, "trace")


@pytest.mark.device
def test_the_scale_is_halved_and_doubled_within_bounds(monkeypatch):
    monkeypatch.setattr("jaxbench.training.loss_scale.GROWTH_STEPS", 3)
    seen, scaling = [], first_loss_scale()
    for finite in (True, True, False, True, True, True, True, False, False):
        scaling = scaling.adjust(jnp.bool_(finite))
        seen.append((float(scaling.scale) / FIRST_SCALE, int(scaling.good_steps)))
    # The third good step in a row doubles; one that overflows begins the row again.
    assert seen == [
        *[(1, 1), (1, 2), (0.5, 0), (0.5, 1), (0.5, 2), (1, 0), (1, 1), (0.5, 0), (0.25, 0)]
    ]
    assert int(scaling.skipped_steps) == 3
    assert (scaling.scale.dtype, scaling.skipped_steps.dtype) == (jnp.float32, jnp.int32)
    for scale, finite in ((HIGHEST_SCALE, True), (LOWEST_SCALE, False)):
        at_end = LossScale(jnp.float32(scale), jnp.int32(2), jnp.int32(0)).adjust(jnp.bool_(finite))
        assert at_end.scale == scale


@pytest.mark.device
def test_one_value_that_is_not_finite_counts():
    tree = {"a": jnp.ones((3, 2)), "b": jnp.ones(4)}
    assert all_finite(tree)
    for value in (np.nan, np.inf, -np.inf):
        assert not all_finite(tree | {"b": jnp.ones(4).at[2].set(value)})


@pytest.mark.device
def test_a_step_that_overflows_changes_nothing_but_the_scale(steps):
    row = steps.row([3])
    # Not the state that nothing has moved yet: momentum and running averages hold something.
    before = jax.device_get(steps.take(with_scale(steps.state, 2.0**10, 3), row)[0])
    assert before.loss_scale.good_steps == 4 and before.loss_scale.scale == 2.0**10
    after, metrics = steps.take(with_scale(before, 2.0**100, 4), row)
    after = jax.device_get(after)
    for name in ("params", "batch_stats", "opt_state"):
        assert_same_state(getattr(after, name), getattr(before, name))
    assert after.step == before.step + 1
    scaling = after.loss_scale
    assert (scaling.scale, scaling.good_steps, scaling.skipped_steps) == (2.0**99, 0, 1)
    assert (metrics["loss_scale"], metrics["skipped_steps"]) == (np.float32(2.0**99), 1)
    # It adds nothing to the norms of an epoch.
    assert not any(metrics[name] for name in (*NORMS, UPDATES))
    # The loss is that of the good step from the same state, unscaled.
    good, good_metrics = steps.take(before, row)
    assert all(good_metrics[name] > 0 for name in (*NORMS, UPDATES))
    assert metrics["loss"] == good_metrics["loss"] and 0 < metrics["loss"] / 4 < 10
    for name in ("params", "batch_stats", "opt_state"):
        moved = jax.tree.leaves(jax.device_get(getattr(good, name)))
        still = jax.tree.leaves(getattr(before, name))
        assert any((a != b).any() for a, b in zip(moved, still, strict=True)), name


@pytest.fixture(scope="module")
def reference():
    return Steps(precision="fp32", **CONVOLUTION)


@pytest.mark.parametrize("gradient_accumulation_steps", [1, 2])
@pytest.mark.device
def test_gradients_are_those_of_fp32_to_float16s_rounding(reference, gradient_accumulation_steps):
    """Small ones too, which float16 alone turns into zeros: the same step without scaling fails.

    A last layer of 1e-7 makes the gradients of all activations before it as small. Without batch
    norm: below it the biases have no gradient but rounding.
    """
    half = Steps(gradient_accumulation_steps=gradient_accumulation_steps, **CONVOLUTION)
    row = half.row([3])

    def shrunk(state):
        head = state.params["head"]
        head = {**head, "kernel": head["kernel"] * np.float32(1e-7)}
        return state.replace(params={**state.params, "head": head})

    def worst_difference(grads, expected):
        """The largest, by the largest value in each array."""
        return max(
            np.max(np.abs(a - b)) / np.max(np.abs(b))
            for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True)
        )

    for change, scale in ((lambda state: state, 2.0**10), (shrunk, 2.0**20)):
        expected = gradient(reference.take(change(reference.state), row)[0])
        scaled = gradient(half.take(with_scale(change(half.state), scale), row)[0])
        assert 0 < worst_difference(scaled, expected) < 0.02
    unscaled = gradient(half.take(with_scale(shrunk(half.state), 1.0), row)[0])
    assert not unscaled["conv"]["kernel"].any() and expected["conv"]["kernel"].any()


def confident(state):
    """A network that is sure of class 0: of it the gradients are tiny, of any other large."""
    bias = np.zeros_like(state.params["head"]["bias"])
    bias[..., 0] = 30
    return state.replace(params={**state.params, "head": {**state.params["head"], "bias": bias}})


@pytest.mark.parametrize(("parallelism", "batch_norm"), [("pmap", "local"), ("shard_map", "sync")])
def test_all_replicas_skip_the_step_that_overflows_on_one_device(parallelism, batch_norm):
    steps = Steps(8, parallelism=parallelism, batch_norm=batch_norm)
    before = confident(with_scale(steps.state, HIGHEST_SCALE))
    after, metrics = steps.take(before, steps.row([0, 0, 0, 1, 0, 0, 0, 0]))
    assert unequal_copies(after) == [] and len(after.step.addressable_shards) == 8
    for name in ("params", "batch_stats", "opt_state"):
        assert_same_state(getattr(jax.device_get(after), name), getattr(before, name))
    # No sums over the devices.
    assert (metrics["count"], metrics["skipped_steps"]) == (32, 1)
    assert metrics["loss_scale"] == HIGHEST_SCALE / 2
    assert metrics["learning_rate"] == np.float32(steps.program.network.schedule(0)) > 0
    # The seven others do not overflow by themselves.
    after, metrics = steps.take(before, steps.row([0] * 8))
    assert metrics["skipped_steps"] == 0 and unequal_copies(after) == []


def test_independent_models_have_scales_of_their_own():
    steps = Steps(3, replicas="independent")
    before = confident(with_scale(steps.state, HIGHEST_SCALE))
    after, metrics = steps.take(before, steps.row([0, 1, 0]), steps=2)
    after = jax.device_get(after)
    assert after.loss_scale.skipped_steps.tolist() == [0, 2, 0]
    scales = (HIGHEST_SCALE / np.array([1, 4, 1])).tolist()
    assert after.loss_scale.scale.tolist() == scales == metrics["loss_scale"].tolist()
    moments = jax.tree.leaves(optax.tree_utils.tree_get(after.opt_state, "trace"))
    assert [any(moment[model].any() for moment in moments) for model in range(3)] == [
        *[True, False, True]
    ]


@pytest.fixture
def train_fp16(tmp_path, monkeypatch):
    """Trains the small network in fp16; returns the folder and all printed lines."""

    def run(first_scale=FIRST_SCALE, **fields):
        monkeypatch.setattr("jaxbench.training.loss_scale.FIRST_SCALE", first_scale)
        fields = {"precision": "fp16", "log_every_steps": 1} | fields
        lines, folder, console = [], tmp_path / "run", Console()
        console.say = lines.append
        run_training(config_of(MICRO, **SYNTHETIC | fields), str(folder), console, telemetry_s=0)
        return folder, lines

    return run


@pytest.mark.device
def test_a_run_says_which_steps_were_skipped(train_fp16):
    """The first scales are far too large; what is trained then has the schedule's first rates."""
    folder, lines = train_fp16(
        first_scale=2.0**34,
        epochs=12,
        optimizer__warmup_epochs=12,
        optimizer__name="sgd",
    )
    document, steps = run_json(folder), records(folder, "step")
    assert document["status"] == "done"
    skipped = steps[-1]["skipped_steps"]
    assert 8 < skipped < 48 == len(steps)
    config = config_of(MICRO, **SYNTHETIC)
    config.epochs, config.optimizer.warmup_epochs, config.optimizer.name = 12, 12, "sgd"
    schedule, before = create_schedule(config, 4), 0
    for number, record in enumerate(steps):
        assert record["loss_scale"] == 2.0 ** (34 - record["skipped_steps"])
        assert np.isfinite(record["loss"])
        assert record["learning_rate"] == pytest.approx(float(schedule(number - before)), rel=1e-6)
        before = record["skipped_steps"]
    falls = [line for line in lines if "overflows float16" in line]
    assert len(falls) == skipped
    assert falls[0].startswith("step 1 skipped") and "now 8,589,934,592" in falls[0]
    assert any(f"{skipped} steps were skipped" in line for line in lines)
    for record in (records(folder, "epoch")[-1], document["summary"]):
        assert record["skipped_steps"] == skipped and record["loss_scale"] == 2.0 ** (34 - skipped)


def test_records_name_each_independent_model(train_fp16, monkeypatch):
    """The second is made to look as if it skipped down to the lowest scale: it is lost."""
    genuine = LossScales.update

    def update(self, step, metrics):
        scales_R = np.array([metrics["loss_scale"][0], LOWEST_SCALE])
        genuine(self, step, metrics | {"loss_scale": scales_R})

    monkeypatch.setattr(LossScales, "update", update)
    folder, lines = train_fp16(
        first_scale=2.0**30, num_devices=2, replicas="independent", batch_size=32, seed=5
    )
    last = records(folder, "epoch")[-1]
    models = last["loss_scale_models"]
    assert [model["seed"] for model in models] == [5, 6]
    assert last["skipped_steps"] == sum(model["skipped_steps"] for model in models) > 2
    assert last["loss_scale"] == np.mean([model["loss_scale"] for model in models])
    assert any("of seed 6 skipped" in line for line in lines)
    # Its evaluation is that of its last good parameters, and finite.
    assert np.isfinite(last["eval_models"][1]["loss"])
    assert run_json(folder)["summary"]["diverged_seeds"] == [6]


def test_a_network_that_overflows_at_every_scale_has_diverged(train_fp16, tmp_path):
    """The first update breaks it. Its evaluation is no end yet: the training tells, 17 steps on."""
    with pytest.raises(Diverged, match="at every loss scale down to 1 at step 18, epoch 5"):
        train_fp16(num_devices=2, epochs=8, optimizer__name="sgd", optimizer__learning_rate=1e30)
    document = run_json(tmp_path / "run")
    assert document["status"] == "diverged"
    assert document["summary"]["skipped_steps"] == 17
    evaluated = records(tmp_path / "run", "epoch")
    assert [record["eval_loss"] for record in evaluated] == [None] * 4
    # A network that says nothing is right about nothing but by chance.
    assert all(record["eval_top5"] < 0.2 for record in evaluated)
