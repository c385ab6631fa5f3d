"""Layers that the networks share."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.aliases import DType
from jaxbench.models.batch_norm import BatchNorm


class Network(nn.Module):
    """Base of the networks and their blocks.

    Attributes:
      dtype: what they compute in.
      param_dtype: what parameters and batch norm's statistics are stored in.
      norm_axis: the mesh axis over which batch norm averages; None for each device by itself.
    """

    dtype: DType
    param_dtype: DType
    norm_axis: str | None

    @property
    def types(self) -> dict[str, Any]:
        """The two types, for a layer."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def layers(self, train: bool) -> tuple[Any, Any]:
        """Return a 2-D convolution layer without bias, and the batch norm layer to follow it."""
        conv = functools.partial(
            nn.Conv,
            use_bias=False,
            padding="SAME",
            # He initialisation by fan-out keeps the variance of the gradients.
            kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"),
            conv_general_dilated=_conv_general_dilated,
            **self.types,
        )
        norm = functools.partial(
            BatchNorm, use_running_average=not train, axis_name=self.norm_axis, **self.types
        )
        return conv, norm


def _conv_general_dilated(x_BxHxWxC, kernel, strides, padding, **options):
    """Convolve, on CPUs with a 1x1 kernel as a product of matrices.

    For a kernel's gradient XLA:CPU copies the images into an order with the batch last, a large
    part of ResNet-50's step (docs/decisions/step.md, D27).
    """

    def convolution(x_BxHxWxC, kernel):
        return jax.lax.conv_general_dilated(x_BxHxWxC, kernel, strides, padding, **options)

    def product(x_BxHxWxC, kernel_1x1xCxF):
        rows, columns = strides
        x_BxhxwxC = x_BxHxWxC[:, ::rows, ::columns]
        # As one matrix: XLA transposes the operands of a product over several axes.
        x_NxC = x_BxhxwxC.reshape(-1, x_BxhxwxC.shape[-1])
        return (x_NxC @ kernel_1x1xCxF[0, 0]).reshape(*x_BxhxwxC.shape[:3], -1)

    if kernel.shape[:3] != (1, 1, x_BxHxWxC.shape[-1]) or padding != "SAME":
        return convolution(x_BxHxWxC, kernel)
    return jax.lax.platform_dependent(x_BxHxWxC, kernel, cpu=product, default=convolution)


def classify(features_Bx: jax.Array, num_classes: int, param_dtype: DType, **options) -> jax.Array:
    """Apply the last dense layer, in `param_dtype`: half-precision logits cost accuracy.

    For use inside a compact module. `options` are those of `nn.Dense`. Returns logits_BxK.
    """
    types: dict[str, Any] = {"dtype": param_dtype, "param_dtype": param_dtype}
    return nn.Dense(num_classes, name="head", **types, **options)(features_Bx.astype(param_dtype))


def dropout(x_Bx: jax.Array, rate: float, keys_B: jax.Array, layer: int) -> jax.Array:
    """Set a fraction `rate` of the values to 0 and scale the others up.

    The mask depends only on the example's key and the layer's index: not on the device, nor on the
    example's position in the batch.
    """

    def one(key, x):
        # float32 by name: under fp64 the default would draw other bits.
        kept = jnp.float32(1 - rate)
        keep = jax.random.bernoulli(jax.random.fold_in(key, layer), kept, x.shape)
        return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))

    return jax.vmap(one)(keys_B, x_Bx)


def max_pool(x_BxHxWxC: jax.Array, window: int, stride: int, padding: int = 0) -> jax.Array:
    """Return the maximum of each square window; padding is never the maximum.

    The gradient goes to the first maximum of a window, row by row. XLA's gradient searches for each
    maximum again and scatters; TPUs have an instruction for that, but GPUs write four int32 arrays.
    So other platforms keep the position of each maximum in 8 bits, and each pixel sums over the
    windows that contain it (docs/decisions/step.md, D19). A window's side is at most 16.
    """
    if min(x_BxHxWxC.shape[1:3]) + 2 * padding < window:
        raise ValueError(f"no {window}x{window} pixels are left to pool of {x_BxHxWxC.shape[1:3]}")
    sides = ((padding, padding), (padding, padding))

    def scattering(x):
        return nn.max_pool(x, (window, window), (stride, stride), sides)

    def forward(x):
        margins = [(low, high, 0) for low, high in ((0, 0), *sides, (0, 0))]
        padded = jax.lax.pad(x, jnp.array(-jnp.inf, x.dtype), margins)
        ends = [size - window + 1 for size in padded.shape[1:3]]
        # For each position in a window, the value that each window has there.
        largest, *others = [
            padded[:, top : top + ends[0] : stride, left : left + ends[1] : stride]
            for top in range(window)
            for left in range(window)
        ]
        position = jnp.zeros(largest.shape, jnp.uint8)
        for index, part in enumerate(others, 1):
            position = jnp.where(part > largest, jnp.uint8(index), position)
            largest = jnp.maximum(largest, part)
        return largest, position

    def backward(position, dy):
        dtype = jnp.promote_types(dy.dtype, jnp.float32)
        dx: Any = 0
        for index in range(window**2):
            # Spread to the pixels at this position of the windows; negative margins cut off.
            margins = [(0, 0, 0)]
            for axis, first in enumerate(divmod(index, window), 1):
                end = (dy.shape[axis] - 1) * stride + first - padding + 1
                margins.append((first - padding, x_BxHxWxC.shape[axis] - end, stride - 1))
            part = jnp.where(position == index, dy, 0).astype(dtype)
            dx += jax.lax.pad(part, jnp.zeros((), dtype), [*margins, (0, 0, 0)])
        return (dx.astype(dy.dtype),)

    gathering = jax.custom_vjp(lambda x: forward(x)[0])
    gathering.defvjp(forward, backward)
    return jax.lax.platform_dependent(x_BxHxWxC, tpu=scattering, default=gathering)


def keep_products_and_sums(primitive: Any, *_: Any, **__: Any) -> bool:
    """Return whether the backward pass keeps a primitive's output; it computes all others again.

    A policy for `jax.checkpoint`, for `Config.remat=save_dots`. Batch norm takes its statistics
    from sums, over the batch and over devices. Under fsdp no gathered parameter is kept: it is
    gathered again.
    """
    products = ("conv_general_dilated", "dot_general", "dot_product_attention_fwd_wrapper")
    return primitive.name in (*products, "reduce_sum", "psum")
