"""What happens to images inside the step: random crop and flip, then normalisation.

Every random draw is keyed by (seed, epoch, example index), so that an example is varied the same
way on whichever device, process or step it is met.
"""

from typing import Any

import jax
import jax.numpy as jnp


def example_keys(seed: int, epoch: jax.Array, indices_B: jax.Array) -> jax.Array:
    """Returns one random key for each example, keys_B."""
    epoch_key = jax.random.fold_in(jax.random.key(seed), epoch)
    return jax.vmap(lambda index: jax.random.fold_in(epoch_key, index))(indices_B)


def crop_and_flip(
    keys_B: jax.Array, images_BxHxWxC: jax.Array, *, padding: int, fill: str, flip: bool
) -> jax.Array:
    """Pads by `padding` pixels (`fill`: reflect or black), cuts the size out again, mirrors half.

    Returns images of the same shape and type.
    """

    def one(key, image_HxWxC):
        crop_key, flip_key = jax.random.split(key)
        if padding:
            margins = ((padding, padding), (padding, padding), (0, 0))
            mode = {"reflect": "reflect", "black": "constant"}[fill]
            padded = jnp.pad(image_HxWxC, margins, mode=mode)
            # int32 by name: under fp64 the default would draw other bits.
            top, left = jax.random.randint(crop_key, (2,), 0, 2 * padding + 1, jnp.int32)
            start = (top, left, jnp.int32(0))
            image_HxWxC = jax.lax.dynamic_slice(padded, start, image_HxWxC.shape)
        if flip:
            mirrored = jax.random.bits(flip_key, (), jnp.uint8) < 128
            image_HxWxC = jnp.where(mirrored, image_HxWxC[:, ::-1], image_HxWxC)
        return image_HxWxC

    if not padding and not flip:
        return images_BxHxWxC
    return jax.vmap(one)(keys_B, images_BxHxWxC)


def normalize(
    images_BxHxWxC: jax.Array, mean_C: jax.Array, std_C: jax.Array, dtype: Any
) -> jax.Array:
    """Returns (image - mean) / std in `dtype`, computed in the statistics' own type."""
    return ((images_BxHxWxC.astype(mean_C.dtype) - mean_C) / std_C).astype(dtype)
