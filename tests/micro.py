"""The smallest experiment that trains: one dense layer with batch norm on the digits.

For tests of everything around the network. It has what quickstart has (11 steps an epoch, 360
held-out images, a state with batch statistics and momentum) and compiles in a tenth of the time.
Hidden layers and dropout are there for tests that ask for them.
"""

import dataclasses

import flax.linen as nn

from jaxbench.config import Config, DataConfig, ModelConfig, OptimizerConfig
from jaxbench.models.layers import Network, classify, dropout


@dataclasses.dataclass(kw_only=True)
class MicroConfig(ModelConfig):
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0

    def create(self, **options):
        return Micro(**vars(self), **options)


class Micro(Network):
    hidden: tuple[int, ...]
    dropout: float
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        _, norm = self.layers(train)
        x = norm(name="norm")(images_BxHxWxC)
        for layer, width in enumerate(self.hidden, 1):
            # Of each pixel: batch norm is for images.
            x = nn.Dense(width, dtype=self.dtype, param_dtype=self.param_dtype)(x)
            x = nn.relu(norm(name=f"norm{layer}")(x))
        x = x.reshape(len(x), -1)
        if train and self.dropout:
            x = dropout(x, self.dropout, keys_B, 0)
        return classify(x, self.num_classes, self.param_dtype)


def get_config() -> Config:
    return Config(
        model=MicroConfig(),
        data=DataConfig(source="digits", image_shape=(8, 8, 1)),
        optimizer=OptimizerConfig(
            name="nesterov", learning_rate=0.05, weight_decay=5e-4, schedule="cosine"
        ),
        num_devices=2,
        batch_size=128,
        epochs=2,
    )
