"""VGG-16 (Simonyan and Zisserman 2014, configuration D) for images of 32x32.

Five stages of 3x3 convolutions with biases, 64-64, 128-128, 256-256-256, 512-512-512 and
512-512-512, each followed by 2x2 max-pooling; a dense layer of 512 with dropout 0.5; the classes.
Two dense layers of 4096, made for images of 224x224, become one of 512: 14,982,474 parameters for
32x32x3 and 10 classes.
"""

import dataclasses

import flax.linen as nn

from jaxbench.fields import choice, number
from jaxbench.model_config import ModelConfig
from jaxbench.models.layers import Network, classify, dropout, max_pool


@dataclasses.dataclass(kw_only=True)
class VggConfig(ModelConfig):
    stages: tuple[int, ...] = number((2, 2, 3, 3, 3), low=1, help="Convolutions of each stage.")
    width: int = number(
        64,
        low=1,
        help="Channels of the first stage; each stage doubles them, up to 8 times as many.",
    )
    hidden: int = number(512, low=1, help="Width of the hidden dense layer.")
    dropout: float = number(
        0.5, low=0, high=0.99, help="Dropout rate after the hidden dense layer."
    )
    norm: str = choice(
        "none",
        "batch",
        help="What follows each convolution. none: nothing, as in the 2014 paper. batch: batch "
        "norm.",
    )

    def create(self, **options):
        return Vgg(**vars(self), **options)


class Vgg(Network):
    """Images in, logits out; arguments and result as in `WideResNet`. `keys_B` drives dropout."""

    stages: tuple[int, ...]
    width: int
    hidden: int
    dropout: float
    norm: str
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        types = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            # Without batch norm a network so deep learns nothing from smaller values.
            "kernel_init": nn.initializers.he_normal(),
        }
        _, norm = self.layers(train)
        x = images_BxHxWxC
        for stage, num_convs in enumerate(self.stages, 1):
            channels = self.width * min(2 ** (stage - 1), 8)
            for number_ in range(1, num_convs + 1):
                x = nn.Conv(channels, (3, 3), name=f"conv{stage}_{number_}", **types)(x)
                name = f"norm{stage}_{number_}"
                x = norm(name=name, relu=True)(x) if self.norm == "batch" else nn.relu(x)
            x = max_pool(x, window=2, stride=2)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(self.hidden, name="hidden", **types)(x))
        if train and self.dropout:
            x = dropout(x, self.dropout, keys_B, layer=0)
        return classify(x, self.num_classes, self.param_dtype)
