"""ViT-S/16 on synthetic images: images per second of a vision transformer.

    python -m jaxbench.main --experiment=vit_s16_synthetic --experiment.batch_size=1024

The same network and update rule as `vit_s16`, one constant batch and no augmentation: to compare
machines, batches and precisions. One epoch is 2,048 images, of which the first holds what has to
warm up: read `images_per_s` of the later epochs. On NVIDIA GPUs compare
`--experiment.model.attention=cudnn`; with `--experiment.remat=blocks` larger batches fit. ViT-B/16:
`--experiment.model.width=768 --experiment.model.heads=12`.
Hardware: one or more GPUs or TPUs of 16 GB for 128 images each.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.vit import ViTConfig


def get_config() -> Config:
    return Config(
        model=ViTConfig(),
        data=DataConfig(
            source="synthetic",
            image_shape=(224, 224, 3),
            num_classes=1000,
            train_examples=2048,
            eval_examples=256,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=0.001,
            base_batch_size=1024,
            weight_decay=0.1,
            weight_decay_on="kernels",
            max_gradient_norm=1.0,
            schedule="constant",
        ),
        batch_size=1024,
        epochs=10,
        precision="bf16",
    )


def tiny(config: Config) -> Config:
    """Images of 32x32, two narrow blocks, two epochs."""
    config.model = ViTConfig(patch=8, width=32, depth=2, heads=2)
    config.data.image_shape = (32, 32, 3)
    config.data.num_classes = 10
    config.data.train_examples = 256
    config.data.eval_examples = 100
    config.optimizer.base_batch_size = 64
    config.batch_size = 64
    config.optimizer.learning_rate = 0.005
    config.epochs = 2
    return config
