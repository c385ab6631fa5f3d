"""Augment images, and bring them to the network's scale.

Every random draw is keyed by (seed, epoch, example index). An example is therefore augmented the
same way on any device, in any process or step, and by any feed. All is done inside the step, except
for images that are decoded on the fly: the host crops and flips those.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.aliases import Array, DType
from jaxbench.config import DataConfig
from jaxbench.data.rand_augment import rand_augment
from jaxbench.precision import Precision

# An example's key is folded with one of these for each use.
_CROP, _FLIP, _BRIGHTNESS, _CONTRAST, _DROPOUT, _MIXUP, _RAND_AUGMENT = range(7)


class Examples(NamedTuple):
    """The B examples of one device's step, as a feed's `unpack_batch` returns them."""

    inputs_Bx: jax.Array  # images_BxHxWxC in uint8, or tokens_BxT in uint8 or int32
    labels_Bx: jax.Array  # int32, or uint8 masks, or the token after each of `inputs_Bx`
    indices_B: jax.Array  # int32, the examples' positions in their split
    mask_B: jax.Array  # bool, false for padding
    seed: jax.Array  # uint32
    epoch: jax.Array  # int32, 0 is the first


class Mixture(NamedTuple):
    """The weight of each example in its mixture, and the label of the example mixed into it.

    The loss is the mean of the losses against both labels by these weights.
    """

    weight_B: jax.Array
    other_labels_B: jax.Array


def augment_batch(
    examples: Examples, keys_B: jax.Array, data: DataConfig, precision: Precision
) -> tuple[Examples, Mixture | None]:
    """Return training examples augmented as the config says, and what mixup mixed, if it is on."""
    if data.feed != "synthetic" and not data.decodes_on_the_fly:
        windows = example_windows(keys_B, examples.seed, examples.epoch, examples.indices_B, data)
        examples = examples._replace(inputs_Bx=crop_and_flip(windows, examples.inputs_Bx, data))
        if examples.labels_Bx.ndim == 3:  # masks move with their images
            examples = examples._replace(labels_Bx=crop_and_flip(windows, examples.labels_Bx, data))
    inputs_Bx, mixture = examples.inputs_Bx, None
    operations, magnitude = data.rand_augment
    if operations:
        operation_keys_B = _fold_in(keys_B, _RAND_AUGMENT)
        inputs_Bx = rand_augment(operation_keys_B, inputs_Bx, int(operations), magnitude)
    dtype = precision.param_dtype
    inputs_Bx = color_jitter(
        keys_B, inputs_Bx, brightness=data.brightness, contrast=data.contrast, dtype=dtype
    )
    if data.mixup:
        inputs_Bx, mixture = mixup(keys_B, inputs_Bx, examples.labels_Bx, data.mixup, dtype)
    return examples._replace(inputs_Bx=inputs_Bx), mixture


def network_inputs(
    inputs_Bx: jax.Array, statistics: dict[str, jax.Array], data: DataConfig, precision: Precision
) -> jax.Array:
    """Return what the network gets: normalised images, or tokens as int32."""
    if data.sequence_length:
        return inputs_Bx.astype(jnp.int32)
    if data.standardization == "per_image":
        return per_image_standardization(inputs_Bx, precision.param_dtype, precision.compute_dtype)
    return normalize(inputs_Bx, statistics["mean"], statistics["std"], precision.compute_dtype)


def example_keys(seed: jax.Array, epoch: jax.Array, indices_B: jax.Array) -> jax.Array:
    """Return keys_B, one random key for each example."""
    epoch_key = jax.random.fold_in(jax.random.key(seed), epoch)
    return jax.vmap(lambda index: jax.random.fold_in(epoch_key, index))(indices_B)


def dropout_keys(keys_B: jax.Array) -> jax.Array:
    """Return keys_B for the networks' dropout."""
    return _fold_in(keys_B, _DROPOUT)


def _fold_in(keys_B: jax.Array, use: int) -> jax.Array:
    return jax.vmap(lambda key: jax.random.fold_in(key, use))(keys_B)


