"""How images are varied and brought to the network's scale.

Every random draw is keyed by (seed, epoch, example index). An example is therefore varied the same
way on any device, in any process or step, and by any feed. Crop and flip move pixels and are done
where the pixels are: inside the step by the resident feed, on the host by the streamed one.
Arithmetic on pixels is always done inside the step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# An example's key is folded with one of these for each use.
_CROP, _FLIP, _BRIGHTNESS, _CONTRAST, _DROPOUT, _MIXUP, _RAND_AUGMENT = range(7)


def example_keys(seed: jax.Array, epoch: jax.Array, indices_B: jax.Array) -> jax.Array:
    """Return keys_B, one random key for each example."""
    epoch_key = jax.random.fold_in(jax.random.key(seed), epoch)
    return jax.vmap(lambda index: jax.random.fold_in(epoch_key, index))(indices_B)


def dropout_keys(keys_B: jax.Array) -> jax.Array:
    """Return keys_B for the networks' dropout."""
    return jax.vmap(lambda key: jax.random.fold_in(key, _DROPOUT))(keys_B)


def rand_augment_keys(keys_B: jax.Array) -> jax.Array:
    """Return keys_B for RandAugment's operations."""
    return jax.vmap(lambda key: jax.random.fold_in(key, _RAND_AUGMENT))(keys_B)


class CropWindows(NamedTuple):
    """Where each example is cropped from its padded image, and whether it is mirrored."""

    top_B: Any  # int32, 0 to 2 * padding
    left_B: Any
    mirrored_B: Any  # bool


def draw_windows(keys_B: jax.Array, *, padding: int) -> CropWindows:
    """Draw a window for each example; mirroring is drawn whether it will be used or not."""

    def one(key):
        # int32 by name: under fp64 the default would draw other bits.
        corner = jax.random.randint(
            jax.random.fold_in(key, _CROP), (2,), 0, 2 * padding + 1, jnp.int32
        )
        mirrored = jax.random.bits(jax.random.fold_in(key, _FLIP), (), jnp.uint8) < 128
        return CropWindows(corner[0], corner[1], mirrored)

    return jax.vmap(one)(keys_B)


def alternate(
    windows: CropWindows, seed: jax.Array, epoch: jax.Array, indices_B: jax.Array
) -> CropWindows:
    """Mirror each example in every other epoch, from the first or the second on.

    What `draw_windows` draws in epoch 0 decides between the two. Two epochs in a row then show both
    sides of every image, where independent draws show half of them the same side twice (Jordan,
    "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024).
    """
    first_keys_B = example_keys(seed, jnp.zeros_like(epoch), indices_B)
    first_B = draw_windows(first_keys_B, padding=0).mirrored_B
    return windows._replace(mirrored_B=first_B ^ (epoch % 2 == 1))


def crop_and_flip(
    windows: CropWindows,
    images_BxHxWxC: Any,
    *,
    padding: int,
    fill: str,
    flip: bool,
    numpy: Any = jnp,
) -> Any:
    """Pad by `padding` pixels (`fill`: reflect or black), crop the size out again, mirror.

    Each pixel is gathered from its place in the image; no padded image is made. Of the forms that
    `benchmarks/resident_input.py` compares this one is the fastest.

    Masks may lack the last axis. `numpy` is jax.numpy inside the step and NumPy on the host; the
    resulting pixels are the same.
    """
    if not padding and not flip:
        return images_BxHxWxC
    count, height, width = images_BxHxWxC.shape[:3]
    rows_BxH, columns_BxW = pixel_places(
        windows, height, width, padding=padding, flip=flip, numpy=numpy
    )
    out_BxHxWxC = images_BxHxWxC[
        numpy.arange(count, dtype=np.int32)[:, None, None],
        reflected(rows_BxH, height, numpy)[:, :, None],
        reflected(columns_BxW, width, numpy)[:, None, :],
    ]
    if padding and fill == "black":
        black = images_BxHxWxC.dtype.type(0)
        outside = are_outside(rows_BxH, columns_BxW, height, width)
        outside = outside.reshape(outside.shape + (1,) * (out_BxHxWxC.ndim - 3))
        out_BxHxWxC = numpy.where(outside, black, out_BxHxWxC)
    return out_BxHxWxC


def pixel_places(
    windows: CropWindows, height: int, width: int, *, padding: int, flip: bool, numpy: Any = jnp
) -> tuple[Any, Any]:
    """Return int32 rows_BxH and columns_BxW: each pixel's place in its image, or outside it."""
    rows_BxH = numpy.arange(height, dtype=np.int32) + windows.top_B[:, None] - padding
    columns_BxW = numpy.arange(width, dtype=np.int32) + windows.left_B[:, None] - padding
    if flip:
        columns_BxW = numpy.where(windows.mirrored_B[:, None], columns_BxW[:, ::-1], columns_BxW)
    return rows_BxH, columns_BxW


def are_outside(rows_BxH: Any, columns_BxW: Any, height: int, width: int) -> Any:
    """Return outside_BxHxW: which of `pixel_places` are outside the image."""
    return ((rows_BxH < 0) | (rows_BxH >= height))[:, :, None] | (
        (columns_BxW < 0) | (columns_BxW >= width)
    )[:, None, :]


