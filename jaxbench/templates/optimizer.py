"""A custom optimizer: Lion, on the handwritten digits inside scikit-learn.

    jaxbench main --experiment=FILE

The learning rate and its schedule are still fields: --experiment.optimizer.learning_rate=0.002.
The rate holds for `base_batch_size` images and is scaled linearly to the global batch.
"""

import optax

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.wide_resnet import WideResNetConfig


def my_rule(schedule: optax.Schedule) -> optax.GradientTransformation:
    """Return any optax transformation; `schedule` is a function of the number of updates."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.lion(schedule, b1=0.9, b2=0.99, weight_decay=0.01),
    )


def get_config() -> Config:
    return Config(
        model=WideResNetConfig(depth=10, width=1),
        data=DataConfig(source="digits", image_shape=(8, 8, 1)),
        optimizer=OptimizerConfig(update_rule=my_rule, learning_rate=0.002, schedule="cosine"),
        batch_size=128,
        epochs=5,
    )
