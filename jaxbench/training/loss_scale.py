"""Dynamic loss scaling, for networks that compute in float16.

float16 holds nothing below 6e-8 and few digits below 6e-5, where many activations' gradients lie.
So the loss is multiplied by a power of two before it is differentiated, and the gradients are
divided by it in float32 (Micikevicius et al., Mixed Precision Training, ICLR 2018). A step whose
gradients overflow only halves the scale; many good steps in a row double it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

# Powers of two, so that scaling rounds nothing; each step that overflows costs one halving.
FIRST_SCALE = 2.0**16
HIGHEST_SCALE = 2.0**24
# Gradients that overflow unscaled are lost: the network has diverged.
LOWEST_SCALE = 0.5
# Good steps in a row that double the scale.
GROWTH_STEPS = 2000


class LossScale(flax.struct.PyTreeNode):
    """The scale as a part of the state: one for all devices of a model."""

    scale: jax.Array  # float32, the factor of the next step's loss
    good_steps: jax.Array  # int32, steps without overflow since the scale last changed
    skipped_steps: jax.Array  # int32, all steps so far that overflowed

    def scaled(self, loss_fn: Callable) -> Callable:
        """Return `loss_fn`, which returns (loss, anything), with its loss scaled."""

        def scaled_loss_fn(*args):
            loss, aux = loss_fn(*args)
            return self.scale * loss, aux

        return scaled_loss_fn

    def unscaled(self, grads: Any) -> Any:
        return jax.tree.map(lambda g: g / self.scale, grads)

    def adjust(self, finite: jax.Array) -> "LossScale":
        """Return the scale after one more step, whose gradients were all finite or not."""
        good_steps = self.good_steps + 1
        grown = good_steps >= GROWTH_STEPS
        larger = jnp.minimum(2 * self.scale, HIGHEST_SCALE)
        smaller = jnp.maximum(self.scale / 2, LOWEST_SCALE)
        return LossScale(
            scale=jnp.where(finite, jnp.where(grown, larger, self.scale), smaller),
            good_steps=jnp.where(finite & ~grown, good_steps, 0),
            skipped_steps=self.skipped_steps + ~finite,
        )


def first_loss_scale() -> LossScale:
    """Return the loss scale that training starts with."""
    zero = jnp.zeros((), jnp.int32)
    return LossScale(jnp.full((), FIRST_SCALE, jnp.float32), good_steps=zero, skipped_steps=zero)


def all_finite(tree: Any) -> jax.Array:
    """Return one truth value: whether no array of a tree holds an inf or a nan."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


class LossScales:
    """The loss scales of R models after their last step, on the host: for records and messages.

    `loss_scale` is that of all models, or of each; None except under fp16. `say` prints a line.
    """

    def __init__(
        self, loss_scale: LossScale | None, seeds_R: Sequence[int], say: Callable[[str], None]
    ):
        self._seeds_R, self._say, self._latest = seeds_R, say, {}
        if loss_scale is not None:
            scale, skipped = jax.device_get((loss_scale.scale, loss_scale.skipped_steps))
            self._latest = {
                "loss_scale": np.broadcast_to(scale, len(seeds_R)),
                "skipped_steps": np.broadcast_to(skipped, len(seeds_R)),
            }

    def update(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Take the scales after a step from its metrics; print which have fallen."""
        before, self._latest = self._latest, {name: metrics[name] for name in self._latest}
        if not before:
            return
        scales_R = (before["loss_scale"], self._latest["loss_scale"])
        for seed, old, new in zip(self._seeds_R, *scales_R, strict=True):
            if new < old:
                model = f" of seed {seed}" if len(self._seeds_R) > 1 else ""
                self._say(
                    f"step {step}{model} skipped: it overflows float16 at loss scale "
                    f"{old:,.10g}, now {new:,.10g}"
                )

    @property
    def lost_R(self) -> np.ndarray | None:
        """Return which models skip every step from now on; None except under fp16."""
        return self._latest["loss_scale"] <= LOWEST_SCALE if self._latest else None

    def describe(self) -> dict[str, Any]:
        """Return the fields of a record; none except under fp16."""
        if not self._latest:
            return {}
        record = describe_scales(self._latest)
        if len(self._seeds_R) > 1:
            record["loss_scale_models"] = [
                {"seed": seed, "loss_scale": float(scale), "skipped_steps": int(skipped)}
                for seed, scale, skipped in zip(self._seeds_R, *self._latest.values(), strict=True)
            ]
        return record


def describe_scales(metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the fields of a record from a step's metrics: the mean scale, all skipped steps."""
    return {
        "loss_scale": float(metrics["loss_scale"].mean()),
        "skipped_steps": int(metrics["skipped_steps"].sum()),
    }
