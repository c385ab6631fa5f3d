"""The made-up feed: one batch of random pixels lies on the devices, and every step gets it.

For measuring the devices alone: nothing is read, prepared, sent or cut out.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import IMAGENET_MEAN, IMAGENET_STD
from jaxbench.distributed.mesh import DataMesh

# An epoch has no meaning here; schedules need one.
_STEPS_PER_EPOCH = 1000


class SyntheticFeed:
    """Holds one batch for training and one for evaluation, both the same.

    Args:
      data: the images' shape and the number of classes.
      mesh: the devices.
      seeds_L: the seed of the model on each device of this process.
      process: (index, count) of the processes.
      share: B, examples per device.
      label_shape: of one example's label, () or a mask's.
      param_dtype: of the pixels' mean and deviation.
    """

    name = "synthetic"
    num_threads: int | None = None
    num_workers: int | None = None
    jpeg_decoder: str | None = None
    sent_bytes_per_step = 0.0
    steps_per_epoch = _STEPS_PER_EPOCH
    eval_steps = 1

    def __init__(
        self,
        data: DataConfig,
        mesh: DataMesh,
        seeds_L: np.ndarray,
        process: tuple[int, int],
        share: int,
        label_shape: tuple[int, ...],
        param_dtype: Any,
    ):
        devices = len(seeds_L)
        # Each process makes up its own images, and none of the others'.
        generator = np.random.Generator(np.random.Philox(key=[int(seeds_L[0]), process[0]]))
        shape = (devices, share, *data.image_shape)
        if label_shape:
            labels_LxBx = generator.integers(0, 2, (devices, share, *label_shape), np.uint8)
        else:
            labels_LxBx = generator.integers(0, data.num_classes, (devices, share), np.int32)
        first = process[0] * devices * share
        indices_N = np.arange(first, first + devices * share, dtype=np.int32)
        batch = {
            "images": generator.integers(0, 256, shape, np.uint8),
            "labels": labels_LxBx,
            "indices": indices_N.reshape(devices, share),
            "seed": seeds_L,
            "epoch": np.zeros(devices, np.int32),
        }
        self._batch = mesh.shard(batch)
        channels = data.image_shape[-1]
        self.train_data = self.eval_data = mesh.replicate(
            {
                "mean": np.resize(np.array(IMAGENET_MEAN, param_dtype), channels),
                "std": np.resize(np.array(IMAGENET_STD, param_dtype), channels),
            }
        )
        self.num_eval = self.eval_count = process[1] * devices * share
        self.corrupt: dict[str, str] = {}
        self.resident_bytes_per_device = sum(
            leaf.nbytes for leaf in jax.tree.leaves(self.train_data)
        ) + sum(leaf.nbytes // devices for leaf in batch.values())

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yields the one batch again and again."""
        del epoch, first_step
        return itertools.repeat(self._batch, num_steps)

    def eval_batches(self) -> Iterator[Any]:
        """Yields the one batch."""
        return iter([self._batch])

    def close(self) -> None:
        """Nothing works ahead."""
