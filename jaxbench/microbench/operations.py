"""The operations that networks are made of, one at a time, compiled and timed alone.

Each is a function of a few arrays. The gradients of an operation are those of all its arguments of
floating point, from a given gradient of its result: its backward pass alone, but for attention,
whose fused kernels have none without the forward pass. The sizes are such that an H100 takes about
0.1 ms for each; on a CPU the first axis is an eighth.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import SingleDeviceSharding

from jaxbench.aliases import DType
from jaxbench.analysis.rate import Estimate, estimate
from jaxbench.hardware.targets.target import compute_capability
from jaxbench.microbench.interleaved import Calls, measure_in_turn
from jaxbench.models.fp8 import fp8_dot_general
from jaxbench.models.transformer_block import attend, plain_attention, refuse_fused

_BF16, _FP32, _FP8 = jnp.bfloat16, jnp.float32, jnp.float8_e4m3fn
_IMAGES = ("NHWC", "HWIO", "NHWC")
# B, T, N and F of attention's heads.
_HEADS = (8, 2048, 16, 64)
# The first axis of arrays on a CPU is this many times smaller.
_ON_CPU = 8
# What all others are timed beside: products, and what moves memory.
PRODUCT, COPY = "product_bf16", "copy"


class Argument(NamedTuple):
    """An array that an operation takes: random normals, or what its fields say.

    Attributes:
      below: integers from 0 up to this number take the place of normals.
      filled: every element is this number.
    """

    dtype: DType
    sides: tuple[int, ...]
    below: int | None = None
    filled: int | None = None

    def create(self, number: int) -> jax.Array:
        """Return the array; the number tells arguments of the same shape apart."""
        if self.filled is not None:
            return jnp.full(self.sides, self.filled, self.dtype)
        key = jax.random.key(number)
        if self.below is not None:
            return jax.random.randint(key, self.sides, 0, self.below, self.dtype)
        return jax.random.normal(key, self.sides, _BF16).astype(self.dtype)


class Operation(NamedTuple):
    """An operation on arrays of stated shapes.

    Attributes:
      name: of its row.
      function: of the arrays.
      arguments: the arrays.
      macs: multiply-accumulates that it needs; 0 if it is no product.
      multiplies: the type that it asks to multiply, by its name in XLA.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    macs: int = 0
    multiplies: str = "bf16"

    def shapes(self, sharding: Any = None) -> list[jax.ShapeDtypeStruct]:
        """Return the arrays' shapes, for devices that may not be here."""
        return [
            jax.ShapeDtypeStruct(one.sides, one.dtype, sharding=sharding) for one in self.arguments
        ]

    @property
    def num_bytes(self) -> int:
        """The size of its arguments and results, each read or written once."""
        arrays = [*self.shapes(), *jax.tree.leaves(jax.eval_shape(self.function, *self.shapes()))]
        return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def operations_on(device: Any) -> tuple[dict[str, Operation], str | None]:
    """Return {name: operation} of a device, here or not, and why it has no fused attention."""
    tpu = device.device_kind if device.platform == "tpu" else None
    fused, capability = "flash" if tpu else "cudnn", compute_capability(device)
    _, tokens, _, head_width = _HEADS
    why = refuse_fused(fused, capability, tpu, _BF16, head_width, tokens)
    listed = list_operations(device.platform, plain_attention(capability), None if why else fused)
    return {one.name: one for one in listed}, why and f"it is for {why}"


