"""The smallest experiment that trains, one dense layer with batch norm on the digits; networks.

For tests of everything around the network. It has what quickstart has (11 steps an epoch, 360
held-out images, a state with batch statistics and momentum) and compiles in a tenth of the time.
Hidden layers and dropout are there for tests that ask for them.
"""

import dataclasses
import os

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


def config_for(create):
    """The configuration of a network that is made by this function of the options."""
    methods = {"create": lambda self, **options: create(**options)}
    return type("NetConfig", (ModelConfig,), methods)()


@dataclasses.dataclass(kw_only=True)
class SmallConfig(ModelConfig):
    """One convolution with batch norm behind it, whose gradient crosses devices; dropout."""

    norm: bool = True
    dropout: float = 0.0

    def create(self, **options):
        return Small(config=self, **options)


class Small(Network):
    config: SmallConfig
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        conv, norm = self.layers(train)
        x = conv(4, (3, 3), (2, 2), name="conv")(images_BxHxWxC)
        if self.config.norm:
            x = norm(name="norm", relu=True)(x)
        if train and self.config.dropout:
            x = dropout(x, self.config.dropout, keys_B, layer=0)
        return classify(x.reshape(len(x), -1), self.num_classes, self.param_dtype)


@dataclasses.dataclass(kw_only=True)
class MasksConfig(ModelConfig):
    """The smallest network that finds masks: batch norm and one 1x1 convolution."""

    def create(self, *, num_classes, **options):
        return Masks(**options)


class Masks(Network):
    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        _, norm = self.layers(train)
        return nn.Conv(1, (1, 1), dtype=self.param_dtype)(norm()(images_BxHxWxC))[..., 0]


def get_config() -> Config:
    return Config(
        model=MicroConfig(),
        data=DataConfig(source="digits", image_shape=(8, 8, 1)),
        optimizer=OptimizerConfig(
            name="nesterov", learning_rate=0.05, weight_decay=5e-4, schedule="cosine"
        ),
        num_devices=int(os.environ.get("JAXBENCH_TEST_DEVICES", 2)),
        batch_size=128,
        epochs=2,
    )
