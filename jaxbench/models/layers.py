"""Layers that the networks share."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.models.batch_norm import BatchNorm
from jaxbench.models.conv_layer import conv_layer


class Network(nn.Module):
    """Base of the networks and their blocks.

    Attributes:
      dtype: what they compute in.
      param_dtype: what parameters and batch norm's statistics are stored in.
      norm_axis: the mesh axis over which batch norm averages; None for each device's own.
    """

    dtype: Any
    param_dtype: Any
    norm_axis: str | None

    @property
    def numerics(self) -> dict[str, Any]:
        """These attributes, for a block inside this one."""
        return {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "norm_axis": self.norm_axis,
        }

    def layers(self, train: bool) -> tuple[Any, Any]:
        """Return `conv_layer` and `norm_layer` of these types."""
        return (
            conv_layer(self.dtype, self.param_dtype),
            norm_layer(self.dtype, self.param_dtype, self.norm_axis, train),
        )


def norm_layer(dtype: Any, param_dtype: Any, axis_name: str | None, train: bool) -> Any:
    """Return a batch norm layer with arithmetic in at least float32 and output in `dtype`."""
    return functools.partial(
        BatchNorm,
        use_running_average=not train,
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

    The mask depends on the example's key and the layer's index alone: not on the device, nor on the
    example's place in the batch.
    """

    def one(key, x):
        # float32 by name: under fp64 the default would draw other bits.
        kept = jnp.float32(1 - rate)
        keep = jax.random.bernoulli(jax.random.fold_in(key, layer), kept, x.shape)
        return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))

    return jax.vmap(one)(keys_B, x_Bx)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(x_BxHxWxC: jax.Array, window: int, stride: int, padding: int = 0) -> jax.Array:
    """Return the maximum of each square window; padding is never the maximum.

    Its gradient is gathered, not scattered, but on TPUs. XLA differentiates a maximum over windows
    by finding the place of each maximum again, on GPUs as four numbers of 32 bits, and adding into
    an array of zeros there. Here the forward pass keeps the place, in 8 bits, and each pixel of the
    gradient sums over the windows that hold it. TPUs have an instruction for XLA's way, and would
    write each term of these sums.

    Where several values are the maximum, the gradient goes to the first of them, row by row. A
    window's side is at most 16; windows may reach `padding` pixels beyond each edge.
    """
    return _flax_max_pool(x_BxHxWxC, window, stride, padding)


def _flax_max_pool(x_BxHxWxC, window, stride, padding):
    sides = ((padding, padding), (padding, padding))
    return nn.max_pool(x_BxHxWxC, (window, window), (stride, stride), sides)


def _max_pool_forward(x_BxHxWxC, window, stride, padding):
    def on_tpu(x):
        largest = _flax_max_pool(x, window, stride, padding)
        return largest, jnp.zeros(largest.shape, jnp.uint8)

    find = functools.partial(_find_largest, window, stride, padding)
    largest, place = jax.lax.platform_dependent(x_BxHxWxC, tpu=on_tpu, default=find)
    # A platform keeps that one of both which it needs: XLA drops the other.
    return largest, (x_BxHxWxC, place)


def _max_pool_backward(window, stride, padding, kept, dy_Bxhxw):
    def on_tpu(x, place, dy):
        pool = functools.partial(_flax_max_pool, window=window, stride=stride, padding=padding)
        return jax.vjp(pool, x)[1](dy)[0]

    gather = functools.partial(_gather_gradient, window, stride, padding)
    return (jax.lax.platform_dependent(*kept, dy_Bxhxw, tpu=on_tpu, default=gather),)


def _find_largest(window, stride, padding, x_BxHxWxC):
    """Return the maximum of each window, and its place there."""
    batch, *sizes, channels = x_BxHxWxC.shape
    height, width = ((size + 2 * padding - window) // stride + 1 for size in sizes)
    margins = ((0, 0, 0), (padding, padding, 0), (padding, padding, 0), (0, 0, 0))
    padded = jax.lax.pad(x_BxHxWxC, jnp.array(-jnp.inf, x_BxHxWxC.dtype), margins)
    largest, place = None, None
    for number, (top, left) in enumerate(_places(window)):
        bottom, right = top + (height - 1) * stride + 1, left + (width - 1) * stride + 1
        corners = (0, top, left, 0), (batch, bottom, right, channels)
        part = jax.lax.slice(padded, *corners, (1, stride, stride, 1))
        if largest is None:
            largest, place = part, jnp.zeros(part.shape, jnp.uint8)
            continue
        place = jnp.where(part > largest, jnp.uint8(number), place)
        largest = jnp.maximum(largest, part)
    return largest, place


def _gather_gradient(window, stride, padding, x_BxHxWxC, place, dy_Bxhxw):
    dtype = jnp.promote_types(dy_Bxhxw.dtype, jnp.float32)
    total = 0
    for number, corner in enumerate(_places(window)):
        part = jnp.where(place == number, dy_Bxhxw, 0).astype(dtype)
        # Spread to the pixels at this place of the windows; negative margins cut off.
        margins = [(0, 0, 0)]
        for size, count, first in zip(x_BxHxWxC.shape[1:3], place.shape[1:3], corner, strict=True):
            before = first - padding
            margins.append((before, size - before - (count - 1) * stride - 1, stride - 1))
        total += jax.lax.pad(part, jnp.zeros((), dtype), [*margins, (0, 0, 0)])
    return total.astype(dy_Bxhxw.dtype)


def _places(window: int) -> list[tuple[int, int]]:
    return [(top, left) for top in range(window) for left in range(window)]


max_pool.defvjp(_max_pool_forward, _max_pool_backward)
