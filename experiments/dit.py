"""DiT-XL/2, a diffusion transformer, on synthetic latents of images of 256x256: throughput.

    python -m jaxbench.main --experiment=dit:tiny
    python -m jaxbench.main --experiment=dit --mode=throughput
    python -m jaxbench.main --experiment=dit:small --mode=throughput

The shapes and the optimizer of Peebles and Xie 2022: AdamW without weight decay, a batch of 256.
The network predicts the noise in latents of 32x32x4, which are what their encoder makes of an
image. Latents are stored in 8 bits and normalised by channel; latents of your own are a custom data
set (docs/howto/custom-data.md). The task has a loss, and no accuracy.
Hardware: one or more GPUs or TPUs; the state of 675 million parameters is 8.1 GB in fp32.
"""

import dataclasses

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.dit import DitConfig


def get_config() -> Config:
    return Config(
        model=DitConfig(),
        task="denoising",
        data=DataConfig(image_shape=(32, 32, 4), num_classes=1000).synthetic(2048, 256),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-4, base_batch_size=256),
        batch_size=256,
        epochs=10,
        precision="bf16",
    )


def variant_small(config: Config) -> Config:
    """DiT-S/2: a twentieth of the parameters."""
    config.model = DitConfig(width=384, depth=12, heads=6)
    return config


def tiny(config: Config) -> Config:
    """Two narrow blocks, latents of 8x8 and 10 classes, three epochs."""
    config.model = dataclasses.replace(config.model, width=32, depth=2, heads=2)
    config.data = config.data.synthetic(image_shape=(8, 8, 4), num_classes=10)
    config.batch_size = config.optimizer.base_batch_size = 16
    config.optimizer.learning_rate, config.epochs = 4e-3, 3
    return config
