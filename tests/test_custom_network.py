"""Custom networks: their forms, and that they train as the shipped ones do."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models import batch_norm, layers
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.modes.describe import list_layers
from jaxbench.modes.train import run_training
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.records.writers.console import Console
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_step
from tests.conftest import refusal, step_args, step_losses

DATA = {"source": "digits", "image_shape": (8, 8, 1)}


def config_for(model, **fields) -> Config:
    fields = {"num_devices": 1, "max_steps": 3, "log_every_steps": 1} | fields
    optimizer = OptimizerConfig(learning_rate=0.05)
    return Config(model=model, data=DataConfig(**DATA), optimizer=optimizer, **fields)


def program_for(model, **fields):
    config = config_for(model, **fields)
    config.validate()
    program = build_program(config, *create_training_mesh(config), 1)
    program.check()
    return program


def train(folder, model, **fields):
    config = config_for(model, **fields)
    return run_training(config, str(folder), Console(), telemetry_s=0)


class Plain(nn.Module):
    """Neither `train` nor keys."""

    num_classes: int
    width: int = 8
    scale: float = 1
    sizes: tuple[int, ...] = (4,)
    anything: Any = None

    @nn.compact
    def __call__(self, images):
        return nn.Dense(self.num_classes)(images.reshape(len(images), -1) * self.scale)


class Normed(nn.Module):
    """Batch norm: flax's or ours, of the same name."""

    num_classes: int
    axis_name: str | None = None
    ours: bool = False

    @nn.compact
    def __call__(self, images, train):
        options = {"use_running_average": not train, "axis_name": self.axis_name}
        norm = batch_norm.BatchNorm if self.ours else nn.BatchNorm
        x = norm(momentum=0.9, name="norm", **options)(nn.Conv(4, (3, 3))(images))
        return nn.Dense(self.num_classes)(nn.relu(x).mean((1, 2)))


class Dropped(nn.Module):
    num_classes: int
    by_example: bool = False

    @nn.compact
    def __call__(self, images, train, keys_B=None):
        x = images.reshape(len(images), -1)
        if self.by_example and train:
            x = layers.dropout(x, 0.5, keys_B, 0)
        elif not self.by_example:
            x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(self.num_classes)(x)


class Nnx(nnx.Module):
    def __init__(self, num_classes: int, width: int = 4, rate: float = 0.0, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, width, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(width, num_classes, rngs=rngs)])

    def __call__(self, images):
        x = nnx.relu(self.norm(self.conv(images)))
        for layer in self.layers:
            x = layer(self.dropout(x.mean((1, 2))))
        return x


class LinenTwin(nn.Module):
    @nn.compact
    def __call__(self, images, train):
        x = nn.Conv(4, (3, 3), name="conv")(images)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return nn.Dense(10, name="layers")(nn.relu(x).mean((1, 2)))


def make_plain(num_classes, width: int = 3):
    return Plain(num_classes, width)


def make_nnx(num_classes, rngs):
    return Nnx(num_classes, rngs=rngs)


def test_parameters_with_defaults_are_fields():
    model = config_for(Plain).model
    model.width, model.scale = 16, 2.0
    assert {**vars(model), "code": None} == {
        **{"width": 16, "scale": 2.0, "sizes": (4,), "code": None}
    }
    module = model.create(num_classes=3, dtype=None, param_dtype=None, norm_axis=None)
    assert (module.num_classes, module.width, module.scale) == (3, 16, 2.0)
    assert config_for(make_plain).model.width == 3


def test_batch_norm_of_flax_trains_as_ours(tmp_path):
    losses = []
    for ours in (False, True):
        config_model = config_for(Normed).model
        config_model.ours = ours
        done = train(tmp_path / str(ours), config_model, num_devices=8, batch_norm="sync")
        losses.append(step_losses(done))
    assert len(losses[0]) == 3 and len(set(losses[0])) == 3
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_dropout_of_a_whole_array_warns_and_that_of_examples_does_not():
    model = config_for(Dropped).model
    [warning] = program_for(model).network.analysis.warnings()
    assert "jaxbench.models.layers.dropout" in warning
    model.by_example = True
    assert not program_for(model).network.analysis.draws_by_device


def test_dropout_draws_anew_in_each_step_and_not_in_evaluations():
    adapter = NetworkAdapter(Dropped(10), jnp.float32)
    images, keys_B = jnp.ones((4, 8, 8, 1)), jax.random.split(jax.random.key(0), 4)
    variables = adapter.init(jax.random.key(0), images)

    def outputs(**options):
        return np.asarray(adapter.apply(variables, images, **options)[0])

    first = outputs(train=True, keys_B=keys_B)
    assert (first == outputs(train=True, keys_B=keys_B)).all()
    assert (first != outputs(train=True, keys_B=keys_B[1:])).any()
    assert (outputs(train=False) == outputs(train=False)).all()


