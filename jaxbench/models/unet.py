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
import functools

import flax.linen as nn
import jax.numpy as jnp

from jaxbench.config.fields import choice, number
from jaxbench.config.model import ModelConfig
from jaxbench.errors import BadInput
from jaxbench.models.layers import Network, classify, max_pool


@dataclasses.dataclass(kw_only=True)
class UNetConfig(ModelConfig):
    """Configuration of `UNet`.

    Attributes:
      width: Channels of the first level; each level down has twice as many.
      levels: Levels down; each halves height and width.
      upsampling: How a level doubles height and width. resize: repeat each pixel 2x2, then convolve
        2x2. transposed: a transposed 2x2 convolution with stride 2, which some backends compile for
        minutes.
      norm: What follows each 3x3 convolution. batch: batch norm, and the convolution has no bias.
        none: nothing, as in the 2015 paper.
    """

    width: int = number(64, low=1)
    levels: int = number(4, low=1, high=8)
    upsampling: str = choice("resize", "transposed")
    norm: str = choice("batch", "none")

    def create(self, *, num_classes, **options):
        if num_classes != 2:
            raise BadInput(f"UNet separates 2 classes, not {num_classes}")
        return UNet(config=self, **options)


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


class UNet(Network):
    """Images in, logits_BxHxW in `param_dtype` out; arguments as in `WideResNet`."""

    config: UNetConfig

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        width, levels = self.config.width, self.config.levels
        size, step = images_BxHxWxC.shape[1:3], 2**levels
        if size[0] % step or size[1] % step:
            raise ValueError(f"both sides of {size[0]}x{size[1]} must be multiples of {step}")

        def block(channels, name):
            options = {"norm": self.config.norm, "norm_axis": self.norm_axis, **self.types}
            return DoubleConv(channels=channels, name=name, **options)

        x, kept = images_BxHxWxC, []
        for level in range(levels):
            x = block(width * 2**level, f"down{level + 1}")(x, train)
            kept.append(x)
            x = max_pool(x, window=2, stride=2)
        x = block(width * 2**levels, "bottom")(x, train)
        for level in reversed(range(levels)):
            channels = width * 2**level
            if self.config.upsampling == "transposed":
                resize = functools.partial(nn.ConvTranspose, strides=(2, 2))
            else:
                # Each pixel four times: cheaper than jax.image.resize, and the same as "nearest".
                x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
                resize = nn.Conv
            x = resize(channels, (2, 2), name=f"up{level + 1}_resize", **self.types)(x)
            x = block(channels, f"up{level + 1}")(jnp.concatenate([kept[level], x], -1), train)
        return classify(x, 1, self.param_dtype)[..., 0]
