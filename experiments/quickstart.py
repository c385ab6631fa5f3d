"""A small wide ResNet on the digits inside scikit-learn: a minute on two CPU cores.

    python -m jaxbench.main --experiment=quickstart

Hardware: anything; less than a minute on two CPU cores.
Expected: 97 % top-1 or more on the 360 held-out digits.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.wide_resnet import WideResNetConfig


def get_config() -> Config:
    return Config(
        model=WideResNetConfig(depth=10, width=1),
        # One pixel of shift; a mirrored digit is another sign, so no flip.
        data=DataConfig(
            source="digits", image_shape=(8, 8, 1), crop_padding=1, padding_mode="black"
        ),
        optimizer=OptimizerConfig(
            name="nesterov",
            learning_rate=0.2,
            weight_decay=5e-4,
            schedule="cosine",
            warmup_epochs=1,
        ),
        batch_size=128,
        epochs=16,
    )


def tiny(config: Config) -> Config:
    config.epochs = 2
    return config
