"""Group a network's parameters by their shapes and by what its traced forward pass does with them.

Only the names `bias` and `scale` count: flax stacks such vectors (`nn.scan`, heads of attention).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.xla.jaxpr import MATMULS_AND_CONVS, Dataflow


class ParameterUses(NamedTuple):
    """What a forward pass does with its parameters, as paths such as `block1/mlp1/kernel`."""

    multiplied: frozenset[str]  # operands of a matrix product or a convolution
    looked_up: frozenset[str]  # tables from which the data choose rows
    last: frozenset[str]  # operands of the last product before the outputs


class _Value(NamedTuple):
    parameters: frozenset[str] | None = frozenset()  # it is computed from; None: from images too
    last: frozenset[str] = frozenset()  # the parameters of the last product that it comes from
    joined: frozenset[str] = frozenset()  # have joined it since, without a product


def path_text(path: tuple[Any, ...]) -> str:
    """Return a parameter's path in the tree as text."""
    return "/".join(key.key for key in path)


def read_uses(traced: Any) -> ParameterUses:
    """Return what the forward pass of a `NetworkTrace` does with its parameters."""
    multiplied, looked_up, union = set(), set(), frozenset().union

    def merge(values):
        parameters = [value.parameters for value in values]
        last = union(*(value.last for value in values))
        if None not in parameters:
            return _Value(union(*parameters), last)
        return _Value(None, last, union(*(v.joined | (v.parameters or set()) for v in values)))

    def rule(equation, inputs):
        name = equation.primitive.name
        if name == "gather" and inputs[0].parameters and inputs[1].parameters is None:
            looked_up.update(inputs[0].parameters)
            return [_Value(None)]
        weights = union(*(value.parameters or () for value in inputs))
        if name not in MATMULS_AND_CONVS or not weights:
            return None
        multiplied.update(weights)
        return [merge(inputs)._replace(last=weights, joined=frozenset())]

    jaxpr = traced.jaxpr.jaxpr
    # The key, the parameters, the running statistics, the image.
    leaves = jax.tree.leaves_with_path(traced.args_info[0][1])
    inputs = [_Value(), *(_Value(frozenset((path_text(path),))) for path, _ in leaves)]
    inputs += [_Value()] * (len(jaxpr.invars) - len(inputs) - 1) + [_Value(None)]
    outputs, *_ = Dataflow(merge, rule).outputs(jaxpr, inputs)
    last = outputs.last | outputs.joined
    return ParameterUses(frozenset(multiplied), frozenset(looked_up), last)


def is_matrix(path: tuple[Any, ...], leaf: Any) -> bool:
    """Return whether a parameter is a kernel or an embedding, not a bias or a norm's scale."""
    return leaf.ndim >= 2 and path[-1].key not in ("bias", "scale")


def parameter_groups(config: Config, params: Any, uses: Callable[[], ParameterUses]) -> Any:
    """Return each parameter's group, in a tree like that of the parameters.

    `bias` is every vector. A matrix is `head` if it makes the outputs, `kernel` if it multiplies
    activations, and otherwise `embedding`. Without a field that needs the distinction every matrix
    is a `kernel`, and `uses` is not called.

    Raises:
      BadInput: a field needs the head, and it cannot be determined.
    """
    leaves = jax.tree.leaves_with_path(params)
    matrices = {path_text(path) for path, leaf in leaves if is_matrix(path, leaf)}
    heads, kernels = frozenset(), matrices
    field, rate = "optimizer.name='muon'", config.optimizer.head_learning_rate
    if config.optimizer.name != "muon":
        field = f"optimizer.head_learning_rate={rate:g}" if rate else ""
    if field:
        used = uses()
        heads = used.last & matrices
        if len(heads) != 1:
            raise BadInput(
                f"{field} needs the kernel of the last layer, and the outputs of "
                f"{config.model.network_name} come from {' and '.join(sorted(heads)) or 'none'}"
            )
        if rate and config.model.trainable_epochs().get(*heads) == 0:
            raise BadInput(f"{field}: {config.model.network_name} does not train {min(heads)}")
        kernels = used.multiplied - used.looked_up

    def group(path, _):
        name = path_text(path)
        if name not in matrices:
            return "bias"
        return "head" if name in heads else "kernel" if name in kernels else "embedding"

    return jax.tree.map_with_path(group, params)
