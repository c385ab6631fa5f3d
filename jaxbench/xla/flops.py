"""Count the arithmetic of a network by fixed rules, whatever the compiler does with it.

One multiply-accumulate (MAC) is two floating-point operations. Convolutions and matrix products
count; the rest (batch norm, ReLU, pooling) is left out, as in the published counts: ResNet-50 at
224x224 is 4.089 GMAC, WRN-28-10 at 32x32 5.243 GMAC. Padding pixels count like real ones.
"""

import math
from collections import Counter
from typing import Any

# A training step computes the forward pass, and in the backward pass the gradients with respect
# to activations and weights, each as much work again.
TRAINING_FLOPS_PER_MAC = 2 * 3


def count_macs(traced: Any) -> dict[str, int]:
    """Return {named scope: MACs} of a traced function.

    Args:
      traced: from `jax.jit(function).trace(...)`; the scope of a flax module is its path.
    """
    macs = Counter()
    _count(traced.jaxpr.jaxpr, "", macs)
    return dict(macs)


def _count(jaxpr, outer: str, macs: Counter) -> None:
    for equation in jaxpr.eqns:
        scope = "/".join(filter(None, (outer, str(equation.source_info.name_stack))))
        if equation.primitive.name == "conv_general_dilated":
            macs[scope] += _conv_macs(equation)
        elif equation.primitive.name == "dot_general":
            macs[scope] += _dot_macs(equation)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    _count(inner, scope, macs)


def _conv_macs(equation) -> int:
    kernel = equation.invars[1].aval.shape
    spec = equation.params["dimension_numbers"].rhs_spec
    # Each output value sums over the kernel's window and its input channels (of one group).
    window = math.prod(kernel[axis] for axis in spec[1:])
    return math.prod(equation.outvars[0].aval.shape) * window


def _dot_macs(equation) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return math.prod(equation.outvars[0].aval.shape) * depth
