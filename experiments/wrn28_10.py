"""WRN-28-10 on CIFAR-10 by the paper's recipe: 96 % top-1 after 200 epochs.

    python -m jaxbench.main --experiment=wrn28_10 --experiment.data.path=FOLDER

Recipe of: Zagoruyko and Komodakis, "Wide Residual Networks" (2016); their code reports 96.0 to
96.1 % top-1 for WRN-28-10 without dropout: SGD with Nesterov momentum 0.9, weight decay 5e-4,
batch 128, learning rate 0.1, times 0.2 after 60, 120 and 160 epochs, mirrored and shifted images
with reflected edges.
Hardware: a GPU or TPU; two CPU cores need weeks (`--experiment=wrn28_10:tiny` runs anywhere).
Expected: 96.0 % top-1, as published.
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


def variant_2019(config: Config) -> Config:
    """WRN-28-10 on CIFAR-10 as in the 2019 comparison of RTX 2080 Ti and Colab TPUv2.

        python -m jaxbench.main --experiment=wrn28_10:2019 --experiment.data.path=FOLDER

    The article, recipe and batches of `cnn10`. Published medians of an epoch at batch 128: 114.04 s
    on one RTX 2080 Ti (fp32, 84.2 % top-1), 134.79 s on two, 29.28 s on a TPUv2 (78.5 %); the
    author says the recipe is for timing, not for accuracy.
    Hardware: a GPU of 11 GB for batch 128; two CPU cores need weeks.
    """
    config.data.crop_padding, config.data.flip = 0, False
    config.optimizer.name, config.optimizer.weight_decay = "sgd", 0.0
    config.optimizer.decay_at, config.optimizer.decay_factor = (0.5, 0.8), 0.1
    config.epochs = 100
    return config


def tiny(config: Config) -> Config:
    """Synthetic images, a network of the same kind, two epochs."""
    config.model = WideResNetConfig(depth=10, width=1)
    config.data = config.data.synthetic()
    config.batch_size = 64
    config.epochs = 2
    config.optimizer.decay_at = (0.5,)
    return config
