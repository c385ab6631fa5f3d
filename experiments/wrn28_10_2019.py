"""WRN-28-10 on CIFAR-10 as in the 2019 comparison of RTX 2080 Ti and Colab TPUv2.

    python -m jaxbench.main --experiment=wrn28_10_2019 --experiment.data.path=FOLDER

Recipe of: "RTX 2080 Ti SLI vs Google Colab TPU, Keras" (Qiita, 2019-05-14): SGD with momentum 0.9,
learning rate 0.1 for each 128 of global batch, 100 epochs, times 0.1 after 50 and 80, batches of
128 to 2048, no augmentation or weight decay named. Published medians of an epoch at batch 128:
114.04 s on one RTX 2080 Ti (fp32, 84.2 % top-1), 134.79 s on two, 29.28 s on a TPUv2 (78.5 %); the
author says the recipe is for timing, not for accuracy.
Hardware: a GPU of 11 GB for batch 128; two CPU cores need weeks.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.wide_resnet import WideResNetConfig


def get_config() -> Config:
    return Config(
        model=WideResNetConfig(depth=28, width=10),
        data=DataConfig(source="tfds", name="cifar10"),
        optimizer=OptimizerConfig(
            name="sgd",
            learning_rate=0.1,
            base_batch_size=128,
            schedule="step",
            decay_at=(0.5, 0.8),
            decay_factor=0.1,
        ),
        batch_size=128,
        epochs=100,
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
