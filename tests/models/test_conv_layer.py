"""The networks' convolution gives flax's numbers, whatever form trains it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.models.conv_layer import conv_layer
from tests.models.same_function import assert_same_function


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (2, 3)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_a_layer_is_flaxs_convolution(kernel, strides):
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        x = jnp.asarray(generator.normal(size=(2, 5, 6, 7)))
        own = conv_layer(jnp.float64, jnp.float64)(4, kernel, strides)
        flaxs = nn.Conv(
            4, kernel, strides, use_bias=False, dtype=jnp.float64, param_dtype=jnp.float64
        )
        variables = own.init(jax.random.key(0), x)
        assert_same_function(own.apply, flaxs.apply, variables, x)


@pytest.mark.parametrize(("platform", "convolves"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_a_1x1_kernel_is_trained_as_a_product_on_cpus_alone(platform, convolves):
    layer = conv_layer(jnp.float32, jnp.float32)(4, (1, 1), (2, 2))
    x = jnp.ones((2, 6, 6, 3))
    variables = layer.init(jax.random.key(0), x)

    def step(variables, x):
        y, back = jax.vjp(layer.apply, variables, x)
        return y, back(jnp.ones_like(y))

    text = jax.jit(step).trace(variables, x).lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.convolution" in text) == convolves
    assert ("stablehlo.dot_general" in text) != convolves


def test_an_evaluation_convolves():
    layer = conv_layer(jnp.float32, jnp.float32)(4, (1, 1))
    x = jnp.ones((2, 6, 6, 3))
    jaxpr = str(jax.make_jaxpr(lambda x: layer.init_with_output(jax.random.key(0), x)[0])(x))
    assert "conv_general_dilated" in jaxpr and "dot_general" not in jaxpr
