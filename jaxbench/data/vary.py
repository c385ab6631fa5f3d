"""Vary a batch of training images as the config says, each by its own key, inside the step."""

import jax
import jax.numpy as jnp

from jaxbench.config import DataConfig
from jaxbench.data import augment
from jaxbench.data.feeds.base import Examples
from jaxbench.data.rand_augment import rand_augment
from jaxbench.precision import Precision


def vary(
    examples: Examples, keys_B: jax.Array, data: DataConfig, precision: Precision
) -> tuple[Examples, augment.Mixture | None]:
    """Return the examples with their images varied, and what mixup mixed, where it is on."""
    if data.feed == "resident":  # the streamed feed has cropped and flipped on the host
        examples = _crop_and_flip(examples, keys_B, data)
    images_BxHxWxC, mixture = examples.images_BxHxWxC, None
    operations, magnitude = data.rand_augment
    if operations:
        images_BxHxWxC = rand_augment(
            augment.rand_augment_keys(keys_B),
            images_BxHxWxC,
            num_operations=int(operations),
            magnitude=magnitude,
        )
    dtype = precision.param_dtype
    images_BxHxWxC = augment.distort(
        keys_B, images_BxHxWxC, brightness=data.brightness, contrast=data.contrast, dtype=dtype
    )
    if data.mixup:
        images_BxHxWxC, mixture = augment.mixup(
            keys_B, images_BxHxWxC, examples.labels_Bx, alpha=data.mixup, dtype=dtype
        )
    return examples._replace(images_BxHxWxC=images_BxHxWxC), mixture


def _crop_and_flip(examples: Examples, keys_B: jax.Array, data: DataConfig) -> Examples:
    """Return the examples with images cropped and mirrored, and masks with them."""
    windows = augment.draw_windows(keys_B, padding=data.crop_padding)
    if data.flip_order == "alternating":
        windows = augment.alternate(windows, examples.seed, examples.epoch, examples.indices_B)
    how = {"padding": data.crop_padding, "fill": data.padding_mode, "flip": data.flip}
    examples = examples._replace(
        images_BxHxWxC=augment.crop_and_flip(windows, examples.images_BxHxWxC, **how)
    )
    if examples.labels_Bx.ndim == 3:
        examples = examples._replace(
            labels_Bx=augment.crop_and_flip(windows, examples.labels_Bx, **how)
        )
    return examples


def network_inputs(
    images_BxHxWxC: jax.Array,
    statistics: dict[str, jax.Array],
    data: DataConfig,
    precision: Precision,
) -> jax.Array:
    """Return what the network gets: normalised images, or tokens as int32."""
    if data.sequence_length:
        return images_BxHxWxC.astype(jnp.int32)
    if data.standardization == "per_image":
        return augment.whiten(images_BxHxWxC, precision.param_dtype, precision.compute_dtype)
    return augment.normalize(
        images_BxHxWxC, statistics["mean"], statistics["std"], precision.compute_dtype
    )
