"""What a network is trained to say: its loss, what is counted, and the figures made of the counts.

A step's metrics are one small array, metrics_M, so that one transfer fetches them: sums over the
real examples of the batch, LOSS_SUM and COUNT first, then a task's own. They are divided once, on
the host. Letters: B examples, K classes, M metrics.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

LOSS_SUM, COUNT = range(2)


class Task(Protocol):
    """One kind of training.

    Attributes:
      name: as in `Config.task`.
      num_metrics, num_eval_metrics: M in training and in evaluation.
      headline: the figure by which an evaluation is judged; larger is better.
      train_figures, eval_figures: which of `figures` go into the records of training and
        evaluation, in this order.
    """

    name: str
    num_metrics: int
    num_eval_metrics: int
    headline: str
    train_figures: Sequence[str]
    eval_figures: Sequence[str]

    def label_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """The shape of one example's label."""

    def output_shape(self, image_shape: tuple[int, int, int], num_classes: int) -> tuple[int, ...]:
        """The shape of what the network must return for one image."""

    def losses(self, outputs_Bx: jax.Array, labels_Bx: jax.Array, smoothing: float) -> jax.Array:
        """Returns losses_B in the type of the outputs."""

    def batch_metrics(
        self, losses_B: jax.Array, outputs_Bx: jax.Array, labels_Bx: jax.Array, mask_B: jax.Array
    ) -> jax.Array:
        """Returns metrics_M over the rows where mask_B is true."""

    def compute(self, sums_M: np.ndarray) -> dict[str, float]:
        """Turns summed metrics into figures, `loss` first."""


class Classification:
    """One of K classes for each image; outputs are logits_BxK, labels int32 labels_B.

    With `test_time_augmentation` an evaluation has one more metric, `count_correct` of the mean
    over an image's views, and one more figure, `top1_tta`; `top1` is that of the image alone.
    """

    name = "classification"
    num_metrics = 4
    headline = "top1"
    train_figures = ("loss", "top1")

    def __init__(self, test_time_augmentation: bool = False):
        self.num_eval_metrics = self.num_metrics + test_time_augmentation
        added = ("top1_tta",) if test_time_augmentation else ()
        self.eval_figures = ("loss", "top1", "top5", *added)

    def label_shape(self, image_shape):
        return ()

    def output_shape(self, image_shape, num_classes):
        return (num_classes,)

    def losses(self, outputs_Bx, labels_Bx, smoothing=0.0):
        losses_B = optax.softmax_cross_entropy_with_integer_labels(outputs_Bx, labels_Bx)
        if not smoothing:
            return losses_B
        # Against the even target: the mean over the classes of their negative log-probabilities.
        even_B = -jnp.mean(jax.nn.log_softmax(outputs_Bx), axis=-1)
        return (1 - smoothing) * losses_B + smoothing * even_B

    def batch_metrics(self, losses_B, outputs_Bx, labels_Bx, mask_B):
        correct_B = jnp.argmax(outputs_Bx, axis=-1) == labels_Bx
        own_Bx1 = jnp.take_along_axis(outputs_Bx, labels_Bx[:, None], axis=-1, mode="clip")
        # Counting the better classes needs no sort.
        # Written so that nan is among no image's best.
        top5_B = jnp.sum(~(outputs_Bx <= own_Bx1), axis=-1) < 5
        return _sums(losses_B, mask_B, correct_B, top5_B)

    def count_correct(self, outputs_Bx, labels_Bx, mask_B):
        """Returns how many real rows the outputs are right about, in the outputs' type."""
        correct_B = (jnp.argmax(outputs_Bx, axis=-1) == labels_Bx) & mask_B
        return jnp.sum(correct_B).astype(outputs_Bx.dtype)

    def compute(self, sums_M):
        loss, _, *shares = sums_M / sums_M[COUNT]
        names = ("top1", "top5", "top1_tta")
        return {"loss": loss, **dict(zip(names, shares, strict=False))}


class Segmentation:
    """Foreground or background for each pixel; outputs are logits_BxHxW, labels masks of 0 and 1.

    Dice is 2 |A and B| / (|A| + |B|), IoU is |A and B| / |A or B|, with A the pixels predicted
    and B the true ones, over all pixels of the split at once. `dice_per_image` is the mean of
    the images' own Dice, 1 where neither has foreground.
    """

    name = "segmentation"
    num_metrics = num_eval_metrics = 6
    headline = "dice"
    train_figures = ("loss", "dice")
    eval_figures = ("loss", "dice", "iou", "pixel_accuracy", "dice_per_image")

    def label_shape(self, image_shape):
        return tuple(image_shape[:2])

    def output_shape(self, image_shape, num_classes):
        return tuple(image_shape[:2])

    def losses(self, outputs_Bx, labels_Bx, smoothing=0.0):
        target_BxHxW = labels_Bx.astype(outputs_Bx.dtype)
        target_BxHxW = (1 - smoothing) * target_BxHxW + smoothing / 2
        return jnp.mean(optax.sigmoid_binary_cross_entropy(outputs_Bx, target_BxHxW), axis=(1, 2))

    def batch_metrics(self, losses_B, outputs_Bx, labels_Bx, mask_B):
        predicted_BxHxW, true_BxHxW = outputs_Bx > 0, labels_Bx > 0

        def share_B(pixels_BxHxW):
            # Shares of an image rather than pixels: float32 counts exactly only to 2^24.
            return jnp.mean(pixels_BxHxW, axis=(1, 2), dtype=losses_B.dtype)

        both_B = share_B(predicted_BxHxW & true_BxHxW)
        either_B = share_B(predicted_BxHxW) + share_B(true_BxHxW)
        right_B = share_B(predicted_BxHxW == true_BxHxW)
        # A sum of 0 has no pixel in it on either side: nothing to find, and nothing found.
        dice_B = jnp.where(either_B > 0, 2 * both_B / jnp.where(either_B > 0, either_B, 1), 1)
        return _sums(losses_B, mask_B, both_B, either_B, right_B, dice_B)

    def compute(self, sums_M):
        loss, _, both, either, right, dice_per_image = sums_M / sums_M[COUNT]
        return {
            "loss": loss,
            "dice": 2 * both / either if either else 1.0,
            "iou": both / (either - both) if either else 1.0,
            "pixel_accuracy": right,
            "dice_per_image": dice_per_image,
        }


def _sums(losses_B: jax.Array, mask_B: jax.Array, *values_B: jax.Array) -> jax.Array:
    """Sums losses, real rows and further values over the real rows."""
    dtype = losses_B.dtype
    # `where`, not a product: a padded row may hold nan or inf, and nan * 0 is nan.
    sums = [jnp.sum(jnp.where(mask_B, losses_B, 0)), jnp.sum(mask_B).astype(dtype)]
    sums += [jnp.sum(jnp.where(mask_B, value_B, 0)).astype(dtype) for value_B in values_B]
    return jnp.stack(sums)


def get_task(name: str, test_time_augmentation: bool = False) -> Task:
    """Returns the task of that name; what it counts in evaluation depends on the augmentation."""
    if name == Classification.name:
        return Classification(test_time_augmentation)
    return {Segmentation.name: Segmentation}[name]()
