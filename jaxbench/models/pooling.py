"""Max-pooling whose gradient is gathered, not scattered.

XLA differentiates a maximum over windows by finding the place of each maximum again, as four
numbers of 32 bits, and adding into an array of zeros there. Here the forward pass keeps the place,
in 8 bits, and each pixel of the gradient sums over the windows that hold it.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(x_BxHxWxC: jax.Array, window: int, stride: int, padding: int = 0) -> jax.Array:
    """Return the maximum of each square window; padding is never the maximum.

    Where several values are the maximum, the gradient goes to the first of them, row by row.

    Args:
      x_BxHxWxC: activations.
      window: the side of a window, at most 16.
      stride: between windows.
      padding: pixels that windows may reach beyond each edge.
    """
    sides = ((padding, padding), (padding, padding))
    return nn.max_pool(x_BxHxWxC, (window, window), (stride, stride), sides)


def _forward(x_BxHxWxC, window, stride, padding):
    batch, *sizes, channels = x_BxHxWxC.shape
    height, width = ((size + 2 * padding - window) // stride + 1 for size in sizes)
    margins = ((0, 0, 0), (padding, padding, 0), (padding, padding, 0), (0, 0, 0))
    padded = jax.lax.pad(x_BxHxWxC, jnp.array(-jnp.inf, x_BxHxWxC.dtype), margins)
    largest, place = None, None
    for number, (top, left) in enumerate(_places(window)):
        limits = (
            batch,
            top + (height - 1) * stride + 1,
            left + (width - 1) * stride + 1,
            channels,
        )
        part = jax.lax.slice(padded, (0, top, left, 0), limits, (1, stride, stride, 1))
        if largest is None:
            largest, place = part, jnp.zeros(part.shape, jnp.uint8)
            continue
        place = jnp.where(part > largest, jnp.uint8(number), place)
        largest = jnp.maximum(largest, part)
    return largest, (place, sizes)


def _backward(window, stride, padding, kept, dy_Bxhxw):
    place, sizes = kept
    dtype = jnp.promote_types(dy_Bxhxw.dtype, jnp.float32)
    total = 0
    for number, corner in enumerate(_places(window)):
        part = jnp.where(place == number, dy_Bxhxw, 0).astype(dtype)
        # Spread to the pixels at this place of the windows; negative margins cut off.
        margins = [(0, 0, 0)]
        for size, count, first in zip(sizes, place.shape[1:3], corner, strict=True):
            before = first - padding
            margins.append((before, size - before - (count - 1) * stride - 1, stride - 1))
        total += jax.lax.pad(part, jnp.zeros((), dtype), [*margins, (0, 0, 0)])
    return (total.astype(dy_Bxhxw.dtype),)


def _places(window: int) -> list[tuple[int, int]]:
    return [(top, left) for top in range(window) for left in range(window)]


max_pool.defvjp(_forward, _backward)
