"""The block of the transformers: its arithmetic by hand, causality, rotary positions, remat."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.models.transformer_block import TransformerBlock, block_options, gelu, rotate
from tests.conftest import equations

X_BxTxD = np.random.default_rng(0).normal(size=(2, 5, 8))


FIELDS = {"heads": 2, "mlp_width": 12, "dtype": jnp.float64, "param_dtype": jnp.float64}


def block_and_params(**fields):
    """A block in fp64 whose biases and scales are drawn too."""
    block = TransformerBlock(**FIELDS, **fields)
    params = jax.jit(block.init)(jax.random.key(0), X_BxTxD)["params"]
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(1)
    return block, tree.unflatten([leaf + random.normal(0, 0.3, leaf.shape) for leaf in leaves])


def norm(x, params):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * params["scale"] + params["bias"]


def dense(x, params):
    return x @ params["kernel"] + params["bias"]


def by_hand(x_BxTxD, params, heads, causal):
    """The block written out once more, one head and one example after the other."""
    y, out = norm(x_BxTxD, params["norm1"]), np.zeros_like(x_BxTxD)
    query, key, value = (dense(y, params[name]) for name in ("query", "key", "value"))
    width = x_BxTxD.shape[-1] // heads
    for example in range(len(x_BxTxD)):
        for head in range(heads):
            rows = (example, slice(None), slice(head * width, (head + 1) * width))
            scores = query[rows] @ key[rows].T / np.sqrt(width)
            if causal:
                scores[np.triu_indices(len(scores), 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[rows] = weights / weights.sum(1, keepdims=True) @ value[rows]
    x = x_BxTxD + dense(out, params["out"])
    hidden = dense(norm(x, params["norm2"]), params["mlp1"])
    gelu = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
    return x + dense(gelu, params["mlp2"])


@pytest.mark.parametrize(
    ("dtype", "bound"), [(jnp.float16, 2e-2), (jnp.float32, 1e-5), (jnp.float64, 1e-12)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_block_by_hand(causal, dtype, bound):
    with jax.enable_x64(True):
        _, params = block_and_params()
        block = TransformerBlock(**FIELDS | {"dtype": dtype}, causal=causal)
        outputs = jax.jit(block.apply)({"params": params}, X_BxTxD.astype(dtype))
    expected = by_hand(X_BxTxD, jax.tree.map(np.asarray, params), 2, causal)
    assert outputs.dtype == dtype
    np.testing.assert_allclose(outputs, expected, rtol=bound, atol=bound)


def test_rotary_products_depend_on_the_distance_alone():
    random = np.random.default_rng(0)
    query_F, key_F = random.normal(size=(2, 6))
    with jax.enable_x64(True):
        query, key = (rotate(jnp.tile(x, (1, 9, 1, 1)))[0, :, 0] for x in (query_F, key_F))
    products_TxT = np.asarray(query) @ np.asarray(key).T
    for distance in range(-8, 9):
        diagonal = np.diagonal(products_TxT, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-12)
    assert len({round(products_TxT[0, place], 6) for place in range(9)}) == 9
    np.testing.assert_array_equal(query[0], query_F)


def test_a_causal_rotary_block_sees_order_and_no_later_token():
    with jax.enable_x64(True):
        block, params = block_and_params(causal=True, rotary=True)
        forward = jax.jit(lambda x: block.apply({"params": params}, x))
        changed = X_BxTxD.copy()
        changed[:, 3, 0] += 1
        difference_T = np.abs(forward(changed) - forward(X_BxTxD)).max((0, 2))
        assert (difference_T[:3] == 0).all() and (difference_T[3:] > 1e-3).all()
        swapped = X_BxTxD[:, [1, 0, 2, 3, 4]]
        assert np.abs(forward(swapped) - forward(X_BxTxD))[:, 4].max() > 1e-4


def test_remat_computes_the_same_gradients_from_the_input_alone():
    gradients = {}
    with jax.enable_x64(True):
        _, params = block_and_params()
        config = registry.load("gpt_bytes")
        for remat in ("none", "blocks"):
            config.remat = remat
            block = block_options(config, None, jnp.float64)["block"](**FIELDS)

            def loss(params, x, block=block):
                return jnp.sum(jnp.sin(block.apply({"params": params}, x)))

            made = equations(jax.make_jaxpr(jax.grad(loss))(params, X_BxTxD).jaxpr)
            again = [equation for equation in made if equation.params.get("differentiated")]
            assert len(again) == (remat == "blocks")
            gradients[remat] = jax.jit(jax.grad(loss))(params, X_BxTxD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), *gradients.values())


def test_half_precision_is_that_of_the_output_and_not_of_the_gradients():
    block = TransformerBlock(heads=2, mlp_width=12, dtype=jnp.bfloat16, param_dtype=jnp.float32)
    x = jax.ShapeDtypeStruct(X_BxTxD.shape, jnp.bfloat16)
    variables = jax.eval_shape(block.init, jax.random.key(0), x)
    assert jax.eval_shape(block.apply, variables, x).dtype == jnp.bfloat16

    def loss(variables, x):
        return block.apply(variables, x).astype(jnp.float32).sum()

    grads = jax.eval_shape(jax.grad(loss), variables, x)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(grads)} == {"float32"}


def test_gelu_has_a_gradient_at_every_fp16_value():
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    gradient = np.asarray(jax.jit(jax.vmap(jax.grad(gelu)))(x), np.float32)
    assert np.isfinite(gradient).all()
    in_fp32 = jax.jit(jax.vmap(jax.grad(nn.gelu)))(x.astype(np.float32))
    assert gradient == pytest.approx(np.asarray(in_fp32), abs=1e-3)
