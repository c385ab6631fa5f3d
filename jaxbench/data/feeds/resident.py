"""The resident feed: all images lie on every device as uint8, batches are drawn in the step.

Nothing is sent to the devices during an epoch: its order goes over once, at its start.
Letters: N examples, D devices, S steps, B examples per device.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.examples import Examples
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.distributed.mesh import DataMesh


def unpack_batch(
    data: dict[str, jax.Array], batch: dict[str, jax.Array], step: jax.Array
) -> Examples:
    """Draws the batch of `step` (counted from the start of training) inside the step.

    Where the order says PADDING some example stands in; only the mask tells.
    """
    order_SxB = batch["order"]
    epoch, place = jnp.divmod(step, order_SxB.shape[0])
    indices_B = jax.lax.dynamic_index_in_dim(order_SxB, place, keepdims=False)
    mask_B = indices_B != PADDING
    safe_B = jnp.where(mask_B, indices_B, 0)
    return Examples(
        images_BxHxWxC=data["images"][safe_B],
        labels_Bx=data["labels"][safe_B],
        indices_B=indices_B,
        mask_B=mask_B,
        seed=batch["seed"],
        epoch=epoch,
    )


class ResidentFeed:
    """Places a data set on the devices and says in which order each epoch reads it."""

    name = "resident"

    def __init__(
        self,
        data: DataConfig,
        dataset: Dataset,
        mesh: DataMesh,
        orders: EpochSampler,
        param_dtype: Any,
        num_steps: int,
    ):
        del data, num_steps  # the step does what it asks for, as long as it is asked
        self._mesh = mesh
        self._sampler = orders
        self.steps_per_epoch = orders.steps_per_epoch
        # Arguments of the step rather than constants in it: one executable serves every seed
        # and every data set of the same shape.
        statistics = dataset.normalization(param_dtype)
        self.train_data = self._place(dataset.train, statistics)
        self.eval_data = self._place(dataset.eval, statistics)
        self.num_eval = self.eval_count = orders.num_eval
        self.corrupt: dict[str, str] = {}
        self.num_threads: int | None = None
        self.num_workers: int | None = None
        self.jpeg_decoder: str | None = None
        self.resident_bytes_per_device = sum(
            leaf.nbytes for leaf in jax.tree.leaves((self.train_data, self.eval_data))
        )
        self.eval_steps = orders.eval_DxSxB.shape[1]
        self._eval_rows = [
            self._shard(orders.eval_DxSxB[:, s : s + 1]) for s in range(self.eval_steps)
        ]
        # Only the epoch's order, and only once.
        self.sent_bytes_per_step = 4.0 * orders.batch_size * orders.num_models

    def _place(self, split: Split, statistics: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return self._mesh.replicate(
            {"images": split.images_NxHxWxC, "labels": split.labels_Nx, **statistics}
        )

    def _shard(self, order_DxSxB: np.ndarray) -> dict[str, jax.Array]:
        return self._mesh.shard({"order": order_DxSxB, "seed": self._sampler.seeds_D})

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Sends the order of an epoch over; every step gets it whole and finds its own batch."""
        del first_step  # the state knows
        batch = self._shard(self._sampler.train_DxSxB(epoch))
        return itertools.repeat(batch, num_steps)

    def eval_batches(self) -> Iterator[Any]:
        return iter(self._eval_rows)

    def close(self) -> None:
        """Nothing works ahead."""
