"""VGG-16 (Simonyan and Zisserman 2014, configuration D) for images of 32x32.

Five stages of 3x3 convolutions with biases, 64-64, 128-128, 256-256-256, 512-512-512 and
512-512-512, each followed by 2x2 max-pooling; a dense layer of 512 with dropout 0.5; the classes.
Two dense layers of 4096, made for images of 224x224, become one of 512: 14,982,474 parameters for
32x32x3 and 10 classes.
"""

import dataclasses

import flax.linen as nn

from jaxbench.config.fields import choice, number
from jaxbench.config.model import ModelConfig
from jaxbench.models.layers import Network, classify, dropout, max_pool


@dataclasses.dataclass(kw_only=True)
class VggConfig(ModelConfig):
    """Configuration of `Vgg`.

    Attributes:
      stages: Convolutions of each stage.
      width: Channels of the first stage; each stage doubles them, up to 8 times as many.
      hidden: Width of the hidden dense layer.
      dropout: Dropout rate after the hidden dense layer.
      norm: What follows each convolution. none: nothing, as in the 2014 paper. batch: batch norm.
    """

    stages: tuple[int, ...] = number((2, 2, 3, 3, 3), low=1)
    width: int = number(64, low=1)
    hidden: int = number(512, low=1)
    dropout: float = number(0.5, low=0, high=0.99)
    norm: str = choice("none", "batch")

    def create(self, **options):
        return Vgg(config=self, **options)


class Vgg(Network):
    """Images in, logits out; arguments and result as in `WideResNet`. `keys_B` drives dropout."""

    config: VggConfig
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        config = self.config
        # Without batch norm a network so deep learns nothing from smaller values.
        types = self.types | {"kernel_init": nn.initializers.he_normal()}
        _, norm = self.layers(train)
        x = images_BxHxWxC
        for stage, num_convs in enumerate(config.stages, 1):
            channels = config.width * min(2 ** (stage - 1), 8)
            for number_ in range(1, num_convs + 1):
                x = nn.Conv(channels, (3, 3), name=f"conv{stage}_{number_}", **types)(x)
                name = f"norm{stage}_{number_}"
                x = norm(name=name, relu=True)(x) if config.norm == "batch" else nn.relu(x)
            x = max_pool(x, window=2, stride=2)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(config.hidden, name="hidden", **types)(x))
        if train and config.dropout:
            x = dropout(x, config.dropout, keys_B, layer=0)
        return classify(x, self.num_classes, self.param_dtype)