class CropWindows(NamedTuple):
    """Where each example is cropped from its padded image, and whether it is flipped."""

    top_B: jax.Array  # int32, 0 to 2 * padding
    left_B: jax.Array
    flipped_B: jax.Array  # bool


def draw_windows(keys_B: jax.Array, *, padding: int) -> CropWindows:
    """Draw a window for each example; flips are drawn whether they will be used or not."""

    def one(key):
        # int32 by name: under fp64 the default would draw other bits.
        corner = jax.random.randint(
            jax.random.fold_in(key, _CROP), (2,), 0, 2 * padding + 1, jnp.int32
        )
        flipped = jax.random.bits(jax.random.fold_in(key, _FLIP), (), jnp.uint8) < 128
        return CropWindows(corner[0], corner[1], flipped)

    return jax.vmap(one)(keys_B)


def example_windows(
    keys_B: jax.Array, seed: jax.Array, epoch: jax.Array, indices_B: jax.Array, data: DataConfig
) -> CropWindows:
    """Return the windows of training examples in an epoch, as the config says.

    Alternating flips flip each example in every other epoch, from the first or the second on: what
    is drawn for epoch 0 decides (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024).
    """
    windows = draw_windows(keys_B, padding=data.crop_padding)
    if data.flip_order != "alternating":
        return windows
    first_keys_B = example_keys(seed, jnp.zeros_like(epoch), indices_B)
    first_B = draw_windows(first_keys_B, padding=0).flipped_B
    return windows._replace(flipped_B=first_B ^ (epoch % 2 == 1))


def crop_and_flip(windows: CropWindows, images_BxHxWxC: jax.Array, data: DataConfig) -> jax.Array:
    """Pad images by `data.crop_padding` pixels, crop their size out again, and flip them.

    Each pixel is gathered from its position in the image; no padded image is made, which is the
    fastest form (docs/decisions/step.md, D24). Masks may lack the last axis.
    """
    padding = data.crop_padding
    if not padding and not data.flip:
        return images_BxHxWxC
    count, height, width = images_BxHxWxC.shape[:3]
    # Each pixel's position in its image, or outside it.
    rows_BxH = jnp.arange(height, dtype=np.int32) + windows.top_B[:, None] - padding
    columns_BxW = jnp.arange(width, dtype=np.int32) + windows.left_B[:, None] - padding
    if data.flip:
        columns_BxW = jnp.where(windows.flipped_B[:, None], columns_BxW[:, ::-1], columns_BxW)
    out_BxHxWxC = images_BxHxWxC[
        jnp.arange(count, dtype=np.int32)[:, None, None],
        _reflect(rows_BxH, height)[:, :, None],
        _reflect(columns_BxW, width)[:, None, :],
    ]
    if padding and data.padding_mode == "black":
        black = images_BxHxWxC.dtype.type(0)
        outside = ((rows_BxH < 0) | (rows_BxH >= height))[:, :, None] | (
            (columns_BxW < 0) | (columns_BxW >= width)
        )[:, None, :]
        outside = outside.reshape(outside.shape + (1,) * (out_BxHxWxC.ndim - 3))
        out_BxHxWxC = jnp.where(outside, black, out_BxHxWxC)
    return out_BxHxWxC


def _reflect(positions: jax.Array, size: int) -> jax.Array:
    """Return positions within (-size, 2 * size - 1) reflected at the edge pixels into [0, size)."""
    positions = jnp.abs(positions)
    return jnp.where(positions >= size, 2 * (size - 1) - positions, positions)


