"""The U-Net's own layers give what flax's convolutions give, with the same variables."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.models.unet import PixelLogit, ResizeConv
from tests.models.same_function import assert_same_function

FP64 = {"param_dtype": jnp.float64}


def repeated(variables, x):
    x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
    return nn.Conv(5, (2, 2), padding="SAME", dtype=jnp.float64, **FP64).apply(variables, x)


def one_by_one(variables, x):
    return nn.Conv(1, (1, 1), dtype=jnp.float64, **FP64).apply(variables, x)[..., 0]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(ResizeConv(5, dtype=jnp.float64, **FP64), repeated), (PixelLogit(**FP64), one_by_one)],
)
def test_a_layer_is_flaxs_convolution(layer, expected):
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        x = jnp.asarray(generator.normal(size=(2, 4, 3, 7)))
        variables = layer.init(jax.random.key(0), x)
        variables = jax.tree.map(lambda v: v + generator.normal(size=v.shape), variables)
        assert_same_function(layer.apply, expected, variables, x)
