"""The resident feed: all images stay on every device as uint8, the step gathers its batch.

Nothing is sent to the devices during an epoch: its order goes over once, at its start.
Letters: N examples, D devices, L of them in this process, S steps, B examples per device.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.data.augment import Examples
from jaxbench.data.dataset import Dataset
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.parallel.mesh import DataMesh


def unpack_batch(
    data: dict[str, jax.Array], batch: dict[str, jax.Array], step: jax.Array
) -> Examples:
    """Gather the batch of `step` (counted from the start of training) inside the step.

    Another example replaces PADDING; only the mask marks it.
    """
    order_SxB = batch["order"]
    epoch, row = jnp.divmod(step, order_SxB.shape[0])
    indices_B = jax.lax.dynamic_index_in_dim(order_SxB, row, keepdims=False)
    mask_B = indices_B != PADDING
    safe_B = jnp.where(mask_B, indices_B, 0)
    return Examples(
        inputs_Bx=data["images"][safe_B],
        labels_Bx=data["labels"][safe_B],
        indices_B=indices_B,
        mask_B=mask_B,
        seed=batch["seed"],
        epoch=epoch,
    )


class ResidentFeed:
    """Places a data set on the devices and sends the order in which each epoch reads it."""

    name = "resident"
    corrupt: dict[str, str] = {}

    def __init__(self, dataset: Dataset, mesh: DataMesh, sampler: EpochSampler, param_dtype: Any):
        self._mesh = mesh
        self._sampler = sampler
        self.steps_per_epoch = sampler.steps_per_epoch
        self.eval_steps = sampler.eval_steps
        self.num_eval = self.eval_count = sampler.num_eval
        # Arguments of the step rather than constants in it: one executable serves every seed
        # and every data set of the same shape.
        statistics = dataset.normalization(param_dtype)
        self.train_data, self.eval_data = (
            mesh.replicate({"images": split.inputs_Nx, "labels": split.labels_Nx, **statistics})
            for split in (dataset.train, dataset.eval)
        )
        leaves = jax.tree.leaves((self.train_data, self.eval_data))
        self.resources = {
            "num_threads": None,
            "num_workers": None,
            "resident_bytes_per_device": sum(leaf.nbytes for leaf in leaves),
            # The indices of the epoch's order, 4 bytes each, sent once in the epoch.
            "sent_bytes_per_step": 4.0 * sampler.layout.images_per_step,
        }
        self._eval_batches = [
            self._send(sampler.eval_LxSxB[:, step : step + 1]) for step in range(self.eval_steps)
        ]

    def _send(self, order_LxSxB: np.ndarray) -> dict[str, jax.Array]:
        return self._mesh.shard({"order": order_LxSxB, "seed": self._sampler.seeds_L})

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Send an epoch's order; every step gets all of it."""
        del first_step  # the state's step counts
        batch = self._send(self._sampler.train_LxSxB(epoch))
        return itertools.repeat(batch, num_steps)

    def eval_batches(self) -> Iterator[Any]:
        """Yield the order of each evaluation step, sent once at the start."""
        return iter(self._eval_batches)

    def close(self) -> None:
        pass
