"""placeholder

python -m jaxbench.main --experiment=vit_cifar10 --experiment.data.path=FOLDER
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.vit import ViTConfig


def get_config() -> Config:
    return Config(
        model=ViTConfig(patch=4, width=128, depth=6, heads=4, mlp_ratio=2, pre_logits=False),
        data=DataConfig(
            source="tfds", name="cifar10", crop_padding=4, padding_mode="reflect", flip=True
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=0.001,
            base_batch_size=128,
            weight_decay=0.05,
            weight_decay_on="kernels",
            max_gradient_norm=1.0,
            schedule="cosine",
            warmup_epochs=2,
        ),
        batch_size=128,
        epochs=20,
    )


def tiny(config: Config) -> Config:
    """Synthetic images, two narrow blocks, two epochs."""
    config.model = ViTConfig(patch=8, width=32, depth=2, heads=2)
    config.data.source = "synthetic"
    config.data.train_examples = 256
    config.data.eval_examples = 100
    config.optimizer.base_batch_size = 64
    config.optimizer.warmup_epochs = 0
    config.batch_size = 64
    config.epochs = 2
    return config
