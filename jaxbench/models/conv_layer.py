"""The convolution layer of the networks with batch norm."""

import functools
from typing import Any

import flax.linen as nn
import jax

from jaxbench.models.by_platform import train_by_platform

# He initialisation by fan-out keeps the variance of the gradients.
_HE_NORMAL_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv_layer(dtype: Any, param_dtype: Any) -> Any:
    """Return a 2-D convolution layer without bias, for batch norm to follow."""
    return functools.partial(
        nn.Conv,
        use_bias=False,
        padding="SAME",
        kernel_init=_HE_NORMAL_FAN_OUT,
        conv_general_dilated=convolve,
        dtype=dtype,
        param_dtype=param_dtype,
    )


def convolve(
    x_BxHxWxC: jax.Array, kernel: jax.Array, strides: Any, padding: Any, **how: Any
) -> jax.Array:
    """Compute `jax.lax.conv_general_dilated`; on CPUs train a 1x1 kernel as a product of matrices.

    For a kernel's gradient XLA:CPU copies the images into an order with the batch last. In
    ResNet-50 these copies took a quarter of the step, and a product needs none of them
    (docs/decisions/versus-pytorch.md).

    Args:
      x_BxHxWxC: images.
      kernel: of shape (height, width, C, F).
      strides, padding, **how: as of `conv_general_dilated`, as flax calls it.

    Returns:
      The output, of shape (B, height, width, F).
    """

    def convolution(x_BxHxWxC, kernel):
        return jax.lax.conv_general_dilated(x_BxHxWxC, kernel, strides, padding, **how)

    def product(x_BxHxWxC, kernel_1x1xCxF):
        rows, columns = strides
        x_BxhxwxC = x_BxHxWxC[:, ::rows, ::columns]
        # As one matrix: XLA transposes the operands of a product over several axes.
        x_NxC = x_BxhxwxC.reshape(-1, x_BxhxwxC.shape[-1])
        return (x_NxC @ kernel_1x1xCxF[0, 0]).reshape(*x_BxhxwxC.shape[:3], -1)

    if kernel.shape[:3] != (1, 1, x_BxHxWxC.shape[-1]) or padding != "SAME":
        return convolution(x_BxHxWxC, kernel)
    return train_by_platform(convolution, cpu=product, default=convolution)(x_BxHxWxC, kernel)
