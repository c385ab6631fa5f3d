"""ResNet-50 for ImageNet (He et al. 2016) in its v1.5 form: the 3x3 convolution strides.

    stem  7x7, 64, stride 2; 3x3 max-pool, stride 2
    four stages of (3, 4, 6, 3) bottleneck blocks: 1x1, 3x3, 1x1 with 64, 128, 256, 512 channels
    inside and four times as many outside
    global average pool, dense 1000: 25,557,032 parameters

Padding is that of torchvision's network, so that its weights give its outputs.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jaxbench.config.fields import number
from jaxbench.config.model import ModelConfig
from jaxbench.models.layers import Network, classify, max_pool


@dataclasses.dataclass(kw_only=True)
class ResNetConfig(ModelConfig):
    """Configuration of `ResNet`.

    Attributes:
      stages: Bottleneck blocks of each stage: (3,4,6,3) is ResNet-50, (3,4,23,3) ResNet-101.
      width: Channels inside the first stage's blocks; each stage doubles them.
    """

    stages: tuple[int, ...] = number((3, 4, 6, 3), low=1)
    width: int = number(64, low=1)

    def create(self, **options):
        return ResNet(config=self, **options)


class Bottleneck(Network):
    """1x1, 3x3, 1x1, each with batch norm, plus the input, projected if its shape changes."""

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x_BxHxWxC, train: bool):
        conv, norm = self.layers(train)
        strides = (self.stride, self.stride)

        y = norm(name="norm1", relu=True)(conv(self.channels, (1, 1), name="conv1")(x_BxHxWxC))
        # One pixel on each side whatever the stride; "SAME" would pad a stride of 2 on one.
        y = conv(self.channels, (3, 3), strides, padding=((1, 1), (1, 1)), name="conv2")(y)
        y = norm(name="norm2", relu=True)(y)
        y = conv(4 * self.channels, (1, 1), name="conv3")(y)
        # The block starts as the identity (Goyal et al. 2017).
        y = norm(name="norm3", scale_init=nn.initializers.zeros)(y)
        shortcut = x_BxHxWxC
        if shortcut.shape != y.shape:
            shortcut = conv(4 * self.channels, (1, 1), strides, name="projection")(shortcut)
            shortcut = norm(name="projection_norm")(shortcut)
        return nn.relu(y + shortcut)


class ResNet(Network):
    """Images in, logits out; arguments and result as in `WideResNet`."""

    config: ResNetConfig
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        config = self.config
        conv, norm = self.layers(train)

        x = conv(config.width, (7, 7), (2, 2), padding=((3, 3), (3, 3)), name="stem")(
            images_BxHxWxC
        )
        x = norm(name="stem_norm", relu=True)(x)
        x = max_pool(x, window=3, stride=2, padding=1)
        for stage, num_blocks in enumerate(config.stages):
            for block in range(num_blocks):
                x = Bottleneck(
                    channels=config.width * 2**stage,
                    stride=2 if stage > 0 and block == 0 else 1,
                    norm_axis=self.norm_axis,
                    **self.types,
                    name=f"stage{stage + 1}_block{block + 1}",
                )(x, train)
        features_BxF = jnp.mean(x.astype(self.param_dtype), axis=(1, 2))
        return classify(features_BxF, self.num_classes, self.param_dtype)
