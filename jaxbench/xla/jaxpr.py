"""Read a function's jaxpr: its matrix products and convolutions, and what its outputs depend on.

One multiply-accumulate (MAC) is two floating-point operations. Convolutions and matrix products
count, those inside cuDNN's attention too; the rest (batch norm, ReLU, pooling) is left out, as in
the published counts: ResNet-50 at 224x224 is 4.089 GMAC, WRN-28-10 at 32x32 5.243 GMAC. Padding
pixels count like real ones. The body of a scan counts as often as it runs, that of a `while_loop`
once, and of a `cond` the branch with the least.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Literal

FLOPS_PER_MAC = 2
# JAX's name of what `jax.nn.dot_product_attention(implementation="cudnn")` calls.
CUDNN_ATTENTION = "dot_product_attention_fwd_wrapper"


def inner_jaxprs(equation: Any) -> list[Any]:
    """Return the jaxprs that an equation calls; of `platform_dependent` only the default one."""
    inner = []
    for value in equation.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                inner.append(part)
    return inner[-1:] if equation.params.get("branches_platforms") else inner


class MatmulOrConv(NamedTuple):
    """A matrix product or a convolution, or the two products of cuDNN's attention."""

    primitive: str  # JAX's name of the operation
    scope: str  # its named scope
    macs: int  # multiply-accumulates, of all the times that it runs
    dtype: str  # of its operands
    times: int  # how often it runs
    sizes: tuple[int, ...]  # of its operands and its output, in order: its gradients have the same


def find_matmuls_and_convs(jaxpr: Any, scope: str = "", times: int = 1) -> Iterator[MatmulOrConv]:
    """Yield the matrix products and convolutions of a jaxpr that runs `times` in a named scope."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner_scope = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
        if name in _MACS:
            operands = [operand.aval for operand in equation.invars[:2]]
            yield MatmulOrConv(
                name,
                inner_scope,
                times * _MACS[name](equation),
                # The wider one: some pairs of narrow types have no common type.
                max((operand.dtype for operand in operands), key=lambda dtype: dtype.itemsize).name,
                times,
                tuple(sorted(aval.size for aval in (*operands, equation.outvars[0].aval))),
            )
        repeats = equation.params["length"] if name == "scan" else 1
        if not repeats:
            continue
        parts = [
            list(find_matmuls_and_convs(inner, inner_scope, times * repeats))
            for inner in inner_jaxprs(equation)
        ]
        if name == "cond":
            parts = [min(parts, key=lambda part: sum(op.macs for op in part))]
        for part in parts:
            yield from part


class Dataflow(NamedTuple):
    """Follow values through a jaxpr: a property of each follows from those it is computed from."""

    # Joins the properties of several values; of none, it returns that of a constant.
    merge: Callable[[Sequence[Any]], Any]
    # (equation, inputs) -> the properties of its outputs; None treats the equation like all others:
    # its jaxprs are followed, or else its inputs merged.
    rule: Callable[[Any, list[Any]], list[Any] | None]

    def outputs(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the property of each output of a jaxpr, given those of its inputs."""
        properties, constant = dict(zip(jaxpr.invars, inputs, strict=True)), self.merge(())

        def read(value: Any) -> Any:
            return constant if isinstance(value, Literal) else properties.get(value, constant)

        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [read(value) for value in equation.invars])
            properties.update(zip(equation.outvars, outputs, strict=True))
        return [read(value) for value in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        outputs = self.rule(equation, inputs)
        if outputs is not None:
            return outputs
        name, params, inner = equation.primitive.name, equation.params, inner_jaxprs(equation)
        if name == "scan":
            if "ft_in" in params:  # JAX 0.12 has groups of inputs in place of their numbers
                consts, carries, _ = (len(list(group)) for group in params["ft_in"].unpack())
            else:
                consts, carries = params["num_consts"], params["num_carry"]
            return self._loop(inner[0], inputs, consts, carries)
        if name == "while":
            inputs = inputs[params["cond_nconsts"] :]
            consts = params["body_nconsts"]
            return self._loop(params["body_jaxpr"].jaxpr, inputs, consts, len(inputs) - consts)
        if name == "cond":
            branches = [self.outputs(branch, inputs[1:]) for branch in inner]
            return [self.merge((inputs[0], *each)) for each in zip(*branches, strict=True)]
        if len(inner) == 1 and len(inner[0].invars) == len(inputs):
            return self.outputs(inner[0], inputs)
        return [self.merge(inputs)] * len(equation.outvars)

    def _loop(self, body: Any, inputs: list[Any], consts: int, carries: int) -> list[Any]:
        """Return the properties of a loop's outputs; carried values feed the next iteration."""
        carried = slice(consts, consts + carries)
        while True:
            outputs = self.outputs(body, inputs)
            pairs = zip(inputs[carried], outputs[:carries], strict=True)
            merged = [self.merge(pair) for pair in pairs]
            if merged == inputs[carried]:
                return outputs
            inputs = [*inputs[:consts], *merged, *inputs[carried.stop :]]


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


_MACS = {
    "conv_general_dilated": _conv_macs,
    "dot_general": _dot_macs,
    CUDNN_ATTENTION: _attention_macs,
    # The gradients of both operands of both products.
    "dot_product_attention_bwd_wrapper": lambda equation: 2 * _attention_macs(equation),
}
MATMULS_AND_CONVS = frozenset(_MACS)
