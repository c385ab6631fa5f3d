"""What a training step of a network does for one example: its products, and what else it moves.

A network is a `NetworkShape`, whether it is traced (`read_network`) or, if jaxbench lacks it,
described by hand (`networks.py`).
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Literal

from jaxbench.xla.jaxpr import CUDNN_ATTENTION, inner_jaxprs

# Multiply-accumulates for each element that elementwise kernels move; a network with fewer is thin.
_THIN = 70
# Weights, gradients and the optimizer's values, of a parameter.
_STATE_BYTES = 12


class Layer(NamedTuple):
    """A convolution or a matrix product of the forward pass; all sizes are of one example.

    Attributes:
      rows: output pixels, or tokens.
      cols: output channels of a group.
      depth: taps x input channels of a group.
      groups: how many such products: groups of a convolution, heads of attention.
      inputs, outputs, weights: elements; attention's products have no weights.
      channels: input channels of a group of a convolution, else 0.
      taps: of a kernel with stride 1, which fast algorithms can compute, else 1.
      times: how many such layers there are.
      transposed: whether it is a transposed convolution.
    """

    rows: int
    cols: int
    depth: int
    groups: int
    inputs: int
    outputs: int
    weights: int
    channels: int = 0
    taps: int = 1
    times: int = 1
    transposed: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all the layers."""
        return self.times * self.rows * self.cols * self.depth * self.groups


class NetworkShape(NamedTuple):
    """A network's layers, and the elements that its elementwise kernels move forward."""

    layers: tuple[Layer, ...]
    touched: float

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass."""
        return sum(layer.macs for layer in self.layers)

    @property
    def weights(self) -> int:
        """Elements of the kernels and matrices."""
        return sum(layer.times * layer.weights for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of the weights, their gradients and the optimizer's values."""
        return _STATE_BYTES * self.weights

    def kept_bytes(self, element_bytes: int) -> int:
        """Bytes that the backward pass of an example reads, if the compiler recomputes nothing."""
        kept = sum(layer.times * (layer.inputs + layer.outputs) for layer in self.layers)
        return kept * element_bytes

    def least_bytes(self, element_bytes: int) -> int:
        """Return the least bytes that training on an example moves if none stays on the chip.

        A product's forward pass and its two gradients each move its input and output once, and all
        else is fused into them. The first product has only one gradient.
        """
        first = self._replace(layers=self.layers[:1])
        return 3 * self.kept_bytes(element_bytes) - first.kept_bytes(element_bytes)

    @property
    def family(self) -> str:
        """Residual, plain, thin, unet or transformer, by rules for custom networks too."""
        if any(layer.transposed for layer in self.layers):
            return "unet"
        if sum(layer.macs for layer in self.layers if not layer.channels) > 0.5 * self.macs:
            return "transformer" if any(layer.rows > 1 for layer in self.layers) else "plain"
        if self.macs < _THIN * self.touched or any(layer.groups > 1 for layer in self.layers):
            return "thin"
        dense = sum(layer.weights for layer in self.layers if not layer.channels)
        return "plain" if dense > 0.6 * self.weights else "residual"


def read_network(jaxpr: Any) -> NetworkShape:
    """Return the shape of a traced forward pass of one example.

    Elementwise operations are fused: a kernel writes what a product or a norm reads, and reads what
    it is computed from. Parameters count as nothing there.
    """
    reader = _Reader()
    reader.values[jaxpr.invars[-1]] = reader.stored(jaxpr.invars[-1])
    reader.read(jaxpr, 1)
    return NetworkShape(tuple(reader.layers), reader.touched)


@dataclasses.dataclass(eq=False)
class _Value:
    """What a variable, and each cast, reshape or argument of it, holds.

    Attributes:
      size: its elements.
      needed: the arrays in memory, (number, size) each, that it is computed from; none of a
        constant or a parameter.
      stored: whether it is in memory.
    """

    size: int
    needed: frozenset
    stored: bool = False


class _Reader:
    """Follows a jaxpr: which arrays are in memory, and what kernels move.

    Attributes:
      layers: the products so far.
      touched: the elements that elementwise kernels have moved.
      values: by variable.
      reduced: the arrays that reductions have read; others of the same are in the same kernel.
    """

    def __init__(self):
        self.layers: list[Layer] = []
        self.touched = 0.0
        self.values: dict[Any, _Value] = {}
        self.reduced: set[frozenset] = set()
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

    def read(self, jaxpr: Any, times: int) -> None:
        """Read the equations of a jaxpr that runs so often; its inputs are known."""
        for equation in jaxpr.eqns:
            name, inner = equation.primitive.name, inner_jaxprs(equation)
            inputs = [self.value(one) for one in equation.invars]
            used = [one for one in inputs if one.needed]
            needed = frozenset().union(*(one.needed for one in used))
            stores = False
            if name in _PRODUCTS:
                stores = True
                for one in used:
                    self.write(one)
                activations = [bool(one.needed) for one in inputs[:2]]
                self.layers.extend(_PRODUCTS[name](equation, activations, times))
            elif inner:
                self.call(equation, inner[-1 if name == "while" else 0], used, times)
                continue
            elif name in _RENAMES and used:
                self.values[equation.outvars[0]] = used[0]
                continue
            elif needed and name.startswith(_REDUCTIONS):
                stores = True
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
            # A norm reads its input several times: a sum of several is in memory by then.
            for value in used:
                if len(value.needed) > 1:
                    self.write(value)
        for one, outer in zip(body.invars, equation.invars[-len(body.invars) :], strict=False):
            value = self.value(outer)
            # An iteration reads its part from memory.
            self.values[one] = self.stored(one) if repeats > 1 and value.needed else value
        before = self.touched
        self.read(body, times * repeats)
        self.touched += (repeats - 1) * (self.touched - before)
        results = [self.value(one) for one in body.outvars]
        for outer, value in zip(equation.outvars, results, strict=False):
            stores = value.stored or (repeats > 1 and value.needed)
            size = outer.aval.size
            self.values[outer] = self.stored(outer) if stores else _Value(size, value.needed)


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