def list_operations(platform: str, plain: str = "xla", fused: str | None = None) -> list[Operation]:
    """Return the operations for a platform: cpu, gpu or tpu.

    Args:
      plain, fused: two implementations of attention, as `attend` names them. Without `fused` there
        is no operation of it.
    """
    n = _ON_CPU if platform == "cpu" else 1
    batch, *rest = _HEADS
    heads = [Argument(_BF16, (batch // n, *rest))] * 3
    attention_macs = 2 * math.prod(heads[0].sides) * rest[0]  # queries by keys, weights by values
    groups, rows = 8, 16384 // n
    tokens = (
        Argument(_BF16, (rows, 2048)),
        Argument(_BF16, (groups, 2048, 2048)),
        Argument(jnp.int32, (groups,), filled=rows // groups),
    )
    # Both sides, then their scales: 32 elements share one.
    rows_of_sides = (4096 // n, 4096)
    mxfp8 = (
        *(Argument(_FP8, (1, count, 4096)) for count in rows_of_sides),
        *(Argument(jnp.float8_e8m0fnu, (1, count, 128), filled=1) for count in rows_of_sides),
    )
    return [
        *_product("bf16", jnp.dot, _BF16, n)[:1],
        *_product("tf32", jnp.dot, _FP32, n, "f32")[:1],
        *_product("fp32", functools.partial(jnp.dot, precision="highest"), _FP32, n, "f32")[:1],
        *_product("fp8", _fp8_product, _BF16, n, "f8e4m3fn"),  # only its gradients differ in type
        *_product("int8", _int8_product, jnp.int8, n, "s8")[:1],
        Operation("product_mxfp8", jax.nn.scaled_matmul, mxfp8, 4096**3 // n, "f8e4m3fn"),
        *_attention("attention", plain, heads, attention_macs),
        *(_attention("fused_attention", fused, heads, attention_macs) if fused else []),
        *_with_gradients("ragged_product", lax.ragged_dot, tokens, rows * 2048 * 2048),
        *_convolution("conv3x3", n, size=3),
        *_convolution("conv1x1", n, size=1),
        *_convolution("conv_depthwise", n, size=3, groups=64),
        *_convolution("conv_grouped", n, size=3, groups=8),
        *_convolution("conv_transposed", n, size=3, transposed=True),
        *_with_gradients("layer_norm", _layer_norm, _norm((32768 // n, 4096))),
        *_with_gradients("batch_norm", _batch_norm, _norm((256 // n, 56, 56, 128))),
        *_with_gradients("softmax", jax.nn.softmax, (Argument(_FP32, (16384 // n, 4096)),)),
        *_with_gradients("max_pool", _max_pool, (Argument(_BF16, (256 // n, 112, 112, 64)),))[1:],
        Operation(
            "embedding_gradients",
            lambda gradient_NxD, tokens_N: jnp.zeros((50304, 768)).at[tokens_N].add(gradient_NxD),
            (Argument(_FP32, (32768 // n, 768)), Argument(jnp.int32, (32768 // n,), below=50304)),
        ),
        Operation("top_k", lambda x: lax.top_k(x, 8), (Argument(_FP32, (1024 // n, 32768)),)),
        Operation("sort", jnp.sort, (Argument(_FP32, (4096 // n, 4096)),)),
        Operation("cumsum", lambda x: jnp.cumsum(x, 1), (Argument(_FP32, (8192 // n, 4096)),)),
        Operation(COPY, jnp.copy, (Argument(_FP32, (16384 // n, 4096)),)),
    ]


def _with_gradients(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Argument],
    macs: int = 0,
    with_result: bool = False,
) -> list[Operation]:
    """Return an operation and its gradients, which take a product for each of its two operands.

    Args:
      with_result: whether the gradients come with the operation's result, and so its forward pass.
    """
    shapes = [jax.ShapeDtypeStruct(one.sides, one.dtype) for one in arguments]
    result = jax.eval_shape(function, *shapes)
    by = [number for number, one in enumerate(arguments) if jnp.issubdtype(one.dtype, jnp.floating)]

    def gradients(gradient, *arrays):
        def of_floats(*floats):
            changed = dict(zip(by, floats, strict=True))
            return function(*(changed.get(n, array) for n, array in enumerate(arrays)))

        result, backward = jax.vjp(of_floats, *(arrays[n] for n in by))
        return (result, backward(gradient)) if with_result else backward(gradient)

    given = (Argument(result.dtype, result.shape), *arguments)
    return [
        Operation(name, function, tuple(arguments), macs),
        Operation(f"{name}_gradients", gradients, given, (3 if with_result else 2) * macs),
    ]


def _product(
    arithmetic: str, product: Callable[..., Any], dtype: DType, n: int, multiplies: str = "bf16"
) -> list[Operation]:
    """Return a product of matrices of 4096 rows and columns, and its gradients."""
    sides = [Argument(dtype, (4096 // n, 4096)), Argument(dtype, (4096, 4096))]
    both = _with_gradients(f"product_{arithmetic}", product, sides, 4096**3 // n)
    return [one._replace(multiplies=multiplies) for one in both]


def _int8_product(x_MxK: jax.Array, w_KxN: jax.Array) -> jax.Array:
    return jnp.dot(x_MxK, w_KxN, preferred_element_type=jnp.int32)


def _fp8_product(x_MxK: jax.Array, w_KxN: jax.Array) -> jax.Array:
    """Multiply as `precision=fp8` does, which finds the scales of both operands first."""
    return fp8_dot_general(x_MxK, w_KxN, (((1,), (0,)), ((), ())))


def _attention(name: str, attention: str, heads: Sequence[Argument], macs: int) -> list[Operation]:
    def function(query_BxTxNxF, key_BxTxNxF, value_BxTxNxF):
        return attend(query_BxTxNxF, key_BxTxNxF, value_BxTxNxF, False, attention)

    return _with_gradients(name, function, heads, macs, with_result=True)


def _convolution(
    name: str, n: int, *, size: int, groups: int = 1, transposed: bool = False
) -> list[Operation]:
    """Return a convolution of 64 channels, to 64 or, if it is 1x1, to 256, and its gradients."""
    batch, side, channels, outputs = 256 // n, 56, 64, 256 if size == 1 else 64

    def function(images_BxHxWxC, kernel):
        if transposed:
            return lax.conv_transpose(
                images_BxHxWxC, kernel, (2, 2), "SAME", dimension_numbers=_IMAGES
            )
        return lax.conv_general_dilated(
            images_BxHxWxC,
            kernel,
            (1, 1),
            "SAME",
            dimension_numbers=_IMAGES,
            feature_group_count=groups,
        )

    kernel = (size, size, channels // groups, outputs)
    arguments = [Argument(_BF16, (batch, side, side, channels)), Argument(_BF16, kernel)]
    return _with_gradients(name, function, arguments, batch * side**2 * math.prod(kernel))


def _norm(sides: tuple[int, ...]) -> list[Argument]:
    return [Argument(_BF16, sides), *[Argument(_FP32, sides[-1:])] * 2]


def _layer_norm(x: jax.Array, scale_C: jax.Array, bias_C: jax.Array) -> jax.Array:
    norm: Any = nn.LayerNorm(dtype=_BF16)
    return norm.apply({"params": {"scale": scale_C, "bias": bias_C}}, x)


def _batch_norm(x: jax.Array, scale_C: jax.Array, bias_C: jax.Array) -> jax.Array:
    norm = nn.BatchNorm(use_running_average=False, dtype=_BF16)
    statistics = {"mean": jnp.zeros_like(scale_C), "var": jnp.ones_like(scale_C)}
    variables = {"params": {"scale": scale_C, "bias": bias_C}, "batch_stats": statistics}
    return norm.apply(variables, x, mutable=["batch_stats"])[0]


def _max_pool(images_BxHxWxC: jax.Array) -> jax.Array:
    return nn.max_pool(images_BxHxWxC, (3, 3), (2, 2), "SAME")


@functools.lru_cache(maxsize=4)
def compile_operation(operation: Operation, device: Any, triton: bool = True) -> Any:
    """Return an operation compiled for a device, here or not; the last ones are kept.

    Args:
      triton: whether Triton may multiply on a GPU.
    """
    shapes = operation.shapes(SingleDeviceSharding(device))
    options: Any = None if triton else {"xla_gpu_enable_triton_gemm": False}
    return jax.jit(operation.function).lower(*shapes).compile(compiler_options=options)


def time_beside(
    operation: Operation,
    reference: Operation,
    device: jax.Device,
    *,
    rounds: int,
    window_s: float,
) -> tuple[Estimate, Estimate]:
    """Time an operation on a device, interleaved with a reference.

    Returns:
      The seconds of a call. Its rate as a fraction of the reference's: of multiply-accumulates if
      it needs any, else of bytes.
    """
    turns = []
    for one in (operation, reference):
        arrays = [argument.create(number) for number, argument in enumerate(one.arguments)]
        compiled = compile_operation(one, device)
        call = functools.partial(compiled, *jax.device_put(arrays, device))
        jax.block_until_ready(call())
        turns.append(Calls(one.name, call, [device], window_s))
    measure_in_turn(turns, rounds)
    timed, beside = turns
    work = [one.macs if operation.macs else one.num_bytes for one in (operation, reference)]
    scale = work[0] / work[1] * timed.calls_per_window / beside.calls_per_window
    pairs = zip(timed.windows_s, beside.windows_s, strict=True)
    return timed.call_s(), estimate([scale * other_s / own_s for own_s, other_s in pairs])
