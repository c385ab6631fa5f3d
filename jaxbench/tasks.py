"""What a network is trained to do: its loss and its metrics.

A step returns sums over the real examples of a batch, by name; the host divides them by `count`.
It packs them into one small array, sums_M, so that one transfer fetches them.
Letters: B examples, K classes, M metrics, R models, T tokens of a sequence.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbench.aliases import Array


class Task(Protocol):
    """One kind of training.

    Attributes:
      name: as in `Config.task`.
      train_sums, eval_sums: the names of sums_M in training and in evaluation; `loss` and `count`
        are among them.
      primary_metric: the metric by which an evaluation is judged. Larger is better; of `loss`,
        smaller.
      train_metrics, eval_metrics: the metrics in the records of training and of evaluation.
    """

    name: str
    train_sums: tuple[str, ...]
    eval_sums: tuple[str, ...]
    primary_metric: str
    train_metrics: Sequence[str]
    eval_metrics: Sequence[str]

    def label_shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one example's label."""

    def output_shape(self, image_shape: tuple[int, ...], num_classes: int) -> tuple[int, ...]:
        """Return the shape of the network's output for one image."""

    def losses(self, outputs_Bx: jax.Array, labels_Bx: jax.Array, smoothing: float) -> jax.Array:
        """Return losses_B in the type of the outputs."""

    def metric_sums(
        self, losses_B: jax.Array, outputs_Bx: jax.Array, labels_Bx: jax.Array, mask_B: jax.Array
    ) -> dict[str, jax.Array]:
        """Return {name: sum over the rows where mask_B is true}."""

    def compute(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return metrics_R by name, `loss` first, from sums_R by name."""


def pack_sums(names: Sequence[str], sums: Mapping[str, jax.Array]) -> jax.Array:
    """Return sums_M, in the order of the names."""
    return jnp.stack([sums[name] for name in names])


def sums_by_name(names: Sequence[str], packed: Array) -> dict[str, np.ndarray]:
    """Return {name: values_R} of one model's sums_M or several models' sums_RxM, computed."""
    return dict(zip(names, np.asarray(packed).reshape(-1, len(names)).T, strict=True))


class Classification:
    """One of K classes for each image; outputs are logits_BxK, labels int32 labels_B.

    With `test_time_augmentation` an evaluation has one more metric: `top1_tta` counts
    with the mean over an image's views, `top1` with only the image.
    """

    name = "classification"
    train_sums: tuple[str, ...] = ("loss", "count", "top1", "top5")
    eval_sums = train_sums
    primary_metric = "top1"
    train_metrics: tuple[str, ...] = ("loss", "top1")
    eval_metrics: tuple[str, ...] = ("loss", "top1", "top5")

    def __init__(self, test_time_augmentation: bool = False):
        if test_time_augmentation:
            self.eval_sums = (*self.eval_sums, "top1_tta")
            self.eval_metrics = (*self.eval_metrics, "top1_tta")

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

    def metric_sums(self, losses_B, outputs_Bx, labels_Bx, mask_B):
        better_B = _num_better(outputs_Bx, labels_Bx)
        return _sums(mask_B, loss=losses_B, top1=better_B < 1, top5=better_B < 5)

    def compute(self, sums):
        return {name: sums[name] / sums["count"] for name in sums if name != "count"}


class Segmentation:
    """Foreground or background for each pixel; outputs are logits_BxHxW, labels masks of 0 and 1.

    Dice is 2 |A and B| / (|A| + |B|), IoU is |A and B| / |A or B|, with A the pixels predicted
    and B the true ones, over all pixels of the split at once. `dice_per_image` is the mean of
    the images' own Dice, 1 if neither has foreground.
    """

    name = "segmentation"
    train_sums = eval_sums = ("loss", "count", "both", "either", "right", "dice_per_image")
    primary_metric = "dice"
    train_metrics = ("loss", "dice")
    eval_metrics = ("loss", "dice", "iou", "pixel_accuracy", "dice_per_image")

    def label_shape(self, image_shape):
        return tuple(image_shape[:2])

    def output_shape(self, image_shape, num_classes):
        return tuple(image_shape[:2])

    def losses(self, outputs_Bx, labels_Bx, smoothing=0.0):
        target_BxHxW = labels_Bx.astype(outputs_Bx.dtype)
        target_BxHxW = (1 - smoothing) * target_BxHxW + smoothing / 2
        return jnp.mean(optax.sigmoid_binary_cross_entropy(outputs_Bx, target_BxHxW), axis=(1, 2))

    def metric_sums(self, losses_B, outputs_Bx, labels_Bx, mask_B):
        predicted_BxHxW, true_BxHxW = outputs_Bx > 0, labels_Bx > 0

        def fraction_B(pixels_BxHxW):
            # Fractions of an image rather than pixels: float32 counts exactly only to 2^24.
            return jnp.mean(pixels_BxHxW, axis=(1, 2), dtype=losses_B.dtype)

        both_B = fraction_B(predicted_BxHxW & true_BxHxW)
        either_B = fraction_B(predicted_BxHxW) + fraction_B(true_BxHxW)
        right_B = fraction_B((predicted_BxHxW == true_BxHxW) & ~jnp.isnan(outputs_Bx))
        dice_B = jnp.where(either_B > 0, 2 * both_B / jnp.where(either_B > 0, either_B, 1), 1)
        return _sums(
            mask_B,
            loss=losses_B,
            both=both_B,
            either=either_B,
            right=right_B,
            dice_per_image=dice_B,
        )

    def compute(self, sums):
        means = {name: sums[name] / sums["count"] for name in sums}
        both, either = means["both"], means["either"]

        def overlap(part_R, whole_R):
            # 1 if there is no foreground, neither predicted nor true.
            return np.divide(part_R, whole_R, out=np.ones_like(whole_R), where=whole_R != 0)

        return {
            "loss": means["loss"],
            "dice": overlap(2 * both, either),
            "iou": overlap(both, either - both),
            "pixel_accuracy": means["right"],
            "dice_per_image": means["dice_per_image"],
        }


class LanguageModel:
    """The next token at each position of a sequence; outputs are logits_BxTxK, labels tokens_BxT.

    The loss is in nats for a token. `top1` is the next-token accuracy. `bits_per_byte` is the loss
    in bits, for a network whose tokens are bytes. Metrics are means over all tokens of all
    sequences, which have the same length.
    """

    name = "language_model"
    train_sums = eval_sums = ("loss", "count", "top1")
    primary_metric = "top1"

    def __init__(self, byte_tokens: bool = True):
        bits = ("bits_per_byte",) if byte_tokens else ()
        self.train_metrics = self.eval_metrics = ("loss", "top1", *bits)

    def label_shape(self, image_shape):
        return tuple(image_shape)

    def output_shape(self, image_shape, num_classes):
        return (*image_shape, num_classes)

    def losses(self, outputs_Bx, labels_Bx, smoothing=0.0):
        labels_BxT = labels_Bx.astype(jnp.int32)
        return jnp.mean(Classification().losses(outputs_Bx, labels_BxT, smoothing), axis=-1)

    def metric_sums(self, losses_B, outputs_Bx, labels_Bx, mask_B):
        correct_BxT = _num_better(outputs_Bx, labels_Bx) < 1
        # Fractions of a sequence rather than tokens: float32 counts exactly only to 2^24.
        return _sums(mask_B, loss=losses_B, top1=jnp.mean(correct_BxT, -1, dtype=losses_B.dtype))

    def compute(self, sums):
        means = {name: sums[name] / sums["count"] for name in ("loss", "top1")}
        metrics = means | {"bits_per_byte": means["loss"] / np.log(2)}
        return {name: metrics[name] for name in self.eval_metrics}


class Denoising:
    """Predict the noise that was added to latents; outputs are the errors_BxHxWxC of predictions.

    The loss, the only metric, is the mean of their squares: 1 if a network predicts no noise.
    Labels are the examples' classes, labels_B, which the network gets too.
    """

    name = "denoising"
    train_sums = eval_sums = ("loss", "count")
    primary_metric = "loss"
    train_metrics = eval_metrics = ("loss",)

    def label_shape(self, image_shape):
        return ()

    def output_shape(self, image_shape, num_classes):
        return tuple(image_shape)

    def losses(self, outputs_Bx, labels_Bx, smoothing=0.0):
        return jnp.mean(jnp.square(outputs_Bx), axis=tuple(range(1, outputs_Bx.ndim)))

    def metric_sums(self, losses_B, outputs_Bx, labels_Bx, mask_B):
        return _sums(mask_B, loss=losses_B)

    def compute(self, sums):
        return {"loss": sums["loss"] / sums["count"]}


def _num_better(logits_BxK: jax.Array, labels_B: jax.Array) -> jax.Array:
    """Return how many classes come before the label's: larger logits, and of equal ones the first.

    nan comes before all numbers. Before a label whose own logit is nan come infinitely many.
    """
    labels_Bx1 = labels_B[..., None].astype(jnp.int32)
    label_Bx1 = jnp.take_along_axis(logits_BxK, labels_Bx1, axis=-1, mode="clip")
    earlier_BxK = jnp.arange(logits_BxK.shape[-1]) < labels_Bx1
    # Counting needs no sort.
    better_BxK = ~(logits_BxK <= label_Bx1) | ((logits_BxK == label_Bx1) & earlier_BxK)
    return jnp.where(jnp.isnan(label_Bx1[..., 0]), jnp.inf, jnp.sum(better_BxK, axis=-1))


def _sums(mask_B: jax.Array, *, loss: jax.Array, **values_B: jax.Array) -> dict[str, jax.Array]:
    """Return the sums over the real rows, and their `count`, in the type of the losses."""
    sums = {"loss": loss, "count": mask_B, **values_B}
    # `where`, not a product: a padded row may hold nan or inf, and nan * 0 is nan.
    return {
        name: jnp.sum(jnp.where(mask_B, value_B, 0)).astype(loss.dtype)
        for name, value_B in sums.items()
    }


def get_task(name: Any, test_time_augmentation: bool = False, *, byte_tokens: bool = True) -> Task:
    """Return the task of that name, or the custom task in a `Code`.

    Test-time augmentation adds a metric to the evaluation. A language model whose tokens are bytes
    has a metric for that.
    """
    if not isinstance(name, str):
        return name.value
    if name == "language_model":
        return LanguageModel(byte_tokens)  # type: ignore[return-value]
    if name == "denoising":
        return Denoising()  # type: ignore[return-value]
    return Segmentation() if name == "segmentation" else Classification(test_time_augmentation)  # type: ignore[return-value]
