"""Wide residual networks for small images (Zagoruyko and Komodakis, BMVC 2016).

Pre-activation blocks of two 3x3 convolutions; three groups of (depth - 4) / 6 blocks, 16, 32 and
64 channels times the width. WRN-28-10 for 10 classes has 36,479,194 parameters.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jaxbench.config.fields import number
from jaxbench.config.model import ModelConfig
from jaxbench.errors import BadInput
from jaxbench.models.layers import Network, classify


@dataclasses.dataclass(kw_only=True)
class WideResNetConfig(ModelConfig):
    """Configuration of `WideResNet`.

    Attributes:
      depth: Number of convolutions, projections included: 6n+4.
      width: Widening factor: the groups have 16, 32 and 64 channels times this.
    """

    depth: int = number(28, low=10)
    width: int = number(10, low=1)

    def validate(self) -> None:
        if (self.depth - 4) % 6:
            raise BadInput(f"model.depth={self.depth}: must be 6n+4, such as 10, 16, 22, 28 or 40")

    def create(self, **options):
        return WideResNet(config=self, **options)


class WideBlock(Network):
    """BN-ReLU-conv-BN-ReLU-conv plus the input, projected by a 1x1 if its shape changes."""

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x_BxHxWxC, train: bool):
        conv, norm = self.layers(train)
        strides = (self.stride, self.stride)

        y = norm(name="norm1", relu=True)(x_BxHxWxC)
        if x_BxHxWxC.shape[-1] == self.channels and self.stride == 1:
            shortcut = x_BxHxWxC
        else:
            # The projection reads the activated input, as in the paper's code.
            shortcut = conv(self.channels, (1, 1), strides, name="projection")(y)
        # One pixel on each side whatever the stride, as in the paper's code.
        y = conv(self.channels, (3, 3), strides, padding=((1, 1), (1, 1)), name="conv1")(y)
        y = norm(name="norm2", relu=True)(y)
        y = conv(self.channels, (3, 3), name="conv2")(y)
        return y + shortcut


class WideResNet(Network):
    """Images in, logits out.

    Args of the call:
      images_BxHxWxC: normalised images in `dtype`.
      train: batch statistics (and their update) if true, running averages if false.
      keys_B: a random key for each example, for networks that drop out; not read here.

    Returns:
      logits_BxK in `param_dtype`.
    """

    config: WideResNetConfig
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        conv, norm = self.layers(train)
        blocks_per_group = (self.config.depth - 4) // 6

        x = conv(16, (3, 3), name="stem")(images_BxHxWxC)
        for group, channels in enumerate((16, 32, 64)):
            for block in range(blocks_per_group):
                x = WideBlock(
                    channels=channels * self.config.width,
                    stride=2 if group > 0 and block == 0 else 1,
                    norm_axis=self.norm_axis,
                    **self.types,
                    name=f"group{group + 1}_block{block + 1}",
                )(x, train)
        x = norm(name="norm", relu=True)(x)
        features_BxF = jnp.mean(x.astype(self.param_dtype), axis=(1, 2))
        return classify(features_BxF, self.num_classes, self.param_dtype)
