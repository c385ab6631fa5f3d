"""The step: the same numbers on any number of devices, replicas that stay equal, one compile."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.augment import draw_windows, example_keys
from jaxbench.data.feeds.feed import create_feed
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
    training_in,
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


@pytest.fixture(scope="module")
def one_device_in_fp64(tmp_path_factory):
    train = training_in(tmp_path_factory.mktemp("fp64"))
    return train(model=SmallConfig(), num_devices=1, **IN_FP64)


def test_any_number_of_devices_gives_the_same_whole_run_in_fp64(train, one_device_in_fp64):
    losses = step_losses(one_device_in_fp64)
    assert losses[-1] < 0.7 * losses[0]  # agreement is not that of standing still
    eight = train(model=SmallConfig(), num_devices=8, **IN_FP64)
    assert relative_difference(step_losses(eight), losses) < 1e-8
    for key in ("eval_loss", "eval_top1"):
        assert eight.summary[key] == pytest.approx(one_device_in_fp64.summary[key], rel=1e-8)


@pytest.fixture(scope="module")
def four_devices(tmp_path_factory):
    """Returns a run of two epochs on four devices; each is made once."""
    train = training_in(tmp_path_factory.mktemp("four"))
    fields = {"model": SmallConfig(), "epochs": 2, "num_devices": 4}
    return functools.cache(
        lambda parallelism, batch_norm: train(
            **fields | AUGMENTED | {"parallelism": parallelism, "batch_norm": batch_norm}
        )
    )


@pytest.mark.parametrize("batch_norm", ["local", "sync"])
@pytest.mark.parametrize("parallelism", ["pmap", "shard_map"])
def test_replicas_are_bit_identical_after_training(four_devices, batch_norm, parallelism):
    state = four_devices(parallelism, batch_norm).state
    assert {len(leaf.addressable_shards) for leaf in jax.tree.leaves(state)} == {4}
    assert unequal_copies(state) == []


def test_pmap_and_shard_map_agree(four_devices):
    pmap, shard_map = (step_losses(four_devices(name, "sync")) for name in ("pmap", "shard_map"))
    assert relative_difference(shard_map, pmap) < 1e-6


@pytest.mark.parametrize(
    "fields", [{}, {"parallelism": "shard_map"}, {"replicas": "independent"}], ids=str
)
def test_each_step_is_traced_and_compiled_exactly_once(train, fields):
    with compilations("jaxpr_trace") as traced, compilations() as compiled:
        train(MICRO, epochs=2, profile="3:5", **fields)
    # JAX calls everything under pmap `_fun`: here the training and the evaluation step.
    for names in (traced, compiled):
        assert len([name for name in names if "step" in name or "_fun" in name]) == 2, names
    # Of the network beside the steps: once to make its state, once to count its arithmetic.
    assert [traced.count(name) for name in ("create_train_state", "forward")] == [1, 1], traced


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adamw", "schedule": "step", "decay_at": (0.5,)},
        {"name": "nesterov", "schedule": "linear", "bias_learning_rate": 3.0},
    ],
)
def test_a_records_learning_rate_is_that_of_its_steps_update(train, optimizer):
    """Whatever else counts updates; on any number of devices it is the rate, and no sum of it."""
    fields = {f"optimizer__{name}": value for name, value in optimizer.items()}
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
    feed = create_feed(config, load_dataset(config), mesh, layout, jnp.float32)
    program = build_program(config, mesh, layout, feed.steps_per_epoch)
    state, rows = program.place_train_state(), list(feed.train_batches(0, 3))
    with jax.transfer_guard("disallow"):
        for row in rows:
            old, (state, _) = state, program.train_step(state, feed.train_data, row)
    # The old state's memory was handed over to the new one.
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))


# Two steps in each of two epochs, in fp64.
BY_HAND = {"seed": 7, "batch_size": 32, "precision": "fp64", "data__train_examples": 70}
BY_HAND |= {"epochs": 2, "batch_norm": "sync", "log_every_steps": 1, "data__eval_examples": 20}


class ByHand:
    """The network and the pixels, for recipes that are written out in NumPy once more."""

    def __init__(self):
        config = config_of(MICRO, num_devices=1, **BY_HAND | {"batch_norm": "local"})
        self.inputs_Nx = load_dataset(config).train.inputs_Nx
        self.labels_Nx = digits_labels(70)
        pixels = self.inputs_Nx.astype(np.float64)
        self.mean, self.std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
        program = build_program(config, *create_training_mesh(config), steps_per_epoch=2)
        state = program.initial_state()
        self.params, self.batch_stats = jax.device_get((state.params, state.batch_stats))
        self._model = program.model

    def batches(self):
        """Epoch and examples of every step."""
        for epoch in (0, 1):
            order = np.random.Generator(np.random.Philox(key=[7, epoch])).permutation(70)
            for row in (0, 1):
                yield epoch, order[row * 32 : (row + 1) * 32].astype(np.int32)

    def mean_loss(self, params, batch_stats, images, labels):
        """And the updated statistics."""
        logits, updated = self._model.apply(
            {"params": params, "batch_stats": batch_stats},
            (images - self.mean) / self.std,
            train=True,
            keys_B=jax.random.split(jax.random.key(0), len(labels)),
        )
        log_probabilities = jax.nn.log_softmax(logits)[np.arange(len(labels)), labels]
        return -log_probabilities.mean(), updated


def test_steps_are_the_recipes_written_out_by_hand(train):
    """Four steps over two epochs in fp64 against an update rule in NumPy.

    Reading order, normalisation, Nesterov momentum, weight decay and schedule are all written out
    here once more.
    """
    result = train(
        MICRO,
        num_devices=2,
        optimizer__weight_decay=0.01,
        optimizer__schedule="step",
        optimizer__decay_at=(0.5,),
        optimizer__warmup_epochs=0,
        optimizer__learning_rate=0.4,
        **BY_HAND,
    )
    with jax.enable_x64(True):
        known = ByHand()
        params, batch_stats = known.params, known.batch_stats
        velocity = jax.tree.map(np.zeros_like, params)
        differentiate = jax.jit(jax.value_and_grad(known.mean_loss, has_aux=True))
        losses = []
        for epoch, chosen in known.batches():
            images = known.inputs_Nx[chosen].astype(np.float64)
            (loss, batch_stats), grads = jax.device_get(
                differentiate(params, batch_stats, images, known.labels_Nx[chosen])
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
    for own, expected in zip(
        jax.tree.leaves(result.state.params), jax.tree.leaves(params), strict=True
    ):
        # The rate is fp32 in optax's schedules.
        np.testing.assert_allclose(np.asarray(own), np.asarray(expected), rtol=1e-5, atol=1e-7)


def test_images_are_varied_by_seed_epoch_and_example(train):
    """Losses of four steps over two epochs that move nothing, with windows cut out in NumPy."""
    result = train(
        MICRO,
        num_devices=2,
        data__flip=True,
        data__crop_padding=2,
        data__padding_mode="black",
        optimizer__name="sgd",
        optimizer__weight_decay=0.0,
        optimizer__learning_rate=1e-30,
        **BY_HAND,
    )
    with jax.enable_x64(True):
        known = ByHand()

        @jax.jit
        def draw(epoch, indices):
            return draw_windows(example_keys(jnp.uint32(7), epoch, indices), padding=2)

        loss = jax.jit(known.mean_loss)
        losses = []
        for epoch, chosen in known.batches():
            windows = jax.device_get(draw(np.int32(epoch), chosen))
            varied = []
            for image, top, left, mirrored in zip(known.inputs_Nx[chosen], *windows, strict=True):
                cut = np.pad(image, ((2, 2), (2, 2), (0, 0)))[top : top + 8, left : left + 8]
                varied.append(cut[:, ::-1] if mirrored else cut)
            images = np.asarray(varied, np.float64)
            labels = known.labels_Nx[chosen]
            losses.append(float(loss(known.params, known.batch_stats, images, labels)[0]))
    assert relative_difference(step_losses(result), losses) < 1e-6


def digits_labels(count):
    return digits.load(DataConfig()).train.labels_Nx[:count]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precisions_keep_all_but_the_network_in_fp32(train, precision):
    result = train(model=SmallConfig(), precision=precision, num_devices=2, data__crop_padding=0)
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
    half = program.precision.compute_dtype
    assert half == {"bf16": jnp.bfloat16, "fp16": jnp.float16}[precision]
    image = jax.ShapeDtypeStruct((4, *config.data.image_shape), half)

    def forward(params, batch_stats, images):
        variables = {"params": params, "batch_stats": batch_stats}
        return program.model.apply(variables, images, train=False)

    jaxpr = jax.make_jaxpr(forward)(state.params, state.batch_stats, image)
    assert jaxpr.out_avals[0].dtype == jnp.float32
    types = [op.dtype for op in find_matmuls_and_convs(jaxpr.jaxpr)]
    assert types.pop() == "float32"  # the last one makes the logits
    assert len(types) >= 9 and set(types) == {jnp.dtype(half).name}


def test_seeds_differ_and_repeat(train):
    fields = {"model__dropout": 0.5, "epochs": 1, "log_every_steps": 1}
    first, again, other = (step_losses(train(MICRO, seed=seed, **fields)) for seed in (1, 1, 2))
    assert first == again != other


DROPPED = {
    "model": SmallConfig(norm=False, dropout=0.5),
    "epochs": 2,
    "batch_size": 64,
    "precision": "fp64",
    "log_every_steps": 1,
    "data__crop_padding": 0,
    "data__train_examples": 192,
}


@pytest.fixture(scope="module")
def dropped_on_one_device(tmp_path_factory):
    """The losses of a run with dropout and without batch norm, in fp64, on one device."""
    return step_losses(training_in(tmp_path_factory.mktemp("dropped"))(num_devices=1, **DROPPED))


def test_dropout_follows_the_example_on_any_number_of_devices(train, dropped_on_one_device):
    """Two epochs, 1 and 8 devices: the same numbers only if the same values are dropped."""
    eight = step_losses(train(num_devices=8, **DROPPED))
    assert relative_difference(eight, dropped_on_one_device) < 1e-8
    without = step_losses(train(num_devices=1, **DROPPED | {"model": SmallConfig(norm=False)}))
    assert relative_difference(without, dropped_on_one_device) > 1e-3


@pytest.mark.parametrize(
    ("model", "side"),
    [
        (MnistCnnConfig(channels=(2, 2), hidden=4), 8),
        (VggConfig(stages=(1,), width=2, hidden=4), 4),
    ],
)
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


@pytest.mark.parametrize("num_devices", [1, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(
    train, dropped_on_one_device, num_devices
):
    """A network without batch norm, dropout on: parts add up to the whole."""
    parts = step_losses(train(num_devices=num_devices, gradient_accumulation_steps=4, **DROPPED))
    # Devices add in another order, which two epochs of steps let grow.
    assert relative_difference(parts, dropped_on_one_device) < (1e-10 if num_devices == 1 else 1e-8)


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


def test_label_smoothing_is_the_loss_against_the_smoothed_target():
    logits = jnp.asarray([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]])
    target = 0.9 * np.eye(3)[[0, 1]] + 0.1 / 3
    by_hand = -(target * np.asarray(jax.nn.log_softmax(logits))).sum(-1)
    losses = get_task("classification").losses(logits, jnp.asarray([0, 1]), 0.1)
    assert np.asarray(losses) == pytest.approx(by_hand, rel=1e-6)


def test_top1_and_top5_count_what_is_among_the_best():
    """What is no number is not."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(200, 20)).astype(np.float32)
    logits[0] = np.nan
    labels = generator.integers(0, 20, 200)
    task, valid = get_task("classification"), jnp.arange(200) < 150
    sums = task.metric_sums(jnp.ones(200), jnp.asarray(logits), jnp.asarray(labels), valid)
    hits = np.argsort(-logits, axis=-1) == labels[:, None]
    hits[0] = False
    assert sums["loss"] == sums["count"] == 150
    metrics = task.compute(sums)
    assert metrics["loss"] == 1
    assert metrics["top1"] == pytest.approx(hits[:150, 0].mean(), rel=1e-6)
    assert metrics["top5"] == pytest.approx(hits[:150, :5].any(-1).mean(), rel=1e-6)
