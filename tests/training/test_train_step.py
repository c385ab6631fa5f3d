"""The step: the same numbers on any number of devices, replicas that stay equal, one compile."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.augment import draw_windows, example_keys
from jaxbench.data.feeds.feed import ResidentFeed, create_feed
from jaxbench.data.sources import digits
from jaxbench.data.sources.load import load_dataset
from jaxbench.models.layers import dropout
from jaxbench.models.mnist_cnn import MnistCnnConfig
from jaxbench.models.vgg import VggConfig
from jaxbench.parallel.mesh import create_training_mesh, unequal_copies
from jaxbench.tasks import get_task
from jaxbench.train import build_program
from jaxbench.training.optimizers import create_schedule
from jaxbench.xla.jaxpr import find_matmuls_and_convs
from tests.conftest import (
    MICRO,
    compilations,
    config_of,
    prepared,
    records,
    step_losses,
)
from tests.micro import SmallConfig

AUGMENTED = {
    "data__crop_padding": 1,
    "data__flip": True,
    "batch_norm": "sync",
    "log_every_steps": 1,
}


def relative_difference(losses, reference):
    assert len(losses) == len(reference) > 0
    return np.max(np.abs(np.array(losses) / np.array(reference) - 1))


IN_FP64 = {
    **AUGMENTED,
    "epochs": 12,
    "precision": "fp64",
    "batch_size": 64,
    "data__flip": False,
    "data__train_examples": 320,
    "data__eval_examples": 90,
}


def test_any_number_of_devices_gives_the_same_whole_run_in_fp64(train):
    one, eight = (train(model=SmallConfig(), num_devices=count, **IN_FP64) for count in (1, 8))
    losses = step_losses(one)
    assert losses[-1] < 0.7 * losses[0]  # agreement is not that of standing still
    assert relative_difference(step_losses(eight), losses) < 1e-8
    for key in ("eval_loss", "eval_top1"):
        assert eight.summary[key] == pytest.approx(one.summary[key], rel=1e-8)


def test_replicas_stay_bit_identical_and_pmap_and_shard_map_agree(train):
    losses = []
    for fields in (
        {"parallelism": "shard_map", "batch_norm": "local"},
        {"parallelism": "shard_map"},
        {"parallelism": "pmap"},
    ):
        result = train(model=SmallConfig(), epochs=2, num_devices=4, **AUGMENTED | fields)
        assert {len(leaf.addressable_shards) for leaf in jax.tree.leaves(result.state)} == {4}
        assert unequal_copies(result.state) == []
        losses.append(step_losses(result))
    _, shard_map, pmap = losses
    assert relative_difference(shard_map, pmap) < 1e-6


@pytest.mark.parametrize(
    "fields", [{}, {"parallelism": "shard_map"}, {"replicas": "independent"}], ids=str
)
@pytest.mark.device
def test_each_step_is_traced_and_compiled_exactly_once(train, fields):
    with compilations("jaxpr_trace") as traced, compilations() as compiled:
        train(MICRO, epochs=2, profile="3:5", **fields)
    # JAX calls everything under pmap `_fun`: here the training and the evaluation step.
    for names in (traced, compiled):
        assert len([name for name in names if "step" in name or "_fun" in name]) == 2, names
    # Of the network beside the steps: once to make its state, once to count its arithmetic.
    assert [traced.count(name) for name in ("create_train_state", "forward")] == [1, 1], traced


def test_a_records_learning_rate_is_that_of_its_steps_update(train):
    """Whatever else counts updates; on any number of devices it is the rate, and no sum of it."""
    fields = {"optimizer__name": "adamw", "optimizer__bias_learning_rate": 3.0}
    fields |= {"optimizer__schedule": "step", "optimizer__decay_at": (0.5,)}
    result = train(MICRO, num_devices=4, log_every_steps=1, **fields)
    config = config_of(MICRO, **fields)
    schedule = jax.jit(create_schedule(config, steps_per_epoch=11))
    steps = records(result.run_dir.path, "step")
    expected = [float(schedule(jnp.int32(step))) for step in range(22)]
    assert [record["learning_rate"] for record in steps] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) > 1


@pytest.mark.parametrize("parallelism", ["pmap", "shard_map"])
def test_nothing_moves_between_host_and_device_unasked(parallelism):
    fields = {"model": SmallConfig(), "batch_size": 32, "num_devices": 2}
    config = config_of("quickstart:tiny", parallelism=parallelism, **fields)
    mesh, layout = create_training_mesh(config)
    feed = create_feed(config, load_dataset(config), mesh, layout)
    program = build_program(config, mesh, layout, feed.steps_per_epoch)
    state, rows = program.place_train_state(), list(feed.train_batches(0, 3))
    with jax.transfer_guard("disallow"):
        for row in rows:
            old, (state, _) = state, program.train_step(state, feed.train_data, row)
    # The old state's memory was handed over to the new one.
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))


@pytest.mark.parametrize("batches", ["train_batches", "eval_batches"])
def test_the_loop_lets_nothing_move_to_a_device_unasked(train, monkeypatch, batches):
    genuine = getattr(ResidentFeed, batches)

    def on_the_host(*args):
        return (jax.device_get(batch) for batch in genuine(*args))

    monkeypatch.setattr(ResidentFeed, batches, on_the_host)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        train(MICRO, epochs=1)


@pytest.mark.device
@pytest.mark.parametrize("parallelism", ["pmap", "fsdp"])
def test_norms_are_those_of_the_whole_network(train, parallelism):
    """Plain SGD adds the gradient times the rate, so two norms tell of a third."""
    rule = {"optimizer__name": "sgd", "optimizer__momentum": 0.0, "optimizer__weight_decay": 0.0}
    rule |= {"optimizer__schedule": "constant", "precision": "fp32"}
    result = train(MICRO, max_steps=1, num_devices=0, parallelism=parallelism, **rule)
    [epoch] = records(result.run_dir.path, "epoch")
    whole = optax.tree.norm(jax.device_get(result.state.params))
    assert epoch["parameter_norm"] == pytest.approx(float(whole), rel=1e-5)
    expected = epoch["learning_rate"] * epoch["gradient_norm"]
    assert epoch["update_norm"] == pytest.approx(expected, rel=1e-5) and expected > 0


# Two steps in each of two epochs, in fp64.
BY_HAND = {"seed": 7, "batch_size": 32, "precision": "fp64", "data__train_examples": 70}
BY_HAND |= {"epochs": 2, "batch_norm": "sync", "log_every_steps": 1, "data__eval_examples": 20}


@pytest.mark.device
def test_steps_are_the_recipes_written_out_by_hand(train):
    """Four steps over two epochs in fp64 against an update rule in NumPy.

    Reading order, windows, normalisation, Nesterov momentum, weight decay and schedule are all
    written out here once more.
    """
    recipe = {
        **{"data__flip": True, "data__crop_padding": 2, "data__padding_mode": "black"},
        **{"optimizer__weight_decay": 0.01, "optimizer__learning_rate": 0.4},
        **{"optimizer__schedule": "step", "optimizer__decay_at": (0.5,)},
    }
    result = train(MICRO, **BY_HAND | recipe)
    with jax.enable_x64(True):
        config = config_of(MICRO, num_devices=1, **BY_HAND | {"batch_norm": "local"})
        inputs_Nx = load_dataset(config).train.inputs_Nx
        labels_Nx = digits.load(DataConfig()).train.labels_Nx[:70]
        mean, std = inputs_Nx.mean((0, 1, 2)), inputs_Nx.std((0, 1, 2))
        program = build_program(config, *create_training_mesh(config), steps_per_epoch=2)
        state = jax.device_get(program.initial_state())

        @jax.jit
        def draw(epoch, indices):
            return draw_windows(example_keys(jnp.uint32(7), epoch, indices), padding=2)

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def differentiate(params, batch_stats, images, labels):
            variables = {"params": params, "batch_stats": batch_stats}
            keys_B = jax.random.split(jax.random.key(0), len(labels))
            logits, updated = program.network.module.apply(
                variables, (images - mean) / std, train=True, keys_B=keys_B
            )
            return -jax.nn.log_softmax(logits)[np.arange(len(labels)), labels].mean(), updated

        params, batch_stats, losses = state.params, state.batch_stats, []
        velocity = jax.tree.map(np.zeros_like, params)
        for step in range(4):
            epoch, row = divmod(step, 2)
            order = np.random.Generator(np.random.Philox(key=[7, epoch])).permutation(70)
            chosen = order[row * 32 : (row + 1) * 32].astype(np.int32)
            images = np.pad(inputs_Nx[chosen], ((0, 0), (2, 2), (2, 2), (0, 0)))
            windows = zip(*jax.device_get(draw(np.int32(epoch), chosen)), strict=True)
            cut = [
                image[top : top + 8, left : left + 8][:, :: -1 if mirrored else 1]
                for image, (top, left, mirrored) in zip(images, windows, strict=True)
            ]
            (loss, batch_stats), grads = jax.device_get(
                differentiate(params, batch_stats, np.float64(cut), labels_Nx[chosen])
            )
            losses.append(float(loss))
            # 0.4 is for 128; the rate falls to a tenth after the first epoch.
            rate = 0.4 * 32 / 128 * (1 if epoch == 0 else 0.1)
            grads = jax.tree.map(lambda g, p: g + 0.01 * p, grads, params)
            velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
            params = jax.tree.map(
                lambda p, g, v, rate=rate: p - rate * (g + 0.9 * v), params, grads, velocity
            )
    assert relative_difference(step_losses(result), losses) < 1e-6
    # The rate is fp32 in optax's schedules.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7),
        jax.device_get(result.state.params),
        params,
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.device
def test_half_precisions_keep_all_but_the_network_in_fp32(train, precision):
    result = train(MICRO, model=SmallConfig(), precision=precision)
    for leaf in jax.tree.leaves((result.state.params, result.state.batch_stats)):
        assert leaf.dtype == jnp.float32
    for leaf in jax.tree.leaves(result.state.opt_state):
        assert leaf.dtype in (jnp.float32, jnp.int32)
    losses = step_losses(result)
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    # Only what needs it has a loss scale, and records of it.
    told = {name for record in records(result.run_dir.path) for name in record}
    scales = result.state.loss_scale is not None
    assert scales == ("loss_scale" in told) == (precision == "fp16")
    assert not result.summary.get("skipped_steps")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("experiment", ["quickstart:tiny", "cnn10:tiny", "unet256:tiny"])
def test_logits_and_loss_are_fp32_and_convolutions_are_not(experiment, precision):
    config = registry.load(experiment)
    config.precision = precision
    program = build_program(config, *create_training_mesh(config), steps_per_epoch=1)
    state = program.abstract_train_state()
    half = program.network.precision.compute_dtype
    assert half == {"bf16": jnp.bfloat16, "fp16": jnp.float16}[precision]
    image = jax.ShapeDtypeStruct((4, *config.data.image_shape), half)

    def forward(params, batch_stats, images):
        variables = {"params": params, "batch_stats": batch_stats}
        return program.network.module.apply(variables, images, train=False)

    jaxpr = jax.make_jaxpr(forward)(state.params, state.batch_stats, image)
    assert jaxpr.out_avals[0].dtype == jnp.float32
    types = [op.dtype for op in find_matmuls_and_convs(jaxpr.jaxpr)]
    assert types.pop() == "float32"  # the last one makes the logits
    assert len(types) >= 9 and set(types) == {jnp.dtype(half).name}


DROPPED = {
    "model": SmallConfig(norm=False, dropout=0.5),
    "epochs": 2,
    "batch_size": 64,
    "precision": "fp64",
    "log_every_steps": 1,
    "data__crop_padding": 0,
    "data__train_examples": 192,
}


def test_dropout_follows_the_example_on_any_number_of_devices_and_in_any_part(train):
    """Without batch norm: the same numbers only if the same values are dropped."""

    def losses(num_devices, parts):
        fields = {"num_devices": num_devices, "gradient_accumulation_steps": parts}
        return step_losses(train(**DROPPED | fields))

    whole = losses(1, 1)
    # Devices add in another order, which two epochs of steps let grow.
    for num_devices, parts, bound in ((8, 1, 1e-8), (1, 4, 1e-10), (4, 4, 1e-8)):
        assert relative_difference(losses(num_devices, parts), whole) < bound
    without = step_losses(train(num_devices=1, **DROPPED | {"model": SmallConfig(norm=False)}))
    assert relative_difference(without, whole) > 1e-3


@pytest.mark.parametrize(
    ("model", "side"),
    [
        (MnistCnnConfig(channels=(2, 2), hidden=4), 8),
        (VggConfig(stages=(1,), width=2, hidden=4), 4),
    ],
)
@pytest.mark.device
def test_networks_drop_by_the_example(model, side):
    """What an example loses does not depend on its place in the batch."""
    network = model.create(
        num_classes=3, dtype=jnp.float32, param_dtype=jnp.float32, norm_axis=None
    )
    images_B = jax.random.normal(jax.random.key(1), (4, side, side, 1))
    keys_B = jax.random.split(jax.random.key(2), 4)
    variables = jax.jit(functools.partial(network.init, train=False))(jax.random.key(0), images_B)

    @jax.jit
    def outputs(order):
        varied = network.apply(variables, images_B[order], train=True, keys_B=keys_B[order])
        return varied, network.apply(variables, images_B[order], train=False)

    out, whole = outputs(np.arange(4))
    turned, _ = outputs(np.arange(4)[::-1])
    np.testing.assert_allclose(turned[::-1], out, rtol=1e-5, atol=1e-6)
    assert (np.abs(out - whole).max(-1) > 1e-3).all()


@pytest.mark.device
def test_drop_out_keeps_the_mean_and_tells_layers_and_examples_apart():
    keys_B = jax.random.split(jax.random.key(0), 4)
    ones = jnp.ones((4, 10_000))
    out = np.asarray(dropout(ones, 0.25, keys_B, layer=0))
    assert set(np.unique(out)) == {0, np.float32(1 / 0.75)}
    assert (out == 0).mean() == pytest.approx(0.25, abs=0.01)
    assert (out[0] != out[1]).any()
    assert (out != np.asarray(dropout(ones, 0.25, keys_B, layer=1))).any()
    turned = np.asarray(dropout(ones, 0.25, keys_B[::-1], layer=0))
    assert np.array_equal(turned, out[::-1])


def test_parts_hold_the_same_examples_on_any_number_of_devices(train):
    """Batch norm sees one part at a time, so that its examples decide the losses.

    On four devices from the other feed.
    """
    fields = {**DROPPED, "model": SmallConfig(), "batch_norm": "sync"}
    one, two, four = (
        step_losses(
            train(num_devices=devices, gradient_accumulation_steps=2, data__feed=feed, **fields)
        )
        for devices, feed in ((1, "resident"), (2, "resident"), (4, "stream"))
    )
    assert relative_difference(two, one) < 1e-8 and relative_difference(four, one) < 1e-8


def test_accumulation_says_what_batch_norm_sees():
    def seen(**fields):
        with prepared(MICRO, num_devices=2, gradient_accumulation_steps=4, **fields) as job:
            return job.document()["batch_norm_examples"]

    assert seen() == 128 // 2 // 4
    assert seen(batch_norm="sync") == 128 // 4
    assert seen(model=SmallConfig(norm=False)) is None


@pytest.mark.device
def test_label_smoothing_is_the_loss_against_the_smoothed_target():
    logits = jnp.asarray([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]])
    target = 0.9 * np.eye(3)[[0, 1]] + 0.1 / 3
    by_hand = -(target * np.asarray(jax.nn.log_softmax(logits))).sum(-1)
    losses = get_task("classification").losses(logits, jnp.asarray([0, 1]), 0.1)
    assert np.asarray(losses) == pytest.approx(by_hand, rel=1e-6)