def color_jitter(
    keys_B: jax.Array,
    images_BxHxWxC: jax.Array,
    *,
    brightness: float,
    contrast: tuple[float, ...],
    dtype: DType,
) -> jax.Array:
    """Shift brightness and stretch contrast, in this order, within 0 to 255, all in `dtype`.

    An image is shifted by at most `brightness` grey levels. Differences from each channel's mean
    are multiplied by a factor drawn from the range `contrast`.
    """
    if not brightness and contrast == (1, 1):
        return images_BxHxWxC

    def one(key, image_HxWxC):
        # float32 by name, as above.
        shift, factor = (
            jax.random.uniform(jax.random.fold_in(key, use), (), jnp.float32, low, high)
            for use, low, high in ((_BRIGHTNESS, -brightness, brightness), (_CONTRAST, *contrast))
        )
        image_HxWxC = jnp.clip(image_HxWxC.astype(dtype) + shift.astype(dtype), 0, 255)
        mean_C = jnp.mean(image_HxWxC, axis=(0, 1))
        return jnp.clip((image_HxWxC - mean_C) * factor.astype(dtype) + mean_C, 0, 255)

    return jax.vmap(one)(keys_B, images_BxHxWxC)


def mixup(
    keys_B: jax.Array, images_BxHxWxC: jax.Array, labels_B: jax.Array, alpha: float, dtype: DType
) -> tuple[jax.Array, Mixture]:
    """Mix each image with its neighbour's (Zhang et al. 2018), in `dtype`.

    Neighbours are the examples 0 and 1, 2 and 3 and so on; B is even. Pairs are the same on any
    number of devices, and nothing is exchanged between them. An example's weight is the larger of
    l and 1 - l; l is drawn from Beta(alpha, alpha), quantised to 4,096 equally likely values.
    """
    from scipy.special import betaincinv  # takes as long to import as the rest of this module

    quantiles = 0.5 + (np.arange(4096) + 0.5) / 8192
    shares = jnp.asarray(betaincinv(alpha, alpha, quantiles), dtype)

    def draw(key):
        return jax.random.randint(jax.random.fold_in(key, _MIXUP), (), 0, len(shares), jnp.int32)

    def neighbours(array):
        return array.reshape(-1, 2, *array.shape[1:])[:, ::-1].reshape(array.shape)

    weight_B = shares[jax.vmap(draw)(keys_B)]
    weight_Bx111 = weight_B[:, None, None, None]
    images_BxHxWxC = images_BxHxWxC.astype(dtype)
    mixed_BxHxWxC = weight_Bx111 * images_BxHxWxC + (1 - weight_Bx111) * neighbours(images_BxHxWxC)
    return mixed_BxHxWxC, Mixture(weight_B, neighbours(labels_B))


def normalize(images_BxHxWxC: jax.Array, mean_C: Array, std_C: Array, dtype: DType) -> jax.Array:
    """Return (image - mean) / std in `dtype`, computed in the statistics' type."""
    return ((images_BxHxWxC.astype(mean_C.dtype) - mean_C) / std_C).astype(dtype)


def per_image_standardization(
    images_BxHxWxC: jax.Array, stats_dtype: DType, dtype: DType
) -> jax.Array:
    """Bring each image to mean 0 and deviation 1 by its own pixels, all channels together.

    As in TensorFlow, an image without contrast is divided by 1 / sqrt(its number of values).
    """
    pixels = images_BxHxWxC.astype(stats_dtype)
    mean = jnp.mean(pixels, axis=(1, 2, 3), keepdims=True)
    std = jnp.std(pixels, axis=(1, 2, 3), keepdims=True)
    least = 1 / np.sqrt(np.prod(images_BxHxWxC.shape[1:]))
    return ((pixels - mean) / jnp.maximum(std, least)).astype(dtype)


def evaluation_views(images_BxHxWxC: jax.Array, *, translate: bool) -> tuple[jax.Array, np.ndarray]:
    """Return views_VxBxHxWxC of the test images and weights_V of the network's outputs for them.

    The images come first, then their mirror images. With `translate`, both are also moved by one
    pixel up and left and by one down and right, the edge reflected, at half of the weight.
    """
    views, weights = [images_BxHxWxC], [1.0]
    if translate:
        margins = ((0, 0), (1, 1), (1, 1), (0, 0))
        padded = jnp.pad(images_BxHxWxC, margins, mode="reflect")
        views += [padded[:, :-2, :-2], padded[:, 2:, 2:]]
        weights = [0.5, 0.25, 0.25]
    views += [view[:, :, ::-1] for view in views]
    return jnp.stack(views), np.array([*weights, *weights]) / 2
