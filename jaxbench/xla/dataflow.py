"""Follow values through a function's jaxpr: from what is known of its inputs to its outputs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Literal

from jaxbench.xla.flops import inner_jaxprs


class Dataflow(NamedTuple):
    """What is known of a value follows from what is known of those that it is computed from.

    Attributes:
      merge: joins what is known of several values; of none, it returns what a constant is.
      rule: (equation, inputs) -> what is known of each of its outputs; None has the equation
        treated like all others: its own jaxprs are followed, or else its inputs merged.
    """

    merge: Callable[[Sequence[Any]], Any]
    rule: Callable[[Any, list[Any]], list[Any] | None]

    def outputs(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return what is known of each output of a jaxpr, given the same of its inputs."""
        known, constant = dict(zip(jaxpr.invars, inputs, strict=True)), self.merge(())

        def read(value: Any) -> Any:
            return constant if isinstance(value, Literal) else known.get(value, constant)

        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [read(value) for value in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(value) for value in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        outputs = self.rule(equation, inputs)
        if outputs is not None:
            return outputs
        name, params = equation.primitive.name, equation.params
        inner = list(inner_jaxprs(equation))
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
        """Return what is known of a loop's outputs; its carried values feed the next iteration."""
        while True:
            outputs = self.outputs(body, inputs)
            carried = slice(consts, consts + carries)
            pairs = zip(inputs[carried], outputs[:carries], strict=True)
            merged = [self.merge(pair) for pair in pairs]
            if merged == inputs[carried]:
                return outputs
            inputs = [*inputs[:consts], *merged, *inputs[carried.stop :]]
