"""Dynamic loss scaling, for networks that compute in float16.

float16 holds nothing below 6e-8 and few digits below 6e-5, where many activations' gradients lie.
So the loss is multiplied by a power of two before it is differentiated, and the gradients are
divided by it in float32 (Micikevicius et al., Mixed Precision Training, ICLR 2018). The scale is as
large as the gradients allow: halved by every step whose gradients overflow, which changes nothing
else, and doubled after many good steps in a row.
"""

from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

# Powers of two, so that scaling rounds nothing off; each step that overflows costs one halving.
FIRST_SCALE = 2.0**16
HIGHEST_SCALE = 2.0**24
# Gradients that overflow unscaled are lost: the network has diverged.
LOWEST_SCALE = 0.5
# So many good steps in a row double the scale.
GROWTH_STEPS = 2000


class LossScale(flax.struct.PyTreeNode):
    """The scale on its way through the steps; every device has the same, or each model its own.

    Attributes:
      scale: float32, what the next step's loss is multiplied by.
      good_steps: int32, in a row, since the scale last changed.
      skipped_steps: int32, all those so far that overflowed.
    """

    scale: jax.Array
    good_steps: jax.Array
    skipped_steps: jax.Array

    def scaled(self, loss_fn: Callable) -> Callable:
        """Returns `loss_fn`, which returns (loss, anything), with its loss scaled."""

        def scaled_loss_fn(*args):
            loss, aux = loss_fn(*args)
            return self.scale * loss, aux

        return scaled_loss_fn

    def unscaled(self, grads: Any) -> Any:
        return jax.tree.map(lambda g: g / self.scale, grads)

    def adjust(self, finite: jax.Array) -> "LossScale":
        """Returns the scale after one more step, whose gradients were all finite or not."""
        good_steps = self.good_steps + 1
        grown = good_steps >= GROWTH_STEPS
        larger = jnp.minimum(2 * self.scale, HIGHEST_SCALE)
        smaller = jnp.maximum(self.scale / 2, LOWEST_SCALE)
        return LossScale(
            scale=jnp.where(finite, jnp.where(grown, larger, self.scale), smaller),
            good_steps=jnp.where(finite & ~grown, good_steps, 0),
            skipped_steps=self.skipped_steps + ~finite,
        )

    def metrics(self) -> jax.Array:
        """Returns metrics_2, float32: SKIPPED_STEPS and SCALE, at the end of a step's metrics."""
        return jnp.stack([self.skipped_steps.astype(jnp.float32), self.scale])


# Places in a training step's metrics, from their end.
SKIPPED_STEPS, SCALE = -2, -1


def describe_scales(metrics_RxM: np.ndarray) -> dict[str, float]:
    """Returns what a record says of R models after a step: the mean scale, all steps skipped."""
    return {
        "loss_scale": float(metrics_RxM[:, SCALE].mean()),
        "skipped_steps": int(metrics_RxM[:, SKIPPED_STEPS].sum()),
    }


def first_loss_scale() -> LossScale:
    zero = jnp.zeros((), jnp.int32)
    return LossScale(jnp.full((), FIRST_SCALE, jnp.float32), good_steps=zero, skipped_steps=zero)


def all_finite(tree: Any) -> jax.Array:
    """Returns one truth value: whether no array of a tree holds an inf or a nan."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def select_tree(condition: jax.Array, tree: Any, other: Any) -> Any:
    """Returns the first of two trees where the truth value is true, else the second.

    Selected, not branched to: on a GPU a branch waits for the host.
    """
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)
