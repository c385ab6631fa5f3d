"""Read the layers of a network from its traced forward pass."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import Literal

from jaxbench.models.transformer_block import FUSED_ATTENTION
from jaxbench.predict.layers import Layer, NetworkShape
from jaxbench.xla.jaxpr import CUDNN_ATTENTION, inner_jaxprs


def read_network(jaxpr: Any) -> NetworkShape:
    """Return the shape of a traced forward pass of one example.

    Elementwise operations are fused: a kernel writes what a product or a norm reads, and reads what
    it is computed from. Parameters count as nothing there.
    """
    reader = _Reader()
    reader.values[jaxpr.invars[-1]] = reader.stored(jaxpr.invars[-1])
    reader.read(jaxpr, 1)
    # The loss reads the outputs several times. They are few but for words and masks.
    outputs = sum(variable.aval.size for variable in jaxpr.outvars)
    return NetworkShape(tuple(reader.layers), reader.touched + 3.0 * outputs, reader.pooled)


@dataclasses.dataclass(eq=False)
class _Value:
    """What a variable, and each cast, reshape or argument of it, holds.

    Attributes:
      needed: the arrays in memory, (number, size) each, that it is computed from; none of a
        constant or a parameter.
    """

    size: int
    needed: frozenset
    stored: bool = False


class _Reader:
    """Follows a jaxpr: which arrays are in memory, and what kernels move.

    Attributes:
      touched: the elements that elementwise kernels have moved; `pooled` those of pooling.
      reduced: the arrays that reductions have read; others of the same are in the same kernel.
      summed: {the arrays that a sum is computed from: the array of the sum}.
    """

    def __init__(self):
        self.layers: list[Layer] = []
        self.touched = self.pooled = 0.0
        self.values: dict[Any, _Value] = {}
        self.reduced: set[frozenset] = set()
        self.summed: dict[frozenset, frozenset] = {}
        self._numbers = itertools.count()

    def value(self, variable: Any) -> _Value:
        constant = _Value(0, frozenset())
        return constant if isinstance(variable, Literal) else self.values.get(variable, constant)

    def stored(self, variable: Any) -> _Value:
        """Return the value of a variable that is in memory."""
        size = variable.aval.size
        return _Value(size, frozenset([(next(self._numbers), size)]), stored=True)

    def write(self, value: _Value) -> None:
        """Count the kernel that writes a value which is not in memory yet."""
        if value.needed and not value.stored:
            # Of a larger array it is a slice.
            self.touched += value.size + sum(min(size, value.size) for _, size in value.needed)
            value.needed, value.stored = frozenset([(next(self._numbers), value.size)]), True

    def write_sums(self, values: Sequence[_Value]) -> None:
        """Write what a norm reads several times, if it is computed from several arrays."""
        for value in values:
            if sum(size > value.size / 8 for _, size in value.needed) > 1:
                arrays = value.needed
                if arrays not in self.summed:
                    self.write(value)
                    self.summed[arrays] = value.needed
                value.needed = self.summed[arrays]  # Its square is computed from it.

    def read(self, jaxpr: Any, times: int) -> None:
        """Read the equations of a jaxpr that runs so often; its inputs are known."""
        for equation in jaxpr.eqns:
            name, inner = equation.primitive.name, inner_jaxprs(equation)
            if equation.params.get("name") == FUSED_ATTENTION:
                name = CUDNN_ATTENTION
            inputs = [self.value(one) for one in equation.invars]
            used = [one for one in inputs if one.needed]
            for one in used:  # A norm that reads only the square of a sum has written the sum too.
                one.needed = self.summed.get(one.needed, one.needed)
            needed = frozenset().union(*(one.needed for one in used))
            stores = False
            if name in _PRODUCTS:
                stores = True
                for one in used:
                    self.write(one)
                activations = [bool(one.needed) for one in inputs[:2]]
                self.layers.extend(_PRODUCTS[name](equation, activations, times))
            elif inner:
                body = inner[-1 if name == "while" else 0]
                # jaxbench's pooling has a form of its own for GPUs; the plain one tells what it is.
                for branch in equation.params.get("branches", ()):
                    if any(_is_pooling(one) for one in branch.jaxpr.eqns):
                        body = branch.jaxpr
                self.call(equation, body, used, times)
                continue
            elif name in _RENAMES and used:
                self.values[equation.outvars[0]] = used[0]
                continue
            elif needed and _is_pooling(equation):
                stores = True
                for one in used:
                    self.write(one)
                self.pooled += sum(one.size for one in used)
                self.pooled += sum(one.aval.size for one in equation.outvars)
            elif needed and name.startswith(_REDUCTIONS):
                stores = True
                self.write_sums(used)
                needed = frozenset().union(*(one.needed for one in used))
                most = max(size for _, size in needed)
                # A mean, and a variance that needs it, are one pass, as in cuDNN's batch norm.
                large = frozenset(array for array in needed if array[1] > most / 8)
                if large not in self.reduced:
                    self.touched += sum(size for _, size in large)
                    self.reduced.add(large)
                self.touched += sum(one.aval.size for one in equation.outvars)
            for one in equation.outvars:
                self.values[one] = self.stored(one) if stores else _Value(one.aval.size, needed)

    def call(self, equation: Any, body: Any, used: Sequence[_Value], times: int) -> None:
        """Read a call's jaxpr; of a choice, that of the first branch."""
        repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
        if any(one.primitive.name.startswith("reduce_") for one in body.eqns):
            self.write_sums(used)
        for one, outer in zip(body.invars, equation.invars[-len(body.invars) :], strict=False):
            value = self.value(outer)
            # An iteration reads its part from memory.
            self.values[one] = self.stored(one) if repeats > 1 and value.needed else value
        touched, pooled = self.touched, self.pooled
        self.read(body, times * repeats)
        self.touched += (repeats - 1) * (self.touched - touched)
        self.pooled += (repeats - 1) * (self.pooled - pooled)
        results = [self.value(one) for one in body.outvars]
        for outer, value in zip(equation.outvars, results, strict=False):
            stores = value.stored or (repeats > 1 and value.needed)
            size = outer.aval.size
            self.values[outer] = self.stored(outer) if stores else _Value(size, value.needed)


