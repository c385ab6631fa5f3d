"""The best matmul rate of a device, over a small search of shapes.

One call runs a chain of dependent matmuls in one compiled program, x W V W V, so that the latency
of a dispatch is spread over all of them, and each call is queued before the last one has ended. A
product of m x k with k x n counts as 2 m k n operations, as in Dongarra, Du Croz, Hammarling and
Duff, "A set of level 3 basic linear algebra subprograms" (ACM TOMS 16, 1990); the conversions
between them count as nothing. Elements are random normals scaled so that products keep their size:
the power of a chip, and so its clock, depends on the data (zeros run faster).

What the names of the arithmetics mean:

  fp32: precision HIGHEST: IEEE fp32 on CPU and GPU; on TPU six passes of bf16.
  tf32: GPU only: fp32 arrays at precision DEFAULT, which Ampere and later multiply in TF32.
  bf16, fp16: arrays of that type; the backend accumulates in fp32.
  fp8: float8_e4m3fn arrays, bf16 results.
  int8: int8 arrays, int32 results; operations, not floating-point ones.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.aliases import DType
from jaxbench.clock import Stopwatch
from jaxbench.microbench.interleaved import Calls
from jaxbench.microbench.memory_bandwidth import memory_bytes

# m, k, n: m x k by k x n.
Shape = tuple[int, int, int]
ARITHMETICS = {
    "fp32": (jnp.float32, lax.Precision.HIGHEST),
    "tf32": (jnp.float32, lax.Precision.DEFAULT),
    "bf16": (jnp.bfloat16, lax.Precision.DEFAULT),
    "fp16": (jnp.float16, lax.Precision.DEFAULT),
    "fp8": (jnp.float8_e4m3fn, lax.Precision.DEFAULT),
    "int8": (jnp.int8, lax.Precision.DEFAULT),
}
# The results of arithmetics whose products are wider than their arrays.
_WIDER: dict[str, DType] = {"fp8": jnp.bfloat16, "int8": jnp.int32}
# Matmuls of a call. More would hide more latency, and a slow device's window would be longer.
CHAIN = 4
# Sides of matrices. Accelerators are far from their best rate below the smallest, and each shape
# takes a second or more to compile there.
_SMALLEST, _SMALLEST_ON_CPU, _LARGEST = 1024, 256, 16384
# Elements of the block that random matrices repeat.
_BLOCK = 2**20 + 1
# Calls by which shapes are compared, and when larger ones would take too long.
_PROBES, _LONG_CALL_S = 3, 0.1
# The arrays of all arithmetics lie on the device together.
_SHARE_OF_MEMORY = 1 / 32


def chain(
    arithmetic: str,
    x_MxK: jax.Array,
    w_KxN: jax.Array,
    v_NxK: jax.Array,
    start_MxN: jax.Array | None = None,
) -> jax.Array:
    """Return the result of `CHAIN` matmuls, each of which needs the one before it.

    Args:
      start_MxN: only for fp8 and int8: becomes the next product's left side, with one element of
        the last product. Whole products would have to be converted, which takes the memory's time.
    """
    dtype, precision = ARITHMETICS[arithmetic]
    left = x_MxK
    other_left: Any = start_MxN  # given for `_WIDER`
    for number in range(CHAIN):
        right = v_NxK if number % 2 else w_KxN
        if arithmetic not in _WIDER:
            left = lax.dot(left, right, precision=precision)
            continue
        product = lax.dot(left, right, preferred_element_type=_WIDER[arithmetic])
        if number == CHAIN - 1:
            return product
        # Else XLA may compute the one element alone.
        product = lax.optimization_barrier(product)
        element = product[:1, :1].astype(dtype)
        left, other_left = lax.dynamic_update_slice(other_left, element, (0, 0)), left
    return left


def find_best_shape(
    device: jax.Device, arithmetic: str, search_s: float, show: Callable[[str], object]
) -> tuple[Shape, list[Shape]]:
    """Return the fastest shape of an arithmetic, by a few calls, and all that were measured.

    Sides are powers of two: square shapes, wide ones (n = 4 m) and tall ones (m = 4 n). On a CPU
    they grow from 256 until a call takes long. Other devices need large matmuls and compile each
    shape for seconds: the search begins with the largest that fits, and ends with 1024, or after
    `search_s`.

    Raises:
      jax.errors.JaxRuntimeError: the device multiplies no shape.
    """
    rates: dict[Shape, float] = {}
    watch, slowest_s = Stopwatch(), 0.0
    failures: list[Exception] = []
    most_bytes = memory_bytes(device) * _SHARE_OF_MEMORY
    shapes = [*_shapes(device.platform)]
    fitting = [shape for shape in shapes if _array_bytes(arithmetic, shape) <= most_bytes]
    for shape in fitting or [min(shapes, key=operations)]:
        if slowest_s > _LONG_CALL_S and shape[1] > max(k for _, k, _ in rates):
            break
        show(f"search, matmul {arithmetic} {'x'.join(map(str, shape))}")
        try:
            calls = matmul_calls(device, arithmetic, shape, window_s=0.0)
            call_s = min(calls.time_calls(1) for _ in range(_PROBES))
        except jax.errors.JaxRuntimeError as error:
            failures.append(error)
        else:
            rates[shape], slowest_s = operations(shape) / call_s, max(slowest_s, call_s)
        if watch.elapsed_s() > search_s:
            break
    if not rates:
        raise failures[-1]
    return max(rates, key=rates.__getitem__), [*rates]


def operations(shape: Shape) -> int:
    """Return the operations of a call."""
    m, k, n = shape
    return CHAIN * 2 * m * k * n


def matmul_calls(device: jax.Device, arithmetic: str, shape: Shape, window_s: float) -> Calls:
    """Return the calls of a chain of this shape, compiled and run once."""
    m, k, n = shape
    dtype, _ = ARITHMETICS[arithmetic]
    sizes = [(m, k), (k, n), (n, k), *([(m, n)] if arithmetic in _WIDER else [])]
    arrays = [_random(number, size, dtype) for number, size in enumerate(sizes)]
    call = functools.partial(
        jax.jit(functools.partial(chain, arithmetic)), *jax.device_put(arrays, device)
    )
    jax.block_until_ready(call())
    return Calls(f"matmul {arithmetic} {m}x{k}x{n}", call, [device], window_s)


def _random(number: int, size: tuple[int, int], dtype: DType) -> np.ndarray:
    """Return the elements of the chain's argument of this number: a block of normals, repeated.

    Right sides keep a product's elements near one. The block's length is odd, so that rows differ.
    """
    block = np.random.default_rng(number).standard_normal(_BLOCK, np.float32)
    block *= 32 if dtype == jnp.int8 else size[0] ** -0.5 if number else 1
    return np.resize(block.clip(-127, 127).astype(dtype), size)


def _shapes(platform: str) -> Iterator[Shape]:
    """Yield a square, a wide and a tall shape of each side, in the order of the search."""
    on_cpu = platform == "cpu"
    sides = [2**power for power in range(_LARGEST.bit_length())]
    sides = [side for side in sides if side >= (_SMALLEST_ON_CPU if on_cpu else _SMALLEST)]
    for side in sides if on_cpu else reversed(sides):
        yield from ((side, side, side), (side, side, 4 * side), (4 * side, side, side))


def _array_bytes(arithmetic: str, shape: Shape) -> int:
    """Return the bytes of a chain's arrays, results included."""
    m, k, n = shape
    width = jnp.dtype(ARITHMETICS[arithmetic][0]).itemsize
    return width * (m * k + 2 * k * n + m * n) + max(width, 4) * (m * k + m * n)
