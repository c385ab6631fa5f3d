"""Layers that the networks share."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.models.batch_norm import BatchNorm

# He initialisation by fan-out keeps the variance of the gradients.
_HE_NORMAL_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv_layer(dtype: Any, param_dtype: Any) -> Any:
    """Return a 2-D convolution layer without bias, for batch norm to follow."""
    return functools.partial(
        nn.Conv,
        use_bias=False,
        padding="SAME",
        kernel_init=_HE_NORMAL_FAN_OUT,
        dtype=dtype,
        param_dtype=param_dtype,
    )


def norm_layer(dtype: Any, param_dtype: Any, axis_name: str | None, train: bool) -> Any:
    """Return a batch norm layer with arithmetic in at least float32 and output in `dtype`."""
    return functools.partial(
        BatchNorm,
        use_running_average=not train,
        momentum=0.9,
        epsilon=1e-5,
        dtype=dtype,
        param_dtype=param_dtype,
        axis_name=axis_name,
    )


def classify(features_BxF: jax.Array, num_classes: int, param_dtype: Any) -> jax.Array:
    """Apply the last dense layer, in `param_dtype`: half-precision logits cost accuracy.

    For use inside a compact module. Returns logits_BxK.
    """
    head = nn.Dense(num_classes, dtype=param_dtype, param_dtype=param_dtype, name="head")
    return head(features_BxF.astype(param_dtype))


def dropout(x_Bx: jax.Array, rate: float, keys_B: jax.Array, layer: int) -> jax.Array:
    """Set a share `rate` of the values to 0 and scale the others up.

    The mask depends on the example and the layer alone: not on the device, nor on the example's
    place in the batch.

    Args:
      x_Bx: activations, examples first.
      rate: the share to drop.
      keys_B: a random key for each example.
      layer: the index of the dropout layer in the network.
    """

    def one(key, x):
        keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))

    return jax.vmap(one)(keys_B, x_Bx)
