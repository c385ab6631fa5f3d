"""Count the arithmetic of a network by fixed rules, whatever the compiler does with it.

One multiply-accumulate (MAC) is two floating-point operations. Convolutions and matrix products
count, those inside cuDNN's attention too; the rest (batch norm, ReLU, pooling) is left out, as in
the published counts: ResNet-50 at 224x224 is 4.089 GMAC, WRN-28-10 at 32x32 5.243 GMAC. Padding
pixels count like real ones. The body of a scan counts as often as it runs, that of a `while_loop`
once, and of a `cond` the branch with the least.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

FLOPS_PER_MAC = 2


class Product(NamedTuple):
    """A convolution or a matrix product, or the two products of cuDNN's attention.

    Attributes:
      primitive: JAX's name of it.
      scope: its named scope.
      macs: multiply-accumulates, of all the times that it runs.
      dtype: of its operands.
      times: how often it runs.
      masked_macs: those of `macs` that a causal mask hides and cuDNN's attention need not do.
      reduction: how many times fewer multiplications fast algorithms need, see `_reduction`.
      sizes: of its operands and its output, in order: the gradients of a product have the same.
    """

    primitive: str
    scope: str
    macs: int
    dtype: str
    times: int
    masked_macs: int = 0
    reduction: float = 1.0
    sizes: tuple[int, ...] = ()


def find_products(jaxpr: Any, scope: str = "", times: int = 1) -> Iterator[Product]:
    """Yield the products in a function's jaxpr, such as `jax.jit(function).trace(...).jaxpr.jaxpr`.

    Args:
      jaxpr: the equations.
      scope: the named scope around them.
      times: how often they run.
    """
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner_scope = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
        if name in _MACS:
            # The wider one: some pairs of narrow types have no common type.
            dtypes = (operand.aval.dtype for operand in equation.invars[:2])
            dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
            macs = times * _MACS[name](equation)
            yield Product(
                name,
                inner_scope,
                macs,
                dtype.name,
                times,
                _masked_macs(equation, macs),
                _reduction(equation),
                tuple(sorted(x.aval.size for x in (*equation.invars[:2], equation.outvars[0]))),
            )
        repeats = equation.params["length"] if name == "scan" else 1
        if not repeats:
            continue
        parts = [
            list(find_products(inner, inner_scope, times * repeats))
            for inner in inner_jaxprs(equation)
        ]
        if name == "cond":
            parts = [min(parts, key=lambda part: sum(product.macs for product in part))]
        for part in parts:
            yield from part


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation calls."""
    for value in equation.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield inner


def _conv_macs(equation) -> int:
    image, kernel = (value.aval.shape for value in equation.invars)
    spec = equation.params["dimension_numbers"]
    # The kernel is laid on every output pixel; a transposed convolution's on every input pixel:
    # what its dilation puts between them is 0.
    if math.prod(equation.params["lhs_dilation"]) > 1:
        pixels = [image[axis] for axis in (spec.lhs_spec[0], *spec.lhs_spec[2:])]
    else:
        output = equation.outvars[0].aval.shape
        pixels = [output[axis] for axis in (spec.out_spec[0], *spec.out_spec[2:])]
    return math.prod(pixels) * math.prod(kernel)


def _dot_macs(equation) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return math.prod(equation.outvars[0].aval.shape) * depth


def _attention_macs(equation) -> int:
    # Queries with keys, weights with values; what a causal mask hides counts, as it does in XLA's.
    query_BxTxNxF, key_BxSxNxF = (value.aval.shape for value in equation.invars[:2])
    return 2 * math.prod(query_BxTxNxF) * key_BxSxNxF[1]


def _attention_gradient_macs(equation) -> int:
    # The gradients of both operands of both products.
    return 2 * _attention_macs(equation)


def _reduction(equation: Any) -> float:
    """Return how many times fewer multiplications a convolution needs by fast algorithms.

    A Fourier transform leaves, for each pair of channels, a complex product for every two pixels of
    the larger operand or output: two real ones a pixel, in place of one for each pixel and place of
    the kernel. Transforms count nothing. Winograd's algorithms that libraries have (tiles of 4x4
    for 3x3 kernels, of 5x5 for 5x5) need more. Libraries have neither for strides and dilations.
    The gradient of a kernel is such a convolution too, whose output has the kernel's size.
    """
    params = equation.params
    names = ("window_strides", "lhs_dilation", "rhs_dilation")
    if any(math.prod(params.get(name, (2,))) > 1 for name in names):
        return 1.0
    spec = params["dimension_numbers"]
    kernel, output = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    places = math.prod(kernel[axis] for axis in spec.rhs_spec[2:])
    return max(1.0, min(places, math.prod(output[axis] for axis in spec.out_spec[2:])) / 2)


def _masked_macs(equation: Any, macs: int) -> int:
    """Return how many of a product's `macs` a causal mask of cuDNN's hides."""
    if "CAUSAL" not in getattr(equation.params.get("mask_type"), "name", ""):
        return 0
    tokens = equation.invars[0].aval.shape[1]
    return macs * (tokens - 1) // (2 * tokens)


# JAX's own name of what `jax.nn.dot_product_attention(implementation="cudnn")` calls.
CUDNN_ATTENTION = "dot_product_attention_fwd_wrapper"
_CUDNN_ATTENTION_GRADIENT = "dot_product_attention_bwd_wrapper"
_MACS = {
    "conv_general_dilated": _conv_macs,
    "dot_general": _dot_macs,
    CUDNN_ATTENTION: _attention_macs,
    _CUDNN_ATTENTION_GRADIENT: _attention_gradient_macs,
}
PRODUCTS = frozenset(_MACS)
