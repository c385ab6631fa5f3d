"""One device's batch, as the step sees it."""

from typing import NamedTuple

import jax


class Examples(NamedTuple):
    """The B examples that a feed's `unpack_batch` gives to one device's step."""

    images_BxHxWxC: jax.Array  # uint8
    labels_Bx: jax.Array  # int32, or uint8 masks
    indices_B: jax.Array  # int32, the examples' places in their split
    mask_B: jax.Array  # bool, false where the batch is padded
    seed: jax.Array  # uint32, keys random draws
    epoch: jax.Array  # int32, 0 is the first
