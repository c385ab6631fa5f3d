"""A custom data set: bright squares, whose corner is the class.

    jaxbench main --experiment=FILE

A source has `__len__` and `__getitem__`, as the sets of grain, PyTorch and Hugging Face have. It
returns (image, label), or a dict with `image` and `label`. Images are PIL's or arrays of shape
(height, width) or (height, width, channels), uint8 or numbers within `value_range`. Labels are
whole numbers or one-hot.
"""

import numpy as np

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.wide_resnet import WideResNetConfig


class Squares:
    def __init__(self, length: int, seed: int):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.default_rng((self.seed, index))
        image = random.uniform(0.0, 0.3, (8, 8, 1))
        label = int(random.integers(4))
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row : row + 4, column : column + 4] += 0.5
        return image, label


def load():
    """Return the sources. They are read into memory once, before the training."""
    return {"train": Squares(2048, seed=0), "test": Squares(512, seed=1)}


def get_config() -> Config:
    return Config(
        model=WideResNetConfig(depth=10, width=1),
        data=DataConfig(load=load, value_range=(0.0, 1.0), image_shape=(8, 8, 1), num_classes=4),
        optimizer=OptimizerConfig(name="nesterov", learning_rate=0.1, schedule="cosine"),
        batch_size=128,
        epochs=2,
    )
