"""A custom network on the handwritten digits inside scikit-learn.

    jaxbench main --experiment=FILE

Any flax module class will do, and so will a function that returns one. It gets num_classes, dtype,
param_dtype and axis_name if it takes them. Its other parameters are fields:
--experiment.model.width=64.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jaxbench.config import Config, DataConfig, OptimizerConfig


class MyNet(nn.Module):
    num_classes: int
    width: int = 32
    dropout: float = 0.1
    dtype: Any = jnp.float32  # what layers compute in: --experiment.precision=bf16 changes it
    axis_name: str | None = None  # set by --experiment.batch_norm=sync

    @nn.compact
    def __call__(self, images_BxHxWxC, train):
        x = nn.Conv(self.width, (3, 3), use_bias=False, dtype=self.dtype)(images_BxHxWxC)
        x = nn.BatchNorm(use_running_average=not train, axis_name=self.axis_name, dtype=self.dtype)(
            x
        )
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = nn.relu(nn.Conv(2 * self.width, (3, 3), dtype=self.dtype)(x)).mean((1, 2))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.num_classes)(x)  # logits stay in float32


def get_config() -> Config:
    return Config(
        model=MyNet,
        data=DataConfig(source="digits", image_shape=(8, 8, 1)),
        optimizer=OptimizerConfig(name="adam", learning_rate=0.01, schedule="cosine"),
        batch_size=128,
        epochs=10,
    )
