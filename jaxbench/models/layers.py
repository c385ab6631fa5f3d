"""Layers that every network here uses the same way."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.models.batch_norm import BatchNorm

# Kaiming He's initialisation, counting outputs: it keeps the variance of the gradients.
_HE_NORMAL_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv_layer(dtype: Any, param_dtype: Any) -> Any:
    """A 2-D convolution without bias (batch norm follows and has one)."""
    return functools.partial(
        nn.Conv,
        use_bias=False,
        padding="SAME",
        kernel_init=_HE_NORMAL_FAN_OUT,
        dtype=dtype,
        param_dtype=param_dtype,
    )


def norm_layer(dtype: Any, param_dtype: Any, axis_name: str | None, train: bool) -> Any:
    """Batch norm: statistics and their arithmetic in at least float32, its output in `dtype`."""
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
    """The last dense layer, in `param_dtype`: half-precision logits cost accuracy.

    Call it inside a compact module. Returns logits_BxK.
    """
    head = nn.Dense(num_classes, dtype=param_dtype, param_dtype=param_dtype, name="head")
    return head(features_BxF.astype(param_dtype))


def dropout(x_Bx: jax.Array, rate: float, keys_B: jax.Array, layer: int) -> jax.Array:
    """Sets a share `rate` of the values to 0 and scales the others up.

    What is dropped is keyed by the example and the layer, so that an example loses the same values
    on whichever device and in whichever place of the batch it is met.

    Args:
      x_Bx: activations, examples first.
      rate: the share to drop.
      keys_B: one random key for each example.
      layer: tells the network's dropout layers apart.
    """

    def one(key, x):
        keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))

    return jax.vmap(one)(keys_B, x_Bx)
