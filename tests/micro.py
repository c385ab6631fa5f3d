"""The smallest experiment that trains: one dense layer with batch norm on the digits.

For tests of everything around the network. It has what quickstart has (11 steps an epoch, 360
held-out images, a state with batch statistics and momentum) and compiles in a tenth of the time.
"""

import dataclasses
from typing import Any

import flax.linen as nn

from jaxbench.config import Config, DataConfig, ModelConfig, OptimizerConfig
from jaxbench.models.layers import classify, norm_layer


@dataclasses.dataclass(kw_only=True)
class MicroConfig(ModelConfig):
    def create(self, *, num_classes, dtype, param_dtype, norm_axis):
        return Micro(num_classes, dtype, param_dtype, norm_axis)


class Micro(nn.Module):
    num_classes: int
    dtype: Any
    param_dtype: Any
    norm_axis: str | None

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        norm = norm_layer(self.dtype, self.param_dtype, self.norm_axis, train)
        x = norm(name="norm")(images_BxHxWxC)
        return classify(x.reshape(len(x), -1), self.num_classes, self.param_dtype)


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
