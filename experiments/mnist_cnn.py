"""The Keras example CNN on MNIST as in the 2020 comparison of an RTX 2080 Ti with a second GPU.

    python -m jaxbench.main --experiment=mnist_cnn --experiment.data.path=FOLDER

Recipe of: "multiple GPUs with an RTX 2080 Ti and a GTX 1080" (Hatena blog, 2020-12): Adadelta at
its default rate of 1, batch 512, 200 epochs; 68 s on the RTX 2080 Ti, 59 s with a GTX 1080 beside
it (`--experiment.num_devices=1` and `2`). Top-1 was not published.
Hardware: anything; an epoch on two CPU cores takes about a minute. Expected: 98.5 % test top-1
within 4 epochs, 99.2 % or more at the end.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.mnist_cnn import MnistCnnConfig


def get_config() -> Config:
    return Config(
        model=MnistCnnConfig(),
        data=DataConfig(source="tfds", name="mnist", image_shape=(28, 28, 1)),
        optimizer=OptimizerConfig(
            name="adadelta", learning_rate=1.0, base_batch_size=512, rho=0.95, eps=1e-7
        ),
        batch_size=512,
        epochs=200,
    )


def tiny(config: Config) -> Config:
    """Synthetic images, an eighth of the channels, two epochs."""
    config.model = MnistCnnConfig(channels=(4, 8), hidden=16)
    config.data = config.data.synthetic(512)
    config.batch_size = config.optimizer.base_batch_size = 64
    config.epochs = 2
    return config
