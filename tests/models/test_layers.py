"""The shared layers compute what flax's do to rounding, forwards and backwards."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.models.batch_norm import BatchNorm
from jaxbench.models.layers import Network, max_pool
from jaxbench.parallel.mesh import AXIS, DataMesh


def norms(axis_name=None, dtype=jnp.float64, param_dtype=jnp.float64, train=True):
    """Ours with its ReLU, and flax's with one behind it."""
    fields = {
        "use_running_average": not train,
        "momentum": 0.9,
        "epsilon": 1e-5,
        "dtype": dtype,
        "param_dtype": param_dtype,
        "axis_name": axis_name,
    }

    def flax_norm(variables, x):
        y, updated = nn.BatchNorm(**fields).apply(variables, x, mutable=["batch_stats"])
        return nn.relu(y), updated

    def ours(variables, x):
        return BatchNorm(relu=True, **fields).apply(variables, x, mutable=["batch_stats"])

    return ours, flax_norm


def variables_of(x, dtype):
    """Flax's own variables, moved from their beginnings."""
    norm = nn.BatchNorm(use_running_average=True, dtype=dtype, param_dtype=dtype)
    values = norm.init(jax.random.key(0), x)
    generator = np.random.default_rng(1)
    return jax.tree.map(lambda v: v + generator.uniform(0.1, 0.5, v.shape).astype(dtype), values)


def outcome(apply, variables, x, weights):
    """Output, updated averages, gradients of the parameters and of the input."""

    def loss(params, x):
        y, updated = apply({**variables, "params": params}, x)
        return (y.astype(weights.dtype) * weights).sum(), (y, updated)

    grads, aux = jax.grad(loss, argnums=(0, 1), has_aux=True)(variables["params"], x)
    return grads, aux


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.device
def test_batch_norm_is_flaxs_in_fp64(train):
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        x = jnp.asarray(generator.normal(3, 2, (6, 4, 5, 3)))
        weights = jnp.asarray(generator.normal(size=x.shape))
        variables = variables_of(x, jnp.float64)
        ours, expected = (
            jax.device_get(jax.jit(outcome, static_argnums=0)(apply, variables, x, weights))
            for apply in norms(train=train)
        )
        assert jax.tree.structure(ours) == jax.tree.structure(expected)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_statistics_of_all_devices_are_those_of_the_whole_batch():
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        x = generator.normal(3, 2, (6, 4, 4, 3))
        weights = generator.normal(size=x.shape)
        variables = variables_of(jnp.asarray(x), jnp.float64)

        def on_each(variables, x, weights):
            grads, (y, updated) = outcome(norms(axis_name=AXIS)[0], variables, x, weights)
            return jax.lax.psum(grads[0], AXIS), grads[1], y, updated

        mesh = DataMesh(tuple(jax.local_devices()[:2]), "shard_map")
        step = mesh.map_devices(on_each, sharded=(False, True, True), sharded_output=True)
        halves = (array.reshape(2, 3, 4, 4, 3) for array in (x, weights))
        params, dx, y, updated = jax.device_get(step(variables, *halves))
        expected = jax.device_get(outcome(norms()[1], variables, x, weights))
        (expected_params, expected_dx), (expected_y, expected_updated) = expected
        close = {"rtol": 1e-10, "atol": 1e-12}
        np.testing.assert_allclose(dx.reshape(x.shape), expected_dx, **close)
        np.testing.assert_allclose(y.reshape(x.shape), expected_y, **close)
        for rows, whole in ((params, expected_params), (updated, expected_updated)):
            for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(whole), strict=True):
                np.testing.assert_allclose(a, np.stack([b, b]), **close)


@pytest.mark.device
def test_bf16_keeps_statistics_and_gradients_of_parameters_in_fp32():
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(2, 1, (8, 4, 4, 3)), jnp.bfloat16)
    weights = jnp.asarray(generator.normal(size=x.shape), jnp.float32)
    variables = variables_of(x, jnp.float32)
    ours, expected = (
        jax.jit(outcome, static_argnums=0)(apply, variables, x, weights)
        for apply in norms(dtype=jnp.bfloat16, param_dtype=jnp.float32)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0.02, atol=0.02
        )


@pytest.mark.parametrize(
    ("window", "stride", "padding", "size"),
    [(3, 2, 1, (8, 9)), (3, 2, 1, (5, 4)), (2, 2, 0, (7, 6)), (3, 1, 1, (4, 4)), (2, 3, 0, (8, 8))],
)
@pytest.mark.device
def test_max_pooling_and_its_gradient_are_flaxs(window, stride, padding, size):
    """On whole numbers, many of them equal: where several are largest the first has it all."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.integers(-3, 4, (2, *size, 3)), jnp.float32)

    def flaxs(x):
        sides = ((padding, padding), (padding, padding))
        return nn.max_pool(x, (window, window), (stride, stride), sides)

    y, expected_back = jax.vjp(flaxs, x)
    ours, back = jax.vjp(lambda x: max_pool(x, window, stride, padding), x)
    assert np.array_equal(ours, y)
    dy = jnp.asarray(generator.integers(-9, 10, y.shape), jnp.float32)
    assert np.array_equal(back(dy)[0], expected_back(dy)[0])


@pytest.mark.parametrize(("platform", "scatters"), [("tpu", True), ("cuda", False), ("cpu", False)])
def test_only_tpus_scatter_the_gradient_of_max_pooling(platform, scatters):
    gradient = jax.jit(jax.grad(lambda x: max_pool(x, 2, 2).sum()))
    lowered = gradient.trace(jnp.ones((2, 4, 4, 3))).lower(lowering_platforms=(platform,))
    assert ("select_and_scatter" in lowered.as_text()) == scatters


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (2, 3)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.device
def test_a_convolution_is_flaxs_in_fp64(kernel, strides):
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        x = jnp.asarray(generator.normal(size=(2, 5, 6, 7)))
        types = {"dtype": jnp.float64, "param_dtype": jnp.float64}
        layers = (
            Network(**types, norm_axis=None).layers(train=True)[0](4, kernel, strides),
            nn.Conv(4, kernel, strides, use_bias=False, **types),
        )
        variables = layers[0].init(jax.random.key(0), x)
        results = [jax.vjp(layer.apply, variables, x) for layer in layers]
        dy = jnp.asarray(generator.normal(size=results[0][0].shape))
        ours, flaxs = (jax.tree.leaves((y, back(dy))) for y, back in results)
        for a, b in zip(ours, flaxs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("platform", "convolves"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_only_cpus_train_a_1x1_kernel_as_a_product(platform, convolves):
    conv, _ = Network(dtype=jnp.float32, param_dtype=jnp.float32, norm_axis=None).layers(train=True)
    layer = conv(4, (1, 1), (2, 2))
    x = jnp.ones((2, 6, 6, 3))
    variables = layer.init(jax.random.key(0), x)

    def step(variables, x):
        y, back = jax.vjp(layer.apply, variables, x)
        return y, back(jnp.ones_like(y))

    text = jax.jit(step).trace(variables, x).lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.convolution" in text) == convolves
    assert ("stablehlo.dot_general" in text) != convolves
