"""The U-Net (Ronneberger, Fischer and Brox, MICCAI 2015) for binary segmentation.

    down   64, 128, 256, 512: two 3x3 convolutions each, then 2x2 max-pooling
    bottom 1024: two 3x3 convolutions
    up     512, 256, 128, 64: twice the size with half the channels (2x2), the same level's
           downward output beside it, two 3x3 convolutions
    head   1x1 to one logit a pixel

Convolutions are padded, so that the output has the input's size, as in nearly every use of it.
Without batch norm and for one channel that is 31,030,593 parameters, with either upsampling.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.config import ModelConfig
from jaxbench.errors import BadInput
from jaxbench.fields import choice, number
from jaxbench.models.by_platform import train_by_platform
from jaxbench.models.layers import Network, max_pool


@dataclasses.dataclass(kw_only=True)
class UNetConfig(ModelConfig):
    width: int = number(
        64, low=1, help="Channels of the first level; each level down has twice as many."
    )
    levels: int = number(4, low=1, high=8, help="Levels down; each halves height and width.")
    upsampling: str = choice(
        "resize",
        "transposed",
        help="How a level doubles height and width. resize: repeat each pixel 2x2, then convolve "
        "2x2. transposed: a transposed 2x2 convolution with stride 2, which some backends compile "
        "for minutes.",
    )
    norm: str = choice(
        "batch",
        "none",
        help="What follows each 3x3 convolution. batch: batch norm, and the convolution has no "
        "bias. none: nothing, as in the 2015 paper.",
    )

    def create(self, *, num_classes, **given):
        if num_classes != 2:
            raise BadInput(f"UNet tells 2 classes apart, not {num_classes}")
        return UNet(**vars(self), **given)


class DoubleConv(Network):
    """Two 3x3 convolutions, each with ReLU and, if `norm` is `batch`, batch norm."""

    channels: int
    norm: str

    @nn.compact
    def __call__(self, x_BxHxWxC, train: bool):
        conv, norm = self.layers(train)
        x = x_BxHxWxC
        for number_ in (1, 2):
            use_bias = self.norm == "none"
            x = conv(self.channels, (3, 3), use_bias=use_bias, name=f"conv{number_}")(x)
            x = norm(name=f"norm{number_}", relu=True)(x) if self.norm == "batch" else nn.relu(x)
        return x


class ResizeConv(nn.Module):
    """A 2x2 convolution of the image with each pixel repeated 2x2; variables as of `nn.Conv`."""

    channels: int
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x_BxHxWxC: jax.Array) -> jax.Array:
        shape = (2, 2, x_BxHxWxC.shape[-1], self.channels)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)
        bias_F = self.param("bias", nn.initializers.zeros, (self.channels,), self.param_dtype)
        return _resize_conv(x_BxHxWxC.astype(self.dtype), kernel, bias_F.astype(self.dtype))


def _repeat_first(x_BxHxWxC, kernel_2x2xCxF, bias_F):
    # Each pixel four times: cheaper than jax.image.resize, and the same for "nearest".
    x_BxHxWxC = jnp.repeat(jnp.repeat(x_BxHxWxC, 2, axis=1), 2, axis=2)
    return _convolve(x_BxHxWxC, kernel_2x2xCxF) + bias_F


def _place_after(x_BxHxWxC, kernel_2x2xCxF, bias_F):
    """Return the same; the image of repeated pixels is never made.

    The outputs of even rows lie on one row of pixels, those of odd rows on two; columns alike. So
    one convolution of the small image gives the four outputs of each pixel, with as much arithmetic
    and a quarter of the input.
    """
    batch, height, width, inputs = x_BxHxWxC.shape
    channels = len(bias_F)
    # 2x2xCx2x2xF: the taps, then an output's place in its row and column.
    kernel = _for_even_and_odd(_for_even_and_odd(kernel_2x2xCxF, axis=1), axis=0)
    outputs = _convolve(x_BxHxWxC, kernel.reshape(2, 2, inputs, 4 * channels))
    # The bias before the pixels take their places: cuDNN adds it.
    outputs += jnp.tile(bias_F, 4)
    outputs = outputs.reshape(batch, height, width, 2, 2, channels).transpose(0, 1, 4, 2, 3, 5)
    return outputs.reshape(batch, 2 * height, 2 * width, channels)


def _convolve(x_BxHxWxC, kernel):
    return jax.lax.conv_general_dilated(
        x_BxHxWxC,
        kernel.astype(x_BxHxWxC.dtype),
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _for_even_and_odd(kernel: jax.Array, axis: int) -> jax.Array:
    """Return the taps of even and of odd outputs on an axis, in a new axis before the last."""
    first, second = jnp.split(kernel, 2, axis)
    even = jnp.concatenate([first + second, jnp.zeros_like(first)], axis)
    return jnp.stack([even, kernel], axis=-2)


# TPUs copy more to place the pixels than the repeated image takes.
_resize_conv = train_by_platform(_repeat_first, tpu=_repeat_first, default=_place_after)


class PixelLogit(nn.Module):
    """A 1x1 convolution to one channel in `param_dtype`: half-precision logits cost accuracy.

    Variables are those of `nn.Conv`.
    """

    param_dtype: Any

    @nn.compact
    def __call__(self, x_BxHxWxC: jax.Array) -> jax.Array:
        shape, zeros = (1, 1, x_BxHxWxC.shape[-1], 1), nn.initializers.zeros
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)
        bias = self.param("bias", zeros, (1,), self.param_dtype)
        return _pixel_logit(x_BxHxWxC.astype(self.param_dtype), kernel, bias)


def _pixel_convolution(x_BxHxWxC, kernel, bias):
    return _convolve(x_BxHxWxC, kernel)[..., 0] + bias


def _pixel_product(x_BxHxWxC, kernel, bias):
    return x_BxHxWxC @ kernel[0, 0, :, 0] + bias


# A product with a vector is fused on GPUs into what stands before it, so that no activation is
# written in the type of the parameters. TPUs fuse the convolution.
_pixel_logit = train_by_platform(_pixel_convolution, tpu=_pixel_convolution, default=_pixel_product)


class UNet(Network):
    """Images in, logits_BxHxW in `param_dtype` out; arguments as in `WideResNet`."""

    width: int
    levels: int
    upsampling: str
    norm: str

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        size, step = images_BxHxWxC.shape[1:3], 2**self.levels
        if size[0] % step or size[1] % step:
            raise ValueError(
                f"images of {size[0]}x{size[1]} cannot be halved {self.levels} times; "
                f"both sides must be multiples of {step}"
            )

        def block(channels, name):
            return DoubleConv(channels=channels, norm=self.norm, name=name, **self.numerics)

        x, kept = images_BxHxWxC, []
        for level in range(self.levels):
            x = block(self.width * 2**level, f"down{level + 1}")(x, train)
            kept.append(x)
            x = max_pool(x, window=2, stride=2)
        x = block(self.width * 2**self.levels, "bottom")(x, train)
        for level in reversed(range(self.levels)):
            channels = self.width * 2**level
            x = self._size_up(x, channels, f"up{level + 1}_resize")
            x = block(channels, f"up{level + 1}")(jnp.concatenate([kept[level], x], -1), train)
        return PixelLogit(self.param_dtype, name="head")(x)

    def _size_up(self, x_BxHxWxC: jax.Array, channels: int, name: str) -> jax.Array:
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype, "name": name}
        if self.upsampling == "transposed":
            return nn.ConvTranspose(channels, (2, 2), (2, 2), **types)(x_BxHxWxC)
        return ResizeConv(channels, **types)(x_BxHxWxC)
