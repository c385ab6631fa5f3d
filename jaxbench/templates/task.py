"""A custom task: the focal loss, and the mean probability of the true class as a metric.

    jaxbench main --experiment=FILE

A task is an object with the attributes and methods of jaxbench.tasks.Task; this one inherits all
but its loss and one metric. `metric_sums` are over a batch; `compute` divides them on the host.
Letters: B examples, K classes.
"""

import jax
import jax.numpy as jnp

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.wide_resnet import WideResNetConfig
from jaxbench.tasks import Classification


class FocalLoss(Classification):
    name = "focal_loss"
    train_sums = eval_sums = (*Classification.train_sums, "confidence")
    train_metrics = ("loss", "top1", "confidence")
    eval_metrics = ("loss", "top1", "top5", "confidence")

    def __init__(self, gamma: float = 2.0):
        self.gamma = gamma

    def losses(self, logits_BxK, labels_B, smoothing=0.0):
        """Return losses_B; their mean over the batch is minimised."""
        losses_B = super().losses(logits_BxK, labels_B, smoothing)
        return (1 - self._confidence(logits_BxK, labels_B)) ** self.gamma * losses_B

    def metric_sums(self, losses_B, logits_BxK, labels_B, mask_B):
        """Return sums over the rows where mask_B is true: the others pad the last batch."""
        sums = super().metric_sums(losses_B, logits_BxK, labels_B, mask_B)
        confidence_B = self._confidence(logits_BxK, labels_B)
        return sums | {"confidence": jnp.sum(jnp.where(mask_B, confidence_B, 0))}

    def _confidence(self, logits_BxK, labels_B):
        probabilities_BxK = jax.nn.softmax(logits_BxK)
        return jnp.take_along_axis(probabilities_BxK, labels_B[:, None], axis=-1)[:, 0]


def get_config() -> Config:
    return Config(
        model=WideResNetConfig(depth=10, width=1),
        task=FocalLoss(gamma=2.0),
        data=DataConfig(source="digits", image_shape=(8, 8, 1)),
        optimizer=OptimizerConfig(name="nesterov", learning_rate=0.1, schedule="cosine"),
        batch_size=128,
        epochs=4,
    )
