"""The resident feed: all images lie on every device as uint8, batches are drawn in the step.

Nothing is sent to the devices during an epoch: its order goes over once, at its start.
Letters: N examples, D devices, S steps, B examples per device.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.order import PADDING, eval_order, train_order
from jaxbench.devices import DataMesh


class Batch(NamedTuple):
    """One device's share of a batch, as the step sees it."""

    images_BxHxWxC: jax.Array  # uint8
    labels_B: jax.Array  # int32
    indices_B: jax.Array  # int32, the examples' places in their split
    mask_B: jax.Array  # bool, false where the row is padding


def take(data: dict[str, jax.Array], order_SxB: jax.Array, step: jax.Array) -> Batch:
    """Draws the batch of `step` (counted from the start of training) inside the step.

    Where the order says PADDING some example stands in; only the mask tells.
    """
    row = step % order_SxB.shape[0]
    indices_B = jax.lax.dynamic_index_in_dim(order_SxB, row, keepdims=False)
    mask_B = indices_B != PADDING
    safe_B = jnp.where(mask_B, indices_B, 0)
    return Batch(data["images"][safe_B], data["labels"][safe_B], indices_B, mask_B)


def abstract_data(
    num_examples: int, image_shape: tuple[int, int, int], param_dtype: Any
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of what `ResidentFeed` places, for compiling without a data set."""
    channels = image_shape[-1]
    return {
        "images": jax.ShapeDtypeStruct((num_examples, *image_shape), jnp.uint8),
        "labels": jax.ShapeDtypeStruct((num_examples,), jnp.int32),
        "seed": jax.ShapeDtypeStruct((), jnp.uint32),
        "mean": jax.ShapeDtypeStruct((channels,), param_dtype),
        "std": jax.ShapeDtypeStruct((channels,), param_dtype),
    }


class ResidentFeed:
    """Places a data set on the devices and says in which order each epoch reads it.

    Attributes:
      train_data, eval_data: what `take` draws from, on every device.
      eval_orders: one order_DxSxB with S = 1 for each evaluation step, on the devices.
      steps_per_epoch, eval_steps: full training batches in the split; evaluation steps.
      num_eval: examples of the evaluation split.
      bytes_per_device: what both splits take on each device.
    """

    name = "resident"

    def __init__(
        self,
        dataset: Dataset,
        mesh: DataMesh,
        *,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        param_dtype: Any,
    ):
        self._mesh = mesh
        self._num_train = len(dataset.train)
        self._batch_size = batch_size
        self._seed = seed
        self.steps_per_epoch = self._num_train // batch_size
        mean_C, std_C = dataset.channel_statistics()
        # Arguments of the step rather than constants in it: one executable serves every seed
        # and every data set of the same shape.
        shared = {
            "seed": np.uint32(seed),
            "mean": mean_C.astype(param_dtype),
            "std": std_C.astype(param_dtype),
        }
        self.train_data = self._place(dataset.train, shared)
        self.eval_data = self._place(dataset.eval, shared)
        self.num_eval = len(dataset.eval)
        self.bytes_per_device = sum(
            leaf.nbytes for leaf in jax.tree.leaves((self.train_data, self.eval_data))
        )
        order_DxSxB = eval_order(
            self.num_eval, batch_size=eval_batch_size, num_devices=mesh.num_devices
        )
        self.eval_steps = order_DxSxB.shape[1]
        self.eval_orders = [mesh.shard(order_DxSxB[:, s : s + 1]) for s in range(self.eval_steps)]

    def _place(self, split: Split, shared: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return self._mesh.replicate(
            {"images": split.images_NxHxWxC, "labels": split.labels_N, **shared}
        )

    def train_order(self, epoch: int) -> Any:
        """Places order_DxSxB of an epoch (0 is the first) on the devices."""
        return self._mesh.shard(
            train_order(
                self._num_train,
                seed=self._seed,
                epoch=epoch,
                batch_size=self._batch_size,
                num_devices=self._mesh.num_devices,
            )
        )
