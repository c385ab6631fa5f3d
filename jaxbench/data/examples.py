"""One device's share of a batch, as the step sees it."""

from typing import NamedTuple

import jax


class Examples(NamedTuple):
    images_BxHxWxC: jax.Array  # uint8
    labels_Bx: jax.Array  # int32, or uint8 masks
    indices_B: jax.Array  # int32, the examples' places in their split
    mask_B: jax.Array  # bool, false where the row is padding
    seed: jax.Array  # uint32, what random draws are keyed by
    epoch: jax.Array  # int32, 0 is the first
