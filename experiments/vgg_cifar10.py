"""VGG on CIFAR-10 as in the 2016 comparison of one TITAN X with four.

    python -m jaxbench.main --experiment=vgg_cifar10 --experiment.data.path=FOLDER
    python -m jaxbench.main --experiment=vgg_cifar10 --experiment.data.path=FOLDER \
        --experiment.data.feed=stream

Recipe of: "4x TITAN X on CIFAR-10" (TensorFlow Advent Calendar, 2016-12): Adam, random crop, flip,
brightness and contrast, each image standardized; batches of 64 and 128; 764.6 images/s on one TITAN
X, 2,500 on four while one input pipeline on device 0 fed them all, and more (not published) with
one for each device. `data.feed=stream` is that one pipeline, on the host, and `resident` one for
each device: compare `images_per_s` and `data_wait_s`; `--experiment.step_log` prints the lines of
its log. VGG-16 without batch norm, 1e-4 for a batch of 128 and the ranges of TensorFlow's CIFAR-10
tutorial are our reading: the article does not name them. Pixels stay within 0 to 255 after each
change, or standardization would undo brightness.
Hardware: any GPU or TPU; an epoch on two CPU cores takes most of an hour. Expected: about 90 %
top-1 (not measured yet).
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.vgg import VggConfig


def get_config() -> Config:
    return Config(
        model=VggConfig(),
        data=DataConfig(
            source="tfds",
            name="cifar10",
            crop_padding=4,
            padding_mode="black",
            flip=True,
            brightness=63,
            contrast=(0.2, 1.8),
            standardization="per_image",
        ),
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-4, base_batch_size=128),
        batch_size=128,
        epochs=100,
    )


def tiny(config: Config) -> Config:
    """Synthetic images, a sixteenth of the channels, two epochs."""
    config.model = VggConfig(stages=(1, 1, 1), width=4, hidden=32)
    config.data = config.data.synthetic()
    config.optimizer.learning_rate = 0.003
    config.batch_size = config.optimizer.base_batch_size = 64
    config.epochs = 2
    return config
