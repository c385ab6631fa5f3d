"""Count the bytes of activations that training must move if none of them stays on the chip.

The rules are those of a step in which convolutions and matrix products are the kernels, and all
else is fused into them: what stands before a product into its reads, what follows into its write.
No product is computed twice, and no whole activation stays in a cache. Then memory holds what
products write, and the values behind them that are smaller than what they are computed from (pooled
activations, sums of two) where a product reads them or batch norm averages them. Each of them is

  written once, and the other terms of a sum are read for it;
  read twice by each product that takes it: forward, and for the kernel's gradient;
  written once as a gradient, if a product takes it; each further gradient that is added to that one
    is read;
  read once as a gradient by either gradient of the product that it comes from; the first product of
    a network has only one, its kernel's. Where the gradient follows from a smaller one (of a
    pooled activation), that one is read;
  read three times more where batch norm takes its statistics: for the sums of the backward pass,
    then by either gradient of the product behind.

So a convolution between others of its size, with batch norm and ReLU, moves nine times its output.
A ReLU's mask and the place of a maximum count nothing: they can be bits. Statistics count nothing.
Not counted at all: networks with a product of two activations (attention) or with a loop.
"""

import dataclasses
from typing import Any

from jax.extend.core import Literal

from jaxbench.xla.flops import CUDNN_ATTENTION, inner_jaxprs

_PRODUCTS = ("conv_general_dilated", "dot_general")
_UNKNOWN = ("scan", "while", "cond", CUDNN_ATTENTION)


class _NotCounted(Exception):
    """The rules do not say what an equation moves."""


@dataclasses.dataclass(eq=False)
class _Value:
    """A value that memory may hold.

    Attributes:
      num_bytes: its size.
      sources: the values that it is computed from, but for a product's output and the images.
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
        found = set()
        for source in self.sources:
            found |= {source} if source.is_stored else source.stored_sources()
        return found

    def gradient_bytes(self) -> int:
        """Return what must be read to know its gradient."""
        if self.readers or not self.users:
            return self.num_bytes
        return min(self.num_bytes, sum(user.gradient_bytes() for user in self.users))

    def moved_bytes(self) -> int:
        moved = 2 * self.readers
        moved += bool(self.sources) or self.has_gradient  # all but the images are written
        if self.has_gradient:
            moved += self.readers
            moved += self.normalized * (1 + (self.gradients or 2))
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
    images = _Value(_num_bytes(jaxpr.invars[-1]))
    values = [images]
    nothing = [frozenset()] * (len(jaxpr.invars) - 1)
    try:
        _walk(jaxpr, [*nothing, frozenset([images])], values)
    except _NotCounted:
        return None
    stored = [value for value in values if value.is_stored]
    for value in stored:
        for source in value.stored_sources():
            source.users.append(value)
    return sum(value.moved_bytes() for value in stored)


def _walk(jaxpr: Any, given: list[frozenset], values: list[_Value]) -> list[frozenset]:
    """Follow the images through a jaxpr; return the values that each output is computed from.

    Args:
      jaxpr: the equations.
      given: the values that each input is computed from, none of what no image changes.
      values: gets the values that memory may hold.
    """
    known = dict(zip(jaxpr.invars, given, strict=True))

    def origin(variable: Any) -> frozenset:
        return frozenset() if isinstance(variable, Literal) else known.get(variable, frozenset())

    for equation in jaxpr.eqns:
        origins = [origin(variable) for variable in equation.invars]
        known.update(zip(equation.outvars, _origins(equation, origins, values), strict=True))
    return [origin(variable) for variable in jaxpr.outvars]


def _origins(equation: Any, given: list[frozenset], values: list[_Value]) -> list[frozenset]:
    """Return the values that each output of an equation is computed from."""
    name, sources = equation.primitive.name, frozenset().union(*given)
    if not sources:
        return [sources] * len(equation.outvars)
    if name in _PRODUCTS:
        return [_product(equation, given, values)]
    inner = list(inner_jaxprs(equation))
    if name in _UNKNOWN or len(inner) > 1:
        raise _NotCounted
    if inner and len(inner[0].invars) == len(given):
        return _walk(inner[0], given, values)
    if name.startswith("reduce_") and 0 in equation.params.get("axes", ()):
        for source in sources:  # statistics of the batch
            source.normalized = True
        return [frozenset()] * len(equation.outvars)
    found = []
    for variable in equation.outvars:
        smaller = _num_bytes(variable) < sum(source.num_bytes for source in sources)
        if smaller:
            has_gradient = any(source.has_gradient for source in sources)
            values.append(_Value(_num_bytes(variable), sources, has_gradient=has_gradient))
        found.append(frozenset(values[-1:]) if smaller else sources)
    return found


def _product(equation: Any, given: list[frozenset], values: list[_Value]) -> frozenset:
    if all(given):
        raise _NotCounted
    sources = frozenset().union(*given)
    for source in sources:
        source.readers += 1
    gradients = 1 + any(source.has_gradient for source in sources)
    num_bytes = _num_bytes(equation.outvars[0])
    values.append(_Value(num_bytes, gradients=gradients, has_gradient=True))
    return frozenset(values[-1:])


def _num_bytes(variable: Any) -> int:
    return variable.aval.size * variable.aval.dtype.itemsize
