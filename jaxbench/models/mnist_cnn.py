"""The small CNN for MNIST that Keras ships as an example.

Convolutions of 32 and 64 channels, 3x3 without padding, 2x2 max-pooling, dropout 0.25, a dense
layer of 128, dropout 0.5, a dense layer of 10: 1,199,882 parameters at 28x28x1.
"""

import dataclasses

import flax.linen as nn

from jaxbench.config.fields import number
from jaxbench.config.model import ModelConfig
from jaxbench.models.layers import Network, classify, dropout, max_pool


@dataclasses.dataclass(kw_only=True)
class MnistCnnConfig(ModelConfig):
    """Configuration of `MnistCnn`.

    Attributes:
      channels: Channels of each convolution.
      hidden: Width of the hidden dense layer.
      dropout: Dropout rates after the pooling and after the hidden layer.
    """

    channels: tuple[int, ...] = number((32, 64), low=1)
    hidden: int = number(128, low=1)
    dropout: tuple[float, ...] = number((0.25, 0.5), low=0, high=0.99)

    def create(self, **options):
        return MnistCnn(config=self, **options)


class MnistCnn(Network):
    """Images in, logits out; arguments and result as in `WideResNet`. `keys_B` drives dropout."""

    config: MnistCnnConfig
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        config = self.config
        types = self.types | {"kernel_init": nn.initializers.glorot_uniform()}
        x = images_BxHxWxC
        for layer, channels in enumerate(config.channels, 1):
            x = nn.relu(nn.Conv(channels, (3, 3), padding="VALID", name=f"conv{layer}", **types)(x))
        x = max_pool(x, window=2, stride=2)
        if train:
            x = dropout(x, config.dropout[0], keys_B, layer=0)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(config.hidden, name="hidden", **types)(x))
        if train:
            x = dropout(x, config.dropout[1], keys_B, layer=1)
        return classify(x, self.num_classes, self.param_dtype)
