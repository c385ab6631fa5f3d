"""Transformers: the block by hand, causality, positions, remat, attention; ViT and GPT."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from jaxbench.cli import registry
from jaxbench.microbench.attention import Attention
from jaxbench.models.gpt import GptConfig, products_with_tokens
from jaxbench.models.transformer_block import (
    TransformerBlock,
    attend,
    block_options,
    gelu,
    possible_attention,
    rotate,
)
from jaxbench.models.vit import ViTConfig, sincos_positions
from jaxbench.training import program
from jaxbench.xla.jaxpr import find_matmuls_and_convs
from tests.conftest import config_of, equations, program_of, refusal

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


def block_by_hand(x_BxTxD, params, heads, causal):
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
@pytest.mark.device
@pytest.mark.usefixtures("fp32_products")
def test_a_block_by_hand(causal, dtype, bound):
    with jax.enable_x64(True):
        _, params = block_and_params()
        block = TransformerBlock(**FIELDS | {"dtype": dtype}, causal=causal)
        outputs = jax.jit(block.apply)({"params": params}, X_BxTxD.astype(dtype))
    expected = block_by_hand(X_BxTxD, jax.tree.map(np.asarray, params), 2, causal)
    assert outputs.dtype == dtype
    np.testing.assert_allclose(outputs, expected, rtol=bound, atol=bound)


@pytest.mark.device
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


@pytest.mark.device
def test_remat_computes_the_same_gradients_from_the_input_alone():
    gradients = {}
    with jax.enable_x64(True):
        _, params = block_and_params()
        config = registry.load("gpt_bytes")
        for remat in ("none", "blocks"):
            config.remat = remat
            block = block_options(config)["block"](**FIELDS)

            def loss(params, x, block=block):
                return jnp.sum(jnp.sin(block.apply({"params": params}, x)))

            made = equations(jax.make_jaxpr(jax.grad(loss))(params, X_BxTxD).jaxpr)
            again = [equation for equation in made if equation.params.get("differentiated")]
            assert len(again) == (remat == "blocks")
            gradients[remat] = jax.jit(jax.grad(loss))(params, X_BxTxD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), *gradients.values())


@pytest.mark.device
def test_gelu_has_a_gradient_at_every_fp16_value():
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    gradient = np.asarray(jax.jit(jax.vmap(jax.grad(gelu)))(x), np.float32)
    assert np.isfinite(gradient).all()
    in_fp32 = jax.jit(jax.vmap(jax.grad(nn.gelu)))(x.astype(np.float32))
    assert gradient == pytest.approx(np.asarray(in_fp32), abs=1e-3)


SMALL = {"patch": 4, "width": 16, "depth": 2, "heads": 2}


def test_remat_does_not_change_what_is_counted():
    kept, again = (
        program_of(
            "vit_s16_synthetic", model=ViTConfig(**SMALL), precision="bf16", remat=remat
        ).network.analysis
        for remat in ("none", "blocks")
    )
    assert kept.macs_by_dtype == again.macs_by_dtype and kept.macs_once == again.macs_once
    assert kept.num_parameters == again.num_parameters and not again.warnings()


@pytest.mark.device
def test_vits_positions():
    """Sines and cosines of the column, then of the row; neighbours are alike, rows are told."""
    positions = np.asarray(sincos_positions(3, 5, 16, jnp.float32, wavelengths=3)).reshape(3, 5, 16)
    speeds = 10_000.0 ** -(np.arange(4) / 3)
    for row, column in ((0, 0), (2, 0), (1, 4)):
        angles = column * speeds, row * speeds
        expected = [turn(angle) for angle in angles for turn in (np.sin, np.cos)]
        np.testing.assert_allclose(positions[row, column], np.concatenate(expected), atol=1e-6)


@pytest.mark.device
def test_a_new_head_says_nothing():
    params = program_of("vit_cifar10:tiny").initial_state().params
    assert not params["head"]["kernel"].any() and params["block1"]["query"]["kernel"].any()


TYPES = {"dtype": jnp.float32, "param_dtype": jnp.float32, "norm_axis": None, "attention": "xla"}


def test_gpts_arithmetic_is_in_its_precision():
    analysis = program_of("gpt124m_synthetic").network.analysis
    assert analysis.macs_by_dtype == {"bfloat16": analysis.forward_macs}


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.device
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


@pytest.mark.device
@pytest.mark.usefixtures("fp32_products")
def test_the_logits_backward_pass_is_jaxs_own_in_fp32_and_narrow_in_bf16():
    random = np.random.default_rng(0)
    x, embedding = (jnp.asarray(random.normal(size=shape)) for shape in ((2, 3, 4), (5, 4)))
    weights = random.normal(size=(2, 3, 5))

    def total(logits):
        return lambda *args: jnp.sum(logits(*args) * weights)

    plain = jax.grad(total(lambda x, e: jnp.einsum("btd,kd->btk", x, e)), (0, 1))(x, embedding)
    gradients_xe = jax.grad(total(products_with_tokens), (0, 1))(x, embedding)
    for gradient, expected in zip(gradients_xe, plain, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    half = [jax.ShapeDtypeStruct(each.shape, jnp.bfloat16) for each in (x, embedding)]
    traced = jax.jit(jax.grad(total(products_with_tokens), (0, 1))).trace(*half)
    assert jax.eval_shape(products_with_tokens, *half).dtype == jnp.float32
    products = list(find_matmuls_and_convs(traced.jaxpr.jaxpr))
    # One of them is the forward pass's.
    assert [product.dtype for product in products] == 3 * ["bfloat16"]


def test_a_transformer_that_cannot_be_is_refused():
    refusal(GptConfig(width=100, heads=8).validate, told="no multiple of 8 (learned positions")
    refusal(GptConfig(width=24, heads=8, positions="rotary").validate, told="no multiple of 16")
    config = config_of("vit_s16_synthetic", model=ViTConfig(width=390))
    refusal(config.validate, told="model.width=390: no multiple of 4 and of 6 heads")
    config = config_of("resnet50:tiny", remat="blocks")
    refusal(config.validate, told="remat='blocks' with ResNetConfig: only transformers")
    for model, told in (
        ({"patch": 15}, "model.patch=15: must divide 224 and 224"),
        ({"attention": "cudnn"}, "cudnn"),
    ):
        fields = {"model": ViTConfig(**model), "precision": "fp32"}
        refusal(lambda of=fields: program_of("vit_s16_synthetic", **of).check(), told=told)


@pytest.mark.parametrize("experiment", ["gpt_bytes", "vit_s16_synthetic"])
def test_attention_is_cudnns_only_where_it_can_be(experiment):
    config = config_of(experiment)
    model, ampere, turing, no_gpu = config.model, 8.0, 7.5, None
    needed, precisions = "NVIDIA GPUs of compute capability 8.0 (Ampere) or more", "precision=bf16"
    assert possible_attention(config, ampere, jnp.bfloat16) == (("cudnn", "xla"), None)
    for capability, dtype, why in (
        (ampere, jnp.float32, f"cudnn is for {precisions} or fp16"),
        (turing, jnp.float16, f"cudnn is for {needed}"),
        (no_gpu, jnp.bfloat16, f"cudnn is for {needed}"),
    ):
        model.attention = "auto"
        assert possible_attention(config, capability, dtype) == (("xla",), why)
        model.attention = "cudnn"
        told = why.replace("cudnn", "model.attention='cudnn': it")
        refusal(possible_attention, config, capability, dtype, told=told)
    for name in ("xla", "cudnn"):
        model.attention = name
        assert possible_attention(config, ampere, jnp.bfloat16) == ((name,), None)
    model.attention, model.width = "auto", model.heads * 12
    assert possible_attention(config, ampere, jnp.float16)[0] == ("xla",)


@pytest.mark.parametrize(
    ("experiment", "fields", "tokens"),
    [
        ("gpt_bytes", {"data__sequence_length": 63}, 63),
        ("vit_s16_synthetic", {"data__image_shape": (112, 112, 3)}, 49),
    ],
)
def test_cudnns_attention_is_for_an_even_number_of_tokens(experiment, fields, tokens):
    """JAX refuses its gradient for others."""
    config = config_of(experiment, **fields)
    even = f"for an even number of tokens, not {tokens}"
    assert possible_attention(config, 9.0, jnp.bfloat16) == (("xla",), f"cudnn is {even}")
    config.model.attention = "cudnn"
    refusal(possible_attention, config, 9.0, jnp.bfloat16, told=even)


def test_flash_attention_is_for_tpus_and_whole_blocks_of_tokens():
    config, v4 = config_of("gpt_bytes", data__sequence_length=256), "TPU v4"
    model, bf16 = config.model, jnp.bfloat16
    for dtype in (bf16, jnp.float32):
        assert possible_attention(config, None, dtype, v4) == (("xla", "flash"), None)
    for tokens, dtype, capability, tpu, needed in (
        (256, bf16, None, None, "TPUs from v4 on"),
        (256, bf16, 9.0, None, "TPUs from v4 on"),
        (256, bf16, None, "TPU v3", "TPUs from v4 on"),
        (256, jnp.float16, None, v4, "precision=bf16 or fp32"),
        (192, bf16, None, v4, "a multiple of 128 tokens, not 192"),
    ):
        config.data.sequence_length, model.attention = tokens, "flash"
        told = f"model.attention='flash': it is for {needed}"
        refusal(possible_attention, config, capability, dtype, tpu, told=told)
        if tpu:
            model.attention, why = "auto", f"flash is for {needed}"
            assert possible_attention(config, capability, dtype, tpu) == (("xla",), why)
    told = "model.attention='flash': it is for TPUs from v4 on"
    refusal(lambda: program_of("gpt_bytes", model__attention="flash"), told=told)


@pytest.mark.parametrize(("causal", "tokens"), [(True, 384), (False, 128)])
def test_flash_attention_is_equal_to_xlas(causal, tokens):
    """In three blocks of tokens and in one, with N = 2 and G = 1."""
    draw, shapes = np.random.default_rng(0), [(1, tokens, heads, 8) for heads in (2, 1, 1, 2)]
    *arrays, dy = (draw.normal(size=shape).astype(np.float32) for shape in shapes)

    def with_gradients(attention):
        y, backward = jax.vjp(lambda *x: attend(*x, causal, attention), *arrays)
        return y, *backward(dy)

    with pltpu.force_tpu_interpret_mode():
        flash = with_gradients("flash")
    for ours, theirs in zip(flash, with_gradients("xla"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_flash_attention_counts_like_xlas(monkeypatch):
    counts = []
    for name in ("flash", "xla"):
        monkeypatch.setattr(
            program, "preferred_attention", lambda *_, name=name: Attention(name, "")
        )
        analysis = program_of("gpt_bytes:tiny", data__sequence_length=128).network.analysis
        counts.append((analysis.forward_macs, analysis.training_flops))
    assert counts[0] == counts[1]


def test_gpus_that_multiply_no_bf16_are_asked_for_no_product_of_it_by_name():
    config = config_of("gpt_bytes")
    shapes = [jax.ShapeDtypeStruct((2, 16, 3, 8), jnp.bfloat16)] * 3
    for capability, has_name in ((7.5, False), (8.0, True), (None, True)):
        config.model.attention = "xla"
        attention = block_options(config, "xla", capability)["attention"]
        traced = jax.jit(attend, static_argnums=(3, 4)).trace(*shapes, True, attention)
        assert ("BF16_BF16_F32" in str(traced.jaxpr)) == has_name


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
    # The backward pass has twice as much, by either implementation.
    for implementation in ("cudnn", "xla"):
        trained = sum(each.macs for each in products(implementation, differentiated=True))
        assert trained == 3 * product.macs
    # And so in the count of a whole step, on GPUs that have the one or the other.
    flops = set()
    for capability in (7.5, 9.0):
        asked = "jaxbench.training.program.compute_capability"
        monkeypatch.setattr(asked, lambda _, given=capability: given)
        analysis = program_of("gpt124m_synthetic:tiny", precision="bf16").network.analysis
        flops.add(analysis.training_flops)
    assert flops == {6 * analysis.forward_macs}
