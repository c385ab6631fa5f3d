"""The streamed feed: the host cuts, mirrors and gathers each batch and sends it over as uint8.

Worker threads work ahead of the training loop, so that reading, sending and computing overlap
where the host has the cores for it; how long the loop waited is in `data_wait_s`.
Letters: N examples, D devices, S steps, B examples per device.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data import augment
from jaxbench.data.batch import Batch
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.order import PADDING, Orders
from jaxbench.devices import DataMesh


def take(data: dict[str, jax.Array], row: dict[str, jax.Array], step: jax.Array) -> Batch:
    """Unpacks the batch that was sent for this step."""
    del data, step
    return Batch(
        images_BxHxWxC=row["images"],
        labels_Bx=row["labels"],
        indices_B=row["indices"],
        mask_B=row["indices"] != PADDING,
        seed=row["seed"],
        epoch=row["epoch"],
    )


class StreamFeed:
    """Prepares batches of a data set on the host and keeps some of them ready on the devices."""

    name = "stream"

    def __init__(
        self,
        data: DataConfig,
        dataset: Dataset,
        mesh: DataMesh,
        orders: Orders,
        param_dtype: Any,
    ):
        self._data = data
        self._dataset = dataset
        self._mesh = mesh
        self._orders = orders
        self.steps_per_epoch = orders.steps_per_epoch
        self.eval_steps = orders.eval_DxSxB.shape[1]
        self.num_eval = orders.num_eval
        self.train_data = self.eval_data = mesh.replicate(dataset.normalization(param_dtype))
        self.resident_bytes_per_device = sum(
            leaf.nbytes for leaf in jax.tree.leaves(self.train_data)
        )
        example_bytes = sum(
            array[:1].nbytes for array in (dataset.train.images_NxHxWxC, dataset.train.labels_Nx)
        )
        # With each example go its label and its 4-byte index.
        self.sent_bytes_per_step = float(
            orders.batch_size * orders.num_models * (example_bytes + 4)
        )
        self._draw = jax.jit(self._draw_windows)

    def train_rows(self, epoch: int, num_steps: int) -> Iterator[Any]:
        order_DxSxB = self._orders.train_DxSxB(epoch)
        windows_D = self._windows(epoch)

        def prepare(step: int) -> dict[str, np.ndarray]:
            return self._assemble(self._dataset.train, order_DxSxB[:, step], epoch, windows_D)

        return self._work_ahead(prepare, num_steps)

    def eval_rows(self) -> Iterator[Any]:
        def prepare(step: int) -> dict[str, np.ndarray]:
            order_DxB = self._orders.eval_DxSxB[:, step]
            return self._assemble(self._dataset.eval, order_DxB, 0, None)

        return self._work_ahead(prepare, self.eval_steps)

    def _work_ahead(
        self, prepare: Callable[[int], dict[str, np.ndarray]], num_steps: int
    ) -> Iterator[Any]:
        # Imported late: only this feed needs it.
        import grain

        options = grain.ReadOptions(
            num_threads=self._data.num_threads, prefetch_buffer_size=self._data.num_threads
        )
        batches = grain.MapDataset.range(num_steps).map(prepare).to_iter_dataset(options)
        # Sent by a thread of its own, so that the loop finds them on the devices.
        rows = grain.experimental.ThreadPrefetchIterDataset(
            batches.map(self._mesh.shard), prefetch_buffer_size=self._data.prefetch_batches
        )
        # Closed also where the loop ends early: its threads would go on for ever.
        with contextlib.closing(iter(rows)) as iterator:
            yield from iterator

    def _windows(self, epoch: int) -> list[augment.Window] | None:
        """Draws where to cut every example of an epoch, one set for each device's seed."""
        if not self._data.crop_padding and not self._data.flip:
            return None
        drawn = {
            seed: jax.device_get(self._draw(np.uint32(seed), np.int32(epoch)))
            for seed in set(self._orders.seeds_D.tolist())
        }
        return [drawn[seed] for seed in self._orders.seeds_D.tolist()]

    def _draw_windows(self, seed: jax.Array, epoch: jax.Array) -> augment.Window:
        indices_N = jnp.arange(self._orders.num_train, dtype=jnp.int32)
        keys_N = augment.example_keys(seed, epoch, indices_N)
        return augment.draw_windows(keys_N, padding=self._data.crop_padding)

    def _assemble(
        self,
        split: Split,
        order_DxB: np.ndarray,
        epoch: int,
        windows_D: list[augment.Window] | None,
    ) -> dict[str, np.ndarray]:
        images, labels = [], []
        for device, indices_B in enumerate(order_DxB):
            # Where the order says PADDING some example stands in; only the mask tells.
            safe_B = np.where(indices_B == PADDING, 0, indices_B)
            images_BxHxWxC, labels_Bx = split.images_NxHxWxC[safe_B], split.labels_Nx[safe_B]
            if windows_D is not None:
                cut = functools.partial(
                    augment.crop_and_flip_on_host,
                    augment.Window(*(values_N[safe_B] for values_N in windows_D[device])),
                    padding=self._data.crop_padding,
                    fill=self._data.crop_fill,
                    flip=self._data.flip,
                )
                images_BxHxWxC = cut(images_BxHxWxC)
                if labels_Bx.ndim == 3:  # masks move with their images
                    labels_Bx = cut(labels_Bx)
            images.append(images_BxHxWxC)
            labels.append(labels_Bx)
        return {
            "images": np.stack(images),
            "labels": np.stack(labels),
            "indices": order_DxB,
            "seed": self._orders.seeds_D,
            "epoch": np.full(len(order_DxB), epoch, np.int32),
        }
