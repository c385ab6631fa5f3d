"""The ten-layer CNN on CIFAR-10 as in the 2019 comparison of RTX 2080 Ti and Colab TPUv2.

    python -m jaxbench.main --experiment=cnn10 --experiment.data.path=FOLDER

Recipe of: "RTX 2080 Ti SLI vs Google Colab TPU, Keras" (Qiita, 2019-05-14): SGD with momentum 0.9,
learning rate 0.1 for each 128 of global batch, 100 epochs, times 0.1 after 50 and 80, batches of
128 to 2048, no augmentation or weight decay named. Published medians of an epoch at batch 128:
11.68 s on one RTX 2080 Ti (fp32, 89.6 % top-1), 14.22 s on two (90.0 %), 9.12 s on a TPUv2
(89.3 %).
Hardware: any GPU or TPU; an epoch on two CPU cores takes about ten minutes. Expected: 89.6 %
top-1, as published.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.cnn10 import Cnn10Config


def get_config() -> Config:
    return Config(
        model=Cnn10Config(),
        data=DataConfig(source="tfds", name="cifar10"),
        optimizer=OptimizerConfig(
            name="sgd", learning_rate=0.1, schedule="step", decay_at=(0.5, 0.8), decay_factor=0.1
        ),
        batch_size=128,
        epochs=100,
    )


def tiny(config: Config) -> Config:
    """Synthetic images, an eighth of the channels, two epochs."""
    config.model = Cnn10Config(channels=(8, 16, 32))
    config.data = config.data.synthetic()
    config.batch_size = 64
    config.epochs = 2
    config.optimizer.decay_at = (0.5,)
    return config
