"""Parameters are grouped by shape and place: what they are called does not matter."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import pytest

from jaxbench.cli import registry
from jaxbench.config import Config, DataConfig
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.train import build_program
from tests.conftest import refusal


def groups_of(config, **optimizer):
    """{group: {paths}} of an experiment's update rule, which can be built and applied."""
    config.num_devices = 1
    config.optimizer = dataclasses.replace(config.optimizer, **optimizer)
    config.validate()
    program = build_program(config, *create_training_mesh(config), steps_per_epoch=4)
    program.check()
    groups = {}
    for row in program.network.analysis.parameter_groups():
        groups.setdefault(row["group"], set()).update(row["names"])
    return groups


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(8, name="inner")(nn.LayerNorm(name="norm")(x)), None


class Unusual(nn.Module):
    """Attention with biases of two axes, layers in a scan, a head that is no layer of flax's."""

    num_classes: int

    @nn.compact
    def __call__(self, images):
        x = images.reshape(len(images), 8, 8)
        x += self.param("places", nn.initializers.normal(), (1, 8, 8))
        x = nn.MultiHeadDotProductAttention(2, name="attention")(x, x)
        stack = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        x = stack(name="layers")(x, None)[0].mean(axis=1)
        last = self.param("last", nn.initializers.normal(), (8, self.num_classes))
        return nn.log_softmax(x @ (last / jnp.linalg.norm(last)) + self.param("b", nn.zeros, (10,)))


class TwoHeads(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, images):
        x = images.reshape(len(images), -1)
        return nn.Dense(self.num_classes, name="a")(x) + nn.Dense(self.num_classes, name="b")(x)


def config_of(network):
    return Config(model=network, data=DataConfig(source="digits", image_shape=(8, 8, 1)))


def test_names_do_not_matter():
    groups = groups_of(config_of(Unusual), name="muon")
    assert groups["head"] == {"last"} and groups["embedding"] == {"places"}
    attention = {f"attention/{name}/kernel" for name in ("query", "key", "value", "out")}
    assert groups["kernel"] == {*attention, "layers/inner/kernel"}
    assert {"b", "attention/query/bias", "layers/norm/scale", "layers/inner/bias"} < groups["bias"]
    # All that has two axes decays, as in GPT-2's training.
    decaying = groups_of(config_of(Unusual), weight_decay=0.1, weight_decay_on="kernels")
    assert decaying["kernel"] == groups["head"] | groups["embedding"] | groups["kernel"]


def test_a_tied_embedding_is_the_head():
    config = registry.load("gpt_bytes:tiny")
    config.model.positions = "learned"
    groups = groups_of(config, name="muon", b2=0.999)
    assert groups["head"] == {"tokens/embedding"}
    assert groups["embedding"] == {"positions/embedding"}


class Prototypes(nn.Module):
    """Outputs are distances to rows that no product uses."""

    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC):
        x_BxF = nn.Dense(8, name="hidden")(images_BxHxWxC.reshape(len(images_BxHxWxC), -1))
        prototypes_KxF = self.param("prototypes", nn.initializers.normal(), (10, 8))
        return -jnp.square(x_BxF[:, None] - prototypes_KxF[None]).sum(-1)


@pytest.mark.parametrize(
    ("network", "optimizer", "told"),
    [
        (TwoHeads, {"name": "muon"}, "outputs of TwoHeads come from a/kernel and b/kernel"),
        (TwoHeads, {"head_learning_rate": 0.5}, "come from a/kernel and b/kernel"),
        (Prototypes, {"name": "muon"}, "come from hidden/kernel and prototypes"),
    ],
)
def test_a_head_that_is_needed_and_not_the_only_one_is_refused(network, optimizer, told):
    refusal(groups_of, config_of(network), **optimizer, told=told)


def test_without_need_of_a_head_there_may_be_two():
    assert groups_of(config_of(TwoHeads)) == {
        "kernel": {"a/kernel", "b/kernel"},
        "bias": {"a/bias", "b/bias"},
    }
