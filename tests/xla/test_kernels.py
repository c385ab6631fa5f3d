"""What runs an operation, by XLA's text: shortened texts of compiled steps, and this machine's."""

import jax
import jax.numpy as jnp
import pytest

from jaxbench.xla.kernels import read_kernels, wider_in_words

CUBLAS = """
ENTRY %main (a: f8e4m3fn[64,32], b: f8e4m3fn[32,16]) -> bf16[64,16] {
  %a = f8e4m3fn[64,32]{1,0} parameter(0)
  %b = f8e4m3fn[32,16]{1,0} parameter(1)
  %call = (bf16[64,16]{1,0}, s8[4194304]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$lt$matmul$f8", backend_config={"gemm_backend_config":{\
"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %result = bf16[64,16]{1,0} get-tuple-element(%call), index=0
}
"""
# {KIND} is the fusion's; the zeros were written into its left side.
FUSION = """
%fused (p0: bf16[64,256], p1: bf16[256,16]) -> bf16[64,16] {
  %p0 = bf16[64,256]{1,0} parameter(0)
  %p1 = bf16[256,16]{1,0} parameter(1)
  ROOT %dot = bf16[64,16]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: bf16[64,256], b: bf16[256,16]) -> bf16[64,16] {
  %a = bf16[64,256]{1,0} parameter(0)
  %b = bf16[256,16]{1,0} parameter(1)
  ROOT %fusion = bf16[64,16]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused, backend_config={KIND}
}
"""
TRITON = '{"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}'


def test_a_call_of_a_library_by_its_name():
    found = read_kernels(CUBLAS, "gpu", 64 * 32 * 16)
    assert found.found == "library" and found.calls == {"__cublas$lt$matmul$f8": 1}
    assert (found.kernels, found.operands, found.factor) == (1, "f8e4m3fn x f8e4m3fn", 1.0)


@pytest.mark.parametrize(
    ("platform", "kind", "needed", "found", "name"),
    [
        ("gpu", TRITON, 64 * 256 * 16, "fused product", "Triton product"),
        ("gpu", "{}", 64 * 256 * 16, "naive loop", "loop product"),
        ("tpu", "{}", 64 * 256 * 16, "fused product", "product"),
        ("gpu", TRITON, 64 * 32 * 16, "dense detour", "Triton product"),  # 8 groups' zeros
        ("gpu", TRITON, 0, "dense detour", "Triton product"),  # a table's lookup as a product
        ("gpu", '{"kind":"__cudnn$fusion"}', 64 * 256 * 16, "library", "cuDNN fusion"),
    ],
)
def test_a_fusion_with_a_product(platform, kind, needed, found, name):
    kernels = read_kernels(FUSION.replace("KIND", kind), platform, needed)
    assert (kernels.found, kernels.calls) == (found, {name: 1})
    assert kernels.factor == (64 * 256 * 16 / needed if needed else None)


def test_a_product_in_a_loop_counts_as_often_as_it_runs():
    loop = FUSION.replace("ENTRY %main", "%body").replace("KIND", TRITON)
    text = """
%condition (s: bf16[64,16]) -> pred[] {
  ROOT %true = pred[] constant(true)
}

ENTRY %main (s: bf16[64,16]) -> bf16[64,16] {
  %s = bf16[64,16]{1,0} parameter(0)
  ROOT %loop = bf16[64,16]{1,0} while(%s), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"8"}}
}
"""
    kernels = read_kernels(loop + text, "gpu", 64 * 256 * 16)
    assert (kernels.found, kernels.factor) == ("dense detour", 8.0)
    assert kernels.calls == {"Triton product": 8}


CONVOLUTION = """
ENTRY %main (x: bf16[X], k: bf16[K]) -> bf16[Y] {
  %x = bf16[X]{3,2,1,0} parameter(0)
  %k = bf16[K]{3,2,1,0} parameter(1)
  ROOT %y = bf16[Y]{3,2,1,0} CALL(%x, %k), window={WINDOW}, dim_labels=LABELS, REST
}
"""


@pytest.mark.parametrize(
    ("x", "k", "y", "window", "labels", "call", "macs"),
    [
        # 3x3 and "SAME": pixels beyond the edge count as zeros do, not at all. 4 * 3 - 2 = 10.
        ("2,4,4,8", "3,3,8,6", "2,4,4,6", "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", "", 9600),
        # What a transposed convolution puts between the pixels does not count either.
        (
            *("2,4,4,8", "2,2,8,6", "2,8,8,6"),
            *("size=2x2 pad=1_1x1_1 lhs_dilate=2x2", "b01f_01io->b01f", "", 2 * 48 * 64),
        ),
        # The kernel's gradient: (image, gradient of the output) -> kernel, labelled as forward.
        (
            *("2,4,4,8", "2,4,4,6", "6,3,3,8", "size=3x3 pad=1_1x1_1"),
            *("b01f_o01i->b01f", "__cudnn$convBackwardFilter", 9600),
        ),
        # A batched product, as TPUs write it: the batch is an axis of which only pairs meet.
        (
            *("5,7,1,3", "5,2,1,3", "5,1,7,2", "size=5x1 stride=4x1 lhs_dilate=5x1"),
            *("0b1f_0o1i->01bf", "", 5 * 7 * 3 * 2),
        ),
    ],
)
def test_the_multiply_accumulates_of_a_convolution(x, k, y, window, labels, call, macs):
    text = CONVOLUTION.replace("[X]", f"[{x}]").replace("[K]", f"[{k}]").replace("[Y]", f"[{y}]")
    text = text.replace("WINDOW", window).replace("LABELS", labels)
    text = text.replace("CALL", "custom-call" if call else "convolution")
    text = text.replace("REST", f'custom_call_target="{call}"' if call else "metadata={}")
    assert read_kernels(text, "gpu" if call else "tpu", macs).factor == 1.0


def test_loops_without_products_and_what_they_are_named_by():
    sort = jax.jit(jnp.sort).lower(jnp.zeros(64)).compile().as_text()
    kernels = read_kernels(sort, "cpu", 0)
    assert (kernels.found, kernels.calls, kernels.factor) == ("fused loop", {"sort": 1}, None)


@pytest.mark.parametrize(
    ("operands", "asked", "words"),
    [
        ("bf16 x bf16", "bf16", ""),
        ("f32 x bf16", "bf16", " in f32"),
        ("bf16 x bf16, f32 x f32", "bf16", " partly in f32"),
        ("f8e4m3fn x f8e5m2", "f8e4m3fn", ""),
        ("f16 x f16", "f8e4m3fn", " in f16"),
        ("", "bf16", ""),
    ],
)
def test_wider_types_than_were_asked(operands, asked, words):
    assert wider_in_words(operands, asked) == words


def test_a_product_of_this_machine():
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    text = jax.jit(jnp.dot).lower(shape, shape).compile().as_text()
    kernels = read_kernels(text, "cpu", 256**3)
    assert kernels.factor == 1.0 and kernels.operands == "f32 x f32"
    assert kernels.found in ("library", "fused product")
