"""The synthetic feed: one batch of random pixels or tokens stays on the devices, for every step.

It measures only the devices: nothing is read, prepared, sent or gathered.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxbench.batch_layout import BatchLayout
from jaxbench.config import DataConfig
from jaxbench.data.dataset import IMAGENET_MEAN, IMAGENET_STD
from jaxbench.parallel.mesh import DataMesh


class SyntheticFeed:
    """Holds one batch, the same for training and evaluation; `label_shape` is () or a mask's."""

    name = "synthetic"
    corrupt: dict[str, str] = {}
    steps_per_epoch = 1000  # an epoch has no meaning here; schedules need one
    eval_steps = 1

    def __init__(
        self,
        data: DataConfig,
        mesh: DataMesh,
        layout: BatchLayout,
        seeds_L: np.ndarray,
        label_shape: tuple[int, ...],
        param_dtype: Any,
    ):
        process = layout.process_index
        generator = np.random.Generator(np.random.Philox(key=[int(seeds_L[0]), process]))
        shape = (layout.devices_per_process, layout.batch_per_device)
        if data.sequence_length:
            whole = (*shape, data.sequence_length + 1)
            tokens = generator.integers(0, data.num_classes, whole, data.example_dtype)
            images, labels = tokens[..., :-1], tokens[..., 1:]
        else:
            high, dtype = (2, np.uint8) if label_shape else (data.num_classes, np.int32)
            labels = generator.integers(0, high, (*shape, *label_shape), dtype)
            images = generator.integers(0, 256, (*shape, *data.image_shape), np.uint8)
        first = process * layout.batch_per_process
        indices_N = np.arange(first, first + layout.batch_per_process, dtype=np.int32)
        batch = {
            "images": images,
            "labels": labels,
            "indices": indices_N.reshape(shape),
            "seed": seeds_L,
            "epoch": np.zeros(shape[0], np.int32),
        }
        self._batch = mesh.shard(batch)
        statistics = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        statistics_C = {
            name: np.resize(np.array(values, param_dtype), data.image_shape[-1])
            for name, values in statistics.items()
            if not data.sequence_length
        }
        self.train_data = self.eval_data = mesh.replicate(statistics_C)
        self.num_eval = self.eval_count = layout.images_per_step
        resident = [*statistics_C.values(), *(leaf[0] for leaf in batch.values())]
        self.resources = {
            "num_threads": None,
            "num_workers": None,
            "resident_bytes_per_device": sum(array.nbytes for array in resident),
            "sent_bytes_per_step": 0.0,
        }

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        del epoch, first_step
        return itertools.repeat(self._batch, num_steps)

    def eval_batches(self) -> Iterator[Any]:
        return iter([self._batch])

    def close(self) -> None:
        pass
