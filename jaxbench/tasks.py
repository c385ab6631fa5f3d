"""What a network is trained to do: its loss, its metrics, and the figures computed from them.

A step packs its metrics into one small array, metrics_M, so that one transfer fetches them. Each is
a sum over the real examples of the batch, and the host divides it by their `count`. A task names
its metrics in their order. Letters: B examples, K classes, M metrics, R models.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Task(Protocol):
    """One kind of training.

    Attributes:
      name: as in `Config.task`.
      metrics, eval_metrics: the names of metrics_M in training and in evaluation; `loss` and
        `count` are among them.
      headline: the figure by which an evaluation is judged; larger is better.
      train_figures, eval_figures: the figures in the records of training and of evaluation.
    """

    name: str
    metrics: tuple[str, ...]
    eval_metrics: tuple[str, ...]
    headline: str
    train_figures: Sequence[str]
    eval_figures: Sequence[str]

    def label_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """Return the shape of one example's label."""

    def output_shape(self, image_shape: tuple[int, int, int], num_classes: int) -> tuple[int, ...]:
        """Return the shape of the network's output for one image."""

    def losses(self, outputs_Bx: jax.Array, labels_Bx: jax.Array, smoothing: float) -> jax.Array:
        """Return losses_B in the type of the outputs."""

    def batch_metrics(
        self, losses_B: jax.Array, outputs_Bx: jax.Array, labels_Bx: jax.Array, mask_B: jax.Array
    ) -> jax.Array:
        """Return metrics_M over the rows where mask_B is true."""

    def compute(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return figures_R by name, `loss` first, of summed metrics_R by name."""


def metrics_by_name(names: Sequence[str], packed: Any) -> dict[str, np.ndarray]:
    """Return {name: values_R} of one model's metrics_M or several models' metrics_RxM, computed."""
    return dict(zip(names, np.asarray(packed).reshape(-1, len(names)).T, strict=True))


class Classification:
    """One of K classes for each image; outputs are logits_BxK, labels int32 labels_B.

    With `test_time_augmentation` an evaluation has one more metric and figure: `top1_tta` counts
    with the mean over an image's views, `top1` with the image alone.
    """

    name = "classification"
    metrics = ("loss", "count", "top1", "top5")
    headline = "top1"
    train_figures = ("loss", "top1")

    def __init__(self, test_time_augmentation: bool = False):
        added = ("top1_tta",) if test_time_augmentation else ()
        self.eval_metrics = (*self.metrics, *added)
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
        """Return the number of real rows classified correctly, in the type of the outputs."""
        correct_B = (jnp.argmax(outputs_Bx, axis=-1) == labels_Bx) & mask_B
        return jnp.sum(correct_B).astype(outputs_Bx.dtype)

    def compute(self, sums):
        return {name: sums[name] / sums["count"] for name in sums if name != "count"}


class Segmentation:
    """Foreground or background for each pixel; outputs are logits_BxHxW, labels masks of 0 and 1.

    Dice is 2 |A and B| / (|A| + |B|), IoU is |A and B| / |A or B|, with A the pixels predicted
    and B the true ones, over all pixels of the split at once. `dice_per_image` is the mean of
    the images' own Dice, 1 where neither has foreground.
    """

    name = "segmentation"
    metrics = eval_metrics = ("loss", "count", "both", "either", "right", "dice_per_image")
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

    def compute(self, sums):
        means = {name: sums[name] / sums["count"] for name in sums}
        both, either = means["both"], means["either"]
        return {
            "loss": means["loss"],
            "dice": _overlap(2 * both, either),
            "iou": _overlap(both, either - both),
            "pixel_accuracy": means["right"],
            "dice_per_image": means["dice_per_image"],
        }


def _overlap(part_R: np.ndarray, whole_R: np.ndarray) -> np.ndarray:
    """Return the ratio; 1 where there is no foreground, neither predicted nor true."""
    return np.divide(part_R, whole_R, out=np.ones_like(whole_R), where=whole_R != 0)


def _sums(losses_B: jax.Array, mask_B: jax.Array, *values_B: jax.Array) -> jax.Array:
    """Return the sums over the real rows: losses, rows, then each of the values."""
    dtype = losses_B.dtype
    # `where`, not a product: a padded row may hold nan or inf, and nan * 0 is nan.
    sums = [jnp.sum(jnp.where(mask_B, losses_B, 0)), jnp.sum(mask_B).astype(dtype)]
    sums += [jnp.sum(jnp.where(mask_B, value_B, 0)).astype(dtype) for value_B in values_B]
    return jnp.stack(sums)


def get_task(name: str, test_time_augmentation: bool = False) -> Task:
    """Return the task of that name; test-time augmentation adds a metric to its evaluation."""
    if name == Classification.name:
        return Classification(test_time_augmentation)
    return {Segmentation.name: Segmentation}[name]()
