"""The language model: its size and arithmetic, causality, and its logits' backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.errors import BadInput
from jaxbench.models.gpt import GptConfig, tied_logits
from jaxbench.models.transformer_block import choose_attention
from jaxbench.models.vit import ViTConfig
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.train import build_program
from jaxbench.xla.jaxpr import find_matmuls_and_convs

TYPES = {"dtype": jnp.float32, "param_dtype": jnp.float32, "norm_axis": None, "attention": "xla"}


def test_gpt2_small_has_124439808_parameters_and_with_bytes_86039040():
    for vocabulary, expected in ((50257, 124_439_808), (256, 86_039_040)):
        network = GptConfig(width=768, depth=12, heads=12).create(num_classes=vocabulary, **TYPES)
        tokens_1xT = jax.ShapeDtypeStruct((1, 1024), jnp.int32)
        shapes = jax.eval_shape(network.init, jax.random.key(0), tokens_1xT)
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected


def test_its_arithmetic_is_the_formula_of_the_docstring():
    config = registry.load("gpt124m_synthetic")
    config.num_devices = 1
    program = build_program(config, *create_training_mesh(config), steps_per_epoch=1)
    tokens, width, depth, vocabulary = 1024, 768, 12, 50257
    products = 12 * depth * width**2 + vocabulary * width
    by_hand = tokens * products + 2 * depth * tokens**2 * width
    assert program.num_parameters() == 124_439_808
    assert program.forward_macs == by_hand
    # As PaLM counts a token: 6 for each parameter of a product, 12 for attention.
    a_token = 6 * products + 12 * depth * width * tokens
    assert program.training_flops == tokens * a_token
    assert program.analysis.macs_by_dtype == {"bfloat16": by_hand}


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_token_changes_its_own_and_later_logits_by_its_place(positions):
    model = GptConfig(width=16, depth=1, heads=2, positions=positions)
    network = model.create(num_classes=11, **TYPES)
    random = np.random.default_rng(0)
    tokens_BxT = random.integers(0, 11, (2, 12))
    shapes = jax.eval_shape(network.init, jax.random.key(0), tokens_BxT)
    variables = jax.tree.map(lambda leaf: random.normal(0, 0.5, leaf.shape).astype("f"), shapes)
    apply = jax.jit(network.apply)
    logits = apply(variables, tokens_BxT)
    for place in (0, 5, 11):
        changed_BxT = tokens_BxT.copy()
        changed_BxT[:, place] = (tokens_BxT[:, place] + 1) % 11
        same_T = np.asarray(apply(variables, changed_BxT) == logits).all(axis=(0, 2))
        assert same_T[:place].all() and not same_T[place:].any()
    # Without positions one block could not tell in which order earlier tokens come.
    swapped_BxT = tokens_BxT.copy()
    swapped_BxT[:, [0, 1]] = [[3, 5], [3, 5]]
    logits = apply(variables, swapped_BxT)
    swapped_BxT[:, [0, 1]] = [[5, 3], [5, 3]]
    difference_T = np.abs(np.asarray(apply(variables, swapped_BxT) - logits)).max(axis=(0, 2))
    assert (difference_T[2:] > 1e-2).all()


def test_the_logits_backward_pass_is_jaxs_own_in_fp32_and_narrow_in_bf16():
    random = np.random.default_rng(0)
    x, embedding = (jnp.asarray(random.normal(size=shape)) for shape in ((2, 3, 4), (5, 4)))
    weights = random.normal(size=(2, 3, 5))

    def total(logits):
        return lambda *args: jnp.sum(logits(*args) * weights)

    plain = jax.grad(total(lambda x, e: jnp.einsum("btd,kd->btk", x, e)), (0, 1))(x, embedding)
    gradients_xe = jax.grad(total(tied_logits), (0, 1))(x, embedding)
    for gradient, expected in zip(gradients_xe, plain, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    half = [jax.ShapeDtypeStruct(each.shape, jnp.bfloat16) for each in (x, embedding)]
    traced = jax.jit(jax.grad(total(tied_logits), (0, 1))).trace(*half)
    assert jax.eval_shape(tied_logits, *half).dtype == jnp.float32
    products = list(find_matmuls_and_convs(traced.jaxpr.jaxpr))
    # One of them is the forward pass's.
    assert [product.dtype for product in products] == 3 * ["bfloat16"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 100, "heads": 8}, r"no multiple of 8 \(learned positions"),
        ({"width": 24, "heads": 8, "positions": "rotary"}, "no multiple of 16"),
    ],
)
def test_a_width_that_heads_do_not_divide_is_refused(fields, message):
    with pytest.raises(BadInput, match=message):
        GptConfig(**fields).validate()


@pytest.mark.parametrize("model", [GptConfig(), ViTConfig()])
def test_attention_is_cudnns_only_where_it_can_be(model):
    ampere, turing, no_gpu = 8.0, 7.5, None
    assert choose_attention(model, ampere, jnp.bfloat16) == "cudnn"
    assert choose_attention(model, ampere, jnp.float32) == "xla"
    assert choose_attention(model, turing, jnp.float16) == "xla"
    assert choose_attention(model, no_gpu, jnp.bfloat16) == "xla"
    model.attention = "cudnn"
    for capability, dtype, message in (
        (no_gpu, jnp.bfloat16, "NVIDIA GPUs of compute capability 8.0"),
        (turing, jnp.float16, "NVIDIA GPUs of compute capability 8.0"),
        (ampere, jnp.float32, "for precision=bf16 or fp16"),
    ):
        with pytest.raises(BadInput, match=message):
            choose_attention(model, capability, dtype)
    model.attention = "xla"
    assert choose_attention(model, ampere, jnp.bfloat16) == "xla"
    model.attention, model.width = "auto", model.heads * 12
    assert choose_attention(model, ampere, jnp.float16) == "xla"


def test_products_inside_cudnns_attention_count_like_those_outside(monkeypatch):
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 0)
    shapes = [jax.ShapeDtypeStruct((2, 16, 3, 8), jnp.bfloat16)] * 3

    def products(implementation, differentiated=False):
        def attend(*args):
            return jax.nn.dot_product_attention(
                *args, is_causal=True, implementation=implementation
            )

        def gradients(*args):
            return jax.grad(lambda *args: jnp.sum(attend(*args)), (0, 1, 2))(*args)

        function = gradients if differentiated else attend
        return list(find_matmuls_and_convs(jax.jit(function).trace(*shapes).jaxpr.jaxpr))

    assert sum(product.macs for product in products("xla")) == 2 * 2 * 3 * 16 * 16 * 8
    [product] = products("cudnn")
    assert (product.macs, product.dtype) == (2 * 2 * 3 * 16 * 16 * 8, "bfloat16")
    # Each of 16 tokens sees itself and those before it; XLA multiplies what the mask hides, too.
    assert product.macs - product.masked_macs == 2 * 2 * 3 * (16 * 17 // 2) * 8
    assert not any(product.masked_macs for product in products("xla"))
    # The backward pass has twice as much, by either implementation.
    for implementation in ("cudnn", "xla"):
        trained = sum(each.macs for each in products(implementation, differentiated=True))
        assert trained == 3 * product.macs