def test_an_nnx_network_does_what_its_linen_twin_does():
    images = jax.random.normal(jax.random.key(1), (4, 8, 8, 1))
    keys_B = jax.random.split(jax.random.key(0), 4)
    made = config_for(Nnx).model.create(
        num_classes=10, dtype=None, param_dtype=None, norm_axis=None
    )
    nnx_net, twin = NetworkAdapter(made, jnp.float32), NetworkAdapter(LinenTwin(), jnp.float32)
    variables = nnx_net.init(jax.random.key(0), images)
    params = dict(variables["params"])
    params["layers"] = params["layers"]["0"]

    def loss(adapter, params, batch_stats):
        values = {"params": params, "batch_stats": batch_stats}
        outputs, updated = adapter.apply(values, images, train=True, keys_B=keys_B)
        return jnp.sum(outputs**2), updated

    stats = variables["batch_stats"]
    results = []
    for adapter, its_params in ((nnx_net, variables["params"]), (twin, params)):
        (value, updated), grads = jax.value_and_grad(
            lambda p, a=adapter: loss(a, p, stats), has_aux=True
        )(its_params)
        values = {"params": its_params, "batch_stats": updated}
        results.append((value, updated, grads["conv"], adapter.apply(values, images, train=False)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *results)


def test_an_nnx_network_trains_the_same_with_a_split_state(tmp_path):
    fields = {"num_devices": 2, "log_every_steps": 1, "max_steps": 2}
    whole, split = (
        step_losses(train(tmp_path / name, Nnx, parallelism=name, **fields))
        for name in ("pmap", "fsdp")
    )
    np.testing.assert_allclose(split, whole, rtol=1e-6)


@pytest.mark.parametrize("model", [Plain, Normed, Dropped, Nnx, make_plain, make_nnx])
def test_all_parameters_and_products_are_in_the_list_of_layers(model):
    network = program_for(model).network
    rows = list_layers(network)
    assert sum(row["parameters"] for row in rows) == network.analysis.num_parameters
    assert sum(row["forward_macs_per_image"] for row in rows) == network.analysis.forward_macs


class Always(nn.Module):
    """Batch norm or dropout that does not know an evaluation."""

    num_classes: int
    norm: bool = True

    @nn.compact
    def __call__(self, images):
        x = images.reshape(len(images), -1)
        if self.norm:
            x = nn.BatchNorm(use_running_average=False)(x)
        return nn.Dense(self.num_classes)(x)


class Cached(nn.Module):
    @nn.compact
    def __call__(self, images):
        self.variable("cache", "x", jnp.zeros, ())
        return nn.Dense(10)(images.reshape(len(images), -1))


class Narrow(nn.Module):
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images):
        return nn.Dense(10, dtype=self.dtype)(images.reshape(len(images), -1))


class NeedsMore(nn.Module):
    @nn.compact
    def __call__(self, images, x):
        return nn.Dense(10)(images.reshape(len(images), -1))


class Wrong(nn.Module):
    @nn.compact
    def __call__(self, images):
        return {}["missing"]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Always, "Always has batch norm, and its __call__ takes no `train`"),
        (Cached, "Cached keeps variables in 'cache': a network may keep params and batch_stats"),
        (Wrong, "KeyError: 'missing'"),
        (NeedsMore, "missing a required argument: 'x'; it is called with the images"),
        (None, "model is a NoneType: must be a ModelConfig"),
        (lambda num_classes: 3, "returned a int, expected a linen module"),
        (lambda: Nnx(10, rngs=nnx.Rngs(0)), "a function that makes an NNX module takes `rngs`"),
        (lambda num_classes, depth: None, "needs 'depth', which has no default"),
        (Plain(10), "model is an object of Plain: give the class, model=Plain, or a function"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused(model, told):
    line = refusal(program_for, model, told=told)
    assert model is not Wrong or "test_custom_network.py:" in line


def test_logits_in_half_precision_are_widened_with_a_warning():
    network = program_for(Narrow, precision="bf16").network
    [warning] = network.analysis.warnings()
    assert "logits are in bfloat16" in warning
    images = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.bfloat16)
    outputs = jax.eval_shape(
        lambda v, x: network.module.apply(v, x, train=False), network.trace.variables, images
    )
    assert outputs[0].dtype == jnp.float32


class Reporting(nn.Module):
    """A callback that uses the device itself."""

    @nn.compact
    def __call__(self, images):
        jax.debug.callback(lambda mean: jnp.sum(mean + np.ones(1)), images.mean())
        return nn.Dense(10)(images.reshape(len(images), -1))


def test_what_a_callback_moves_ends_no_run(tmp_path):
    """JAX runs it in the call of the step on one CPU device."""
    assert train(tmp_path / "run", Reporting).summary["steps"] == 3


class Backbone(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = images.reshape(len(images), -1)
        for _ in range(4):
            x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(10, name="head")(x)


def train_the_head(schedule):
    def label(path, _):
        return "head" if path[0].key == "head" else "frozen"

    rules = {"head": optax.sgd(schedule), "frozen": optax.set_to_zero()}
    return optax.multi_transform(rules, lambda params: jax.tree.map_with_path(label, params))


def train_all(schedule):
    return optax.sgd(schedule)


def test_a_step_computes_no_gradient_of_frozen_parameters():
    """Though it returns the norm of the gradients."""
    flops = []
    for rule in (train_all, train_the_head):
        config = config_for(Backbone)
        config.optimizer = OptimizerConfig(name="custom", update_rule=rule)
        config.validate()
        program = build_program(config, *create_training_mesh(config), 1)
        args = program.abstract_placed_state(), *step_args(program)
        flops.append(compile_step("train_step", program.train_step, *args).xla_flops_per_device)
    assert flops[1] < 0.5 * flops[0]