def reflected(places: Any, size: int, numpy: Any = jnp) -> Any:
    """Return places with those outside [0, size) mirrored at the edge pixels.

    They must be within (-size, 2 * size - 1).
    """
    places = numpy.abs(places)
    return numpy.where(places >= size, 2 * (size - 1) - places, places)


def distort(
    keys_B: jax.Array,
    images_BxHxWxC: jax.Array,
    *,
    brightness: float,
    contrast: tuple[float, float],
    dtype: Any,
) -> jax.Array:
    """Shift brightness and stretch contrast, in this order, within 0 to 255, all in `dtype`.

    Args:
      brightness: the most grey levels by which an image is shifted, up or down.
      contrast: (low, high): differences from each channel's mean are multiplied by a factor
        drawn from this range.
    """
    if not brightness and contrast == (1, 1):
        return images_BxHxWxC

    def one(key, image_HxWxC):
        # float32 by name, as above.
        shift, factor = (
            jax.random.uniform(jax.random.fold_in(key, use), (), jnp.float32, low, high)
            for use, low, high in (
                (_BRIGHTNESS, -brightness, brightness),
                (_CONTRAST, *contrast),
            )
        )
        image_HxWxC = jnp.clip(image_HxWxC.astype(dtype) + shift.astype(dtype), 0, 255)
        mean_C = jnp.mean(image_HxWxC, axis=(0, 1))
        return jnp.clip((image_HxWxC - mean_C) * factor.astype(dtype) + mean_C, 0, 255)

    return jax.vmap(one)(keys_B, images_BxHxWxC)


class Mixture(NamedTuple):
    """Each example's share in its own mixture, and the label of the example that it is mixed with.

    The loss against the mixed label is the mean of the losses against both, weighted by the shares.
    """

    share_B: jax.Array
    other_labels_B: jax.Array


def mixup(
    keys_B: jax.Array, images_BxHxWxC: jax.Array, labels_B: jax.Array, *, alpha: float, dtype: Any
) -> tuple[jax.Array, Mixture]:
    """Mix each image with that of its neighbour (Zhang et al. 2018), in `dtype`.

    Neighbours are the examples 0 and 1, 2 and 3 and so on, each with a share of its own: pairs are
    the same on any number of devices, and nothing is exchanged between them. B is even. A share is
    the larger part of one drawn from Beta(alpha, alpha), one of 4,096 equally likely ones.
    """
    # For those alone who mix: its import takes as long as the rest of this module's.
    from scipy.special import betaincinv

    places = 0.5 + (np.arange(4096) + 0.5) / 8192
    shares = jnp.asarray(betaincinv(alpha, alpha, places), dtype)

    def draw(key):
        return jax.random.randint(jax.random.fold_in(key, _MIXUP), (), 0, len(shares), jnp.int32)

    def neighbours(array):
        return array.reshape(-1, 2, *array.shape[1:])[:, ::-1].reshape(array.shape)

    share_B = shares[jax.vmap(draw)(keys_B)]
    share_Bx111 = share_B[:, None, None, None]
    images_BxHxWxC = images_BxHxWxC.astype(dtype)
    mixed_BxHxWxC = share_Bx111 * images_BxHxWxC + (1 - share_Bx111) * neighbours(images_BxHxWxC)
    return mixed_BxHxWxC, Mixture(share_B, neighbours(labels_B))


def normalize(
    images_BxHxWxC: jax.Array, mean_C: jax.Array, std_C: jax.Array, dtype: Any
) -> jax.Array:
    """Return (image - mean) / std in `dtype`, computed in the statistics' own type."""
    return ((images_BxHxWxC.astype(mean_C.dtype) - mean_C) / std_C).astype(dtype)


def evaluation_views(images_BxHxWxC: jax.Array, *, translate: bool) -> tuple[jax.Array, np.ndarray]:
    """Return views_VxBxHxWxC of the test images and weights_V of the network's outputs for them.

    The images themselves come first, then their mirror images. With `translate`, both are also
    moved by one pixel up and left and by one down and right, the edge reflected; the moved ones
    have half of the weight.
    """
    views = [images_BxHxWxC]
    weights = [1.0]
    if translate:
        margins = ((0, 0), (1, 1), (1, 1), (0, 0))
        padded = jnp.pad(images_BxHxWxC, margins, mode="reflect")
        views += [padded[:, :-2, :-2], padded[:, 2:, 2:]]
        weights = [0.5, 0.25, 0.25]
    views += [view[:, :, ::-1] for view in views]
    return jnp.stack(views), np.array([*weights, *weights]) / 2


def whiten(images_BxHxWxC: jax.Array, stats_dtype: Any, dtype: Any) -> jax.Array:
    """Bring each image to mean 0 and deviation 1 by its own pixels, all channels together.

    An image without contrast is divided by 1 / sqrt(its number of values), as TensorFlow's
    `per_image_standardization` does.
    """
    pixels = images_BxHxWxC.astype(stats_dtype)
    mean = jnp.mean(pixels, axis=(1, 2, 3), keepdims=True)
    std = jnp.std(pixels, axis=(1, 2, 3), keepdims=True)
    least = 1 / np.sqrt(np.prod(images_BxHxWxC.shape[1:]))
    return ((pixels - mean) / jnp.maximum(std, least)).astype(dtype)
