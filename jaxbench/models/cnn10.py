"""The ten-layer CNN of the 2019 comparison "RTX 2080 Ti SLI vs Google Colab TPU".

Three 3x3 convolutions of 64 channels at 32x32, three of 128 at 16x16, three of 256 at 8x8, one
dense layer: 1.9 M parameters. The article gives these widths and no more; batch norm after each
convolution, average pooling between the resolutions and global average pooling before the dense
layer are our reading, and the one that gives its 1.9 M.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jaxbench.config.fields import number
from jaxbench.config.model import ModelConfig
from jaxbench.models.layers import Network, classify


@dataclasses.dataclass(kw_only=True)
class Cnn10Config(ModelConfig):
    """Configuration of `Cnn10`.

    Attributes:
      channels: Channels at full, half and quarter resolution, three convolutions each.
    """

    channels: tuple[int, ...] = number((64, 128, 256), low=1)

    def create(self, **options):
        return Cnn10(config=self, **options)


class Cnn10(Network):
    """Images in, logits out; arguments and result as in `WideResNet`."""

    config: Cnn10Config
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        conv, norm = self.layers(train)

        x = images_BxHxWxC
        for stage, channels in enumerate(self.config.channels):
            if stage > 0:
                if min(x.shape[1:3]) < 2:
                    raise ValueError(f"no pixels are left to halve before stage {stage + 1}")
                x = nn.avg_pool(x, (2, 2), (2, 2))
            for layer in range(3):
                x = conv(channels, (3, 3), name=f"conv{stage + 1}_{layer + 1}")(x)
                x = norm(name=f"norm{stage + 1}_{layer + 1}", relu=True)(x)
        features_BxF = jnp.mean(x.astype(self.param_dtype), axis=(1, 2))
        return classify(features_BxF, self.num_classes, self.param_dtype)