def _is_pooling(equation: Any) -> bool:
    return equation.primitive.name.startswith("reduce_window")


def _convolution(equation: Any, _: list[bool], times: int) -> Iterator[Layer]:
    image, kernel = (variable.aval for variable in equation.invars)
    output, params = equation.outvars[0].aval, equation.params
    spec, groups = params["dimension_numbers"], params["feature_group_count"]
    taps = math.prod(kernel.shape[axis] for axis in spec.rhs_spec[2:])
    channels, cols = kernel.shape[spec.rhs_spec[1]], kernel.shape[spec.rhs_spec[0]] // groups
    transposed = math.prod(params["lhs_dilation"]) > 1
    if transposed:  # Each input pixel is multiplied with the whole kernel.
        rows = math.prod(image.shape[axis] for axis in spec.lhs_spec[2:])
        cols, depth = cols * taps, channels
    else:
        rows = math.prod(output.shape[axis] for axis in spec.out_spec[2:])
        depth = taps * channels
    stride = math.prod(params["window_strides"])
    yield Layer(
        rows,
        cols,
        depth,
        groups,
        image.size,
        output.size,
        kernel.size,
        channels,
        taps if stride == 1 and not transposed else 1,
        times,
        transposed,
    )


def _matmul(equation: Any, activations: list[bool], times: int) -> Iterator[Layer]:
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = (variable.aval for variable in equation.invars[:2])
    output = equation.outvars[0].aval
    depth = math.prod(left.shape[axis] for axis in contracted)
    groups = math.prod(left.shape[axis] for axis in batch)
    if activations == [False, True]:
        left, right = right, left
    rows, cols = left.size // (depth * groups), right.size // (depth * groups)
    moved, weights = (left.size + right.size, 0) if all(activations) else (left.size, right.size)
    yield Layer(rows, cols, depth, groups, moved, output.size, weights, times=times)


def _attention(equation: Any, _: list[bool], times: int) -> Iterator[Layer]:
    # cuDNN's: the weights of the tokens stay on the chip.
    query, key = (variable.aval for variable in equation.invars[:2])
    tokens, heads, width = query.shape[-3:]
    moved = query.size + key.size
    yield Layer(tokens, key.shape[-3], width, heads, moved, 0, 0, times=times)
    yield Layer(tokens, width, key.shape[-3], heads, 0, query.size, 0, times=times)


_REDUCTIONS = ("reduce_", "argmax", "cumsum", "sort", "select_and")
_RENAMES = ("convert_element_type", "reshape", "squeeze", "transpose", "broadcast_in_dim", "copy")
_PRODUCTS = {
    "conv_general_dilated": _convolution,
    "dot_general": _matmul,
    CUDNN_ATTENTION: _attention,
}
