"""WRN-28-10 on CIFAR-10 by the paper's recipe: 96 % top-1 after 200 epochs.

    python -m jaxbench.main --experiment=wrn28_10 --experiment.data.path=FOLDER

Recipe of: Zagoruyko and Komodakis, "Wide Residual Networks" (2016); their code reports 96.0 to
96.1 % top-1 for WRN-28-10 without dropout: SGD with Nesterov momentum 0.9, weight decay 5e-4,
batch 128, learning rate 0.1, times 0.2 after 60, 120 and 160 epochs, mirrored and shifted images
with reflected edges.
Hardware: a GPU or TPU; two CPU cores need weeks (`--experiment=wrn28_10:tiny` runs anywhere).
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.wide_resnet import WideResNetConfig


def get_config() -> Config:
    return Config(
        model=WideResNetConfig(depth=28, width=10),
        data=DataConfig(
            source="tfds", name="cifar10", crop_padding=4, padding_mode="reflect", flip=True
        ),
        optimizer=OptimizerConfig(
            name="nesterov",
            learning_rate=0.1,
            weight_decay=5e-4,
            schedule="step",
            decay_at=(0.3, 0.6, 0.8),
            decay_factor=0.2,
        ),
        batch_size=128,
        epochs=200,
    )


def tiny(config: Config) -> Config:
    """Synthetic images, a network of the same kind, two epochs."""
    config.model = WideResNetConfig(depth=10, width=1)
    config.data.source = "synthetic"
    config.data.train_examples = 256
    config.data.eval_examples = 100
    config.batch_size = 64
    config.epochs = 2
    config.optimizer.decay_at = (0.5,)
    return config
