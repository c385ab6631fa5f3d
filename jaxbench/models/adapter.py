"""Call any flax network in the way in which the steps call networks."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.aliases import DType, PyTree
from jaxbench.errors import BadInput

_COLLECTIONS = ("params", "batch_stats")


class NetworkAdapter:
    """A linen or NNX module that may do without `train`, `keys_B` and `labels_B`.

    Logits come back in at least `logits_dtype`. A layer that draws one dropout mask for a whole
    array, as `nn.Dropout` does, gets the key of the device's first example: unlike the masks of
    `jaxbench.models.layers.dropout`, its masks depend on how many devices share the batch. If
    `drawn`, the same network with narrower types, is given, it draws the parameters.

    Attributes:
      label: the name of its class.
      takes_train: whether the network can tell training from evaluation.
      takes_labels: whether its outputs depend on the labels, as those of a network that removes
        noise from examples of a class. It gets keys in evaluations too.
    """

    def __init__(self, module: nn.Module, logits_dtype: DType, drawn: nn.Module | None = None):
        self._module, self._logits_dtype, self._drawn = module, logits_dtype, drawn
        # Only a network of NNX has imported it: that would be a tenth of a start's imports.
        nnx = sys.modules.get("flax.nnx")
        self._is_nnx = nnx is not None and isinstance(module, nnx.bridge.ToLinen)
        cls = module.nnx_class if self._is_nnx else type(module)
        self.label = getattr(cls, "__qualname__", type(cls).__qualname__)
        # `nnx_class` may be a function: only a call shows which module it makes.
        self._takes = set() if self._is_nnx else _accepted_options(cls, self.label)
        # NNX modules have modes in place of `train`.
        self.takes_train = self._is_nnx or "train" in self._takes
        self.takes_labels = "labels_B" in self._takes

    def init(self, key: jax.Array, images_BxHxWxC: jax.Array) -> dict[str, Any]:
        """Return the variables, `params` and `batch_stats`.

        Raises:
          BadInput: it keeps others.
        """
        keys = {"params": key, "dropout": jax.random.fold_in(key, 1)}
        count = len(images_BxHxWxC)
        keys_B = jax.random.split(key, count) if self.takes_labels else None
        arguments = self._arguments(False, keys_B, jnp.zeros(count, jnp.int32))
        variables = self._module.init(keys, images_BxHxWxC, **arguments)
        if self._drawn is not None:
            drawn = self._drawn.init(keys, images_BxHxWxC, **arguments)
            variables = jax.tree.map(lambda leaf, of: of.astype(leaf.dtype), variables, drawn)
        others = [n for n in variables if n not in _COLLECTIONS and n != "intermediates"]
        if others:
            raise BadInput(
                f"{self.label} keeps variables in {', '.join(map(repr, others))}: a network may "
                "keep params and batch_stats"
            )
        return _map_keys({name: variables.get(name, {}) for name in _COLLECTIONS}, str)

    def apply(
        self, variables: dict[str, Any], images_BxHxWxC: jax.Array, **options: Any
    ) -> tuple[jax.Array, PyTree]:
        """Return outputs_Bx in at least `logits_dtype`, and batch_stats; see `forward`."""
        outputs_Bx, batch_stats = self.forward(variables, images_BxHxWxC, **options)
        dtype = jnp.promote_types(outputs_Bx.dtype, self._logits_dtype)
        return outputs_Bx.astype(dtype), batch_stats

    def forward(
        self,
        variables: dict[str, Any],
        images_BxHxWxC: jax.Array,
        *,
        train: bool,
        keys_B: jax.Array | None = None,
        labels_B: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        """Return outputs_Bx and the updated batch_stats, which an evaluation leaves as they are.

        Of whole arrays dropout draws by `dropout_key`; None takes the first of `keys_B`.
        """
        if self._is_nnx:  # numbers the items of a list
            variables = _map_keys(
                nn.meta.unbox(variables), lambda key: int(key) if key.isdecimal() else key
            )
        key = keys_B[0] if dropout_key is None and keys_B is not None else dropout_key
        rngs = {"dropout": key} if train and key is not None else {}
        outputs_Bx, updated = self._module.apply(
            variables,
            images_BxHxWxC,
            rngs=rngs,
            mutable=["batch_stats"] if train else [],
            **self._arguments(train, keys_B, labels_B),
        )
        if not isinstance(outputs_Bx, jax.Array):
            raise BadInput(
                f"{self.label} returns a {type(outputs_Bx).__name__}, expected one array of logits"
            )
        # An evaluation, and a network without batch norm, update no statistics.
        batch_stats = updated.get("batch_stats", variables["batch_stats"])
        return outputs_Bx, _map_keys(batch_stats, str)

    def _arguments(self, train: bool, keys_B: Any, labels_B: Any) -> dict[str, Any]:
        options = {"train": train, "keys_B": keys_B, "labels_B": labels_B}
        if self._is_nnx:
            del options["labels_B"]  # an evaluation could not tell whether it takes them
            return {"nnx_method": functools.partial(_call_in_mode, options, self.label)}
        return {name: value for name, value in options.items() if name in self._takes}


def _accepted_options(cls: type, label: str) -> set[str]:
    """Return which of `train`, `keys_B` and `labels_B` a module is called with.

    Raises:
      BadInput: it needs something else.
    """
    signature = inspect.signature(cls.__call__)
    takes = {"train", "keys_B", "labels_B"} & set(signature.parameters)
    try:
        signature.bind("self", "images", **dict.fromkeys(takes))
    except TypeError as error:
        raise BadInput(
            f"{label}.__call__: {error}; it is called with the images and, by name, train, "
            "keys_B and labels_B if it takes them"
        ) from error
    return takes


def _call_in_mode(options: dict[str, Any], label: str, module: Any, images_BxHxWxC: Any) -> Any:
    """Call an NNX module with the options that it takes, all layers in training or not."""
    takes = _accepted_options(type(module), label)
    module.train() if options["train"] else module.eval()
    return module(images_BxHxWxC, **{n: value for n, value in options.items() if n in takes})


def _map_keys(tree: PyTree, function: Callable[[str], str | int]) -> PyTree:
    """Return nested dicts with other keys."""
    if not isinstance(tree, dict):
        return tree
    return {function(key): _map_keys(value, function) for key, value in tree.items()}
