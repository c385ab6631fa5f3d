"""Count the bytes of activations that training must move if none of them stays on the chip.

Convolutions and matrix products are the kernels, and all else is fused into them. No product is
computed twice, and no whole activation stays in a cache. Memory then holds the outputs of products,
and smaller values computed from them (pooled activations, sums of two) that a product reads or
batch norm averages. Bytes moved for each, in multiples of its size:

  its write            1, and the other terms of a sum are read for it
  a product's read     2: forward, and for the kernel's gradient
  its gradient         1 written if a product reads the value, and 1 read for each further term
  a gradient of the    1 read, less if it follows from a smaller gradient (of a pooled activation);
  product that made it   a network's first product has only one
  batch statistics     3 read: for the backward sums, and by either gradient before them

So a convolution between others of its size, with batch norm and ReLU, moves nine times its output.
Masks, positions of maxima and statistics count nothing. Networks with a product of two activations
(attention) or with a loop are not counted.
"""

import dataclasses
from typing import Any

from jaxbench.xla.jaxpr import CUDNN_ATTENTION, Dataflow, inner_jaxprs


@dataclasses.dataclass(eq=False)
class _Value:
    """A value that memory may hold.

    Attributes:
      num_bytes: its size.
      sources: the values that it is computed from; none for a product's output and the images.
      gradients: of a product's output, how many products its gradient takes part in; else 0.
      has_gradient: whether it depends on parameters.
      readers: how many products take it.
      normalized: whether batch norm takes statistics of it.
      users: the values in memory that are computed from it without a product.
    """

    num_bytes: int
    sources: frozenset["_Value"] = frozenset()
    gradients: int = 0
    has_gradient: bool = False
    readers: int = 0
    normalized: bool = False
    users: list["_Value"] = dataclasses.field(default_factory=list)

    @property
    def is_stored(self) -> bool:
        return not self.sources or self.readers > 0 or self.normalized

    def stored_sources(self) -> set["_Value"]:
        parts = ({one} if one.is_stored else one.stored_sources() for one in self.sources)
        return set().union(*parts)

    def gradient_bytes(self) -> int:
        """Return what must be read to know its gradient."""
        if self.readers or not self.users:
            return self.num_bytes
        return min(self.num_bytes, sum(user.gradient_bytes() for user in self.users))

    def moved_bytes(self) -> int:
        moved = 2 * self.readers
        moved += bool(self.sources) or self.has_gradient  # all but the images are written
        if self.has_gradient:
            moved += self.readers + self.normalized * (1 + (self.gradients or 2))
        others = sorted(source.num_bytes for source in self.stored_sources())[:-1]
        total = moved * self.num_bytes + sum(others) + self.gradients * self.gradient_bytes()
        if self.has_gradient and self.readers:
            total += sum(min(self.num_bytes, user.gradient_bytes()) for user in self.users)
        return total


def count_activation_bytes(jaxpr: Any) -> int | None:
    """Return the least bytes of activations that training on a batch moves; None if not counted.

    Args:
      jaxpr: the forward pass of the batch, whose images are the last input.
    """
    values = []

    def new_value(variable: Any, **fields: Any) -> frozenset:
        num_bytes = variable.aval.size * variable.aval.dtype.itemsize
        values.append(_Value(num_bytes, **fields))
        return frozenset(values[-1:])

    def rule(equation: Any, inputs: list[frozenset]) -> list[frozenset] | None:
        name, sources = equation.primitive.name, frozenset().union(*inputs)
        if not sources:
            return [sources] * len(equation.outvars)
        has_gradient = any(source.has_gradient for source in sources)
        inner = inner_jaxprs(equation)
        if name in ("conv_general_dilated", "dot_general"):
            if all(inputs):
                raise NotImplementedError
            for source in sources:
                source.readers += 1
            output = equation.outvars[0]
            return [new_value(output, gradients=1 + has_gradient, has_gradient=True)]
        if name in ("scan", "while", CUDNN_ATTENTION) or len(inner) > 1:
            raise NotImplementedError
        if inner and (name == "cond" or len(inner[0].invars) == len(inputs)):
            return None
        if name.startswith("reduce_") and 0 in equation.params.get("axes", ()):
            for source in sources:  # statistics of the batch
                source.normalized = True
            return [frozenset()] * len(equation.outvars)
        source_bytes = sum(source.num_bytes for source in sources)
        return [
            new_value(variable, sources=sources, has_gradient=has_gradient)
            if variable.aval.size * variable.aval.dtype.itemsize < source_bytes
            else sources
            for variable in equation.outvars
        ]

    images = new_value(jaxpr.invars[-1])
    inputs = [*[frozenset()] * (len(jaxpr.invars) - 1), images]
    try:
        Dataflow(lambda properties: frozenset().union(*properties), rule).outputs(jaxpr, inputs)
    except NotImplementedError:
        return None
    stored = [value for value in values if value.is_stored]
    for value in stored:
        for source in value.stored_sources():
            source.users.append(value)
    return sum(value.moved_bytes() for value in stored)
