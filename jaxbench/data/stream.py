"""The streamed feed: the host cuts, mirrors and gathers each batch and sends it over as uint8.

Worker threads work ahead of the training loop, so that reading, sending and computing overlap
where the host has the cores for it; how long the loop waited is in `data_wait_s`.
Letters: N examples, D devices, S steps, B examples per device.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data import augment
from jaxbench.data.batch import Batch
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.decode import Damaged
from jaxbench.data.encoded import EncodedSplit, example_generator
from jaxbench.data.order import PADDING, Orders
from jaxbench.devices import DataMesh
from jaxbench.environment import available_cores
from jaxbench.errors import DamagedData

# Encoded images that one thread decodes in one go: few enough that all threads share a batch.
_MOST_IN_PART = 32


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
        # An image, its label or mask, and its 4-byte index.
        pixels = int(np.prod(dataset.image_shape))
        label_bytes = 4 if dataset.encoded else dataset.train.labels_Nx[:1].nbytes
        self.sent_bytes_per_step = float(
            orders.batch_size * orders.num_models * (pixels + label_bytes + 4)
        )
        self._draw = jax.jit(self._draw_windows)
        self.num_threads: int | None = data.num_threads or available_cores()
        self._damaged: dict[str, str] = {}
        self._eval_damaged: set[str] = set()

    @property
    def damaged(self) -> dict[str, str]:
        """{name: reason} of what could not be decoded so far."""
        return dict(self._damaged)

    @property
    def eval_count(self) -> int:
        """How many examples an evaluation counts: all but the damaged ones."""
        return self.num_eval - len(self._eval_damaged)

    def train_rows(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yields the batches from `first_step` on; what comes before it is not read."""
        return self._send(self._train_batches(epoch, num_steps, first_step))

    def host_rows(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """The same, left on the host: each row a dict of arrays with a leading axis D."""
        return self._iterate(self._train_batches(epoch, num_steps, first_step))

    def _train_batches(self, epoch: int, num_steps: int, first_step: int) -> Any:
        order_DxSxB = self._orders.train_DxSxB(epoch)[:, first_step : first_step + num_steps]
        if self._dataset.encoded:
            return self._decode_ahead(self._dataset.train, order_DxSxB, epoch, training=True)
        windows_D = self._windows(epoch)

        def prepare(step: int) -> dict[str, np.ndarray]:
            return self._assemble(self._dataset.train, order_DxSxB[:, step], epoch, windows_D)

        return self._work_ahead(prepare, order_DxSxB.shape[1])

    def eval_rows(self) -> Iterator[Any]:
        return self._send(self._eval_batches())

    def _eval_batches(self) -> Any:
        order_DxSxB = self._orders.eval_DxSxB
        if self._dataset.encoded:
            return self._decode_ahead(self._dataset.eval, order_DxSxB, 0, training=False)

        def prepare(step: int) -> dict[str, np.ndarray]:
            return self._assemble(self._dataset.eval, order_DxSxB[:, step], 0, None)

        return self._work_ahead(prepare, self.eval_steps)

    def _decode_ahead(
        self, split: EncodedSplit, order_DxSxB: np.ndarray, epoch: int, *, training: bool
    ) -> Any:
        """Has the threads decode parts of a batch, so that all of them work on the next one."""
        devices, steps, share = order_DxSxB.shape
        size = max(part for part in range(1, _MOST_IN_PART + 1) if share % part == 0)
        parts = devices * share // size
        order_SxPxB = order_DxSxB.transpose(1, 0, 2).reshape(steps * parts, size)
        seeds_P = np.repeat(self._orders.seeds_D, share // size)

        def prepare(number: int) -> dict[str, np.ndarray]:
            seed = int(seeds_P[number % parts])
            return self._decode(split, order_SxPxB[number], seed, epoch, training)

        def join(decoded: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
            row = {
                name: np.concatenate([part[name] for part in decoded]).reshape(
                    devices, share, *decoded[0][name].shape[1:]
                )
                for name in decoded[0]
            }
            return row | self._keys(epoch)

        return self._work_ahead(prepare, steps * parts, parts=parts, join=join)

    def _decode(
        self, split: EncodedSplit, indices_B: np.ndarray, seed: int, epoch: int, training: bool
    ) -> dict[str, np.ndarray]:
        """Decodes some examples; in place of a damaged one comes the next, or padding."""
        height, width, channels = split.image_shape
        images_BxHxWxC = np.empty((len(indices_B), height, width, channels), np.uint8)
        labels_B = np.zeros(len(indices_B), np.int32)
        indices_B = indices_B.copy()
        for place, index in enumerate(indices_B):
            if index == PADDING:
                images_BxHxWxC[place] = 0
                continue
            for attempt in range(len(split)):
                own = int(index + attempt) % len(split)
                generator = None
                if training and (self._data.random_resized_crop or self._data.flip):
                    generator = example_generator(seed, epoch, own)
                try:
                    labels_B[place] = split.decode(
                        own,
                        generator,
                        images_BxHxWxC[place],
                        random_window=self._data.random_resized_crop,
                        flip=self._data.flip,
                    )
                except Damaged as error:
                    self._note_damaged(split, own, str(error), training)
                    if training:
                        continue
                    indices_B[place], images_BxHxWxC[place] = PADDING, 0
                else:
                    indices_B[place] = own
                break
        return {"images": images_BxHxWxC, "labels": labels_B, "indices": indices_B}

    def _note_damaged(self, split: EncodedSplit, index: int, reason: str, training: bool) -> None:
        name = split.source.name(index)
        self._damaged[name] = reason
        if not training:
            self._eval_damaged.add(name)
        if len(self._damaged) > self._data.max_damaged:
            raise DamagedData(
                f"{name}: {reason} (damaged images so far: {len(self._damaged)}; "
                f"data.max_damaged={self._data.max_damaged} allows no more)"
            )

    def _work_ahead(
        self,
        prepare: Callable[[int], dict[str, np.ndarray]],
        count: int,
        *,
        parts: int = 1,
        join: Callable[[Any], dict[str, np.ndarray]] | None = None,
    ) -> Any:
        """Returns a grain data set of prepare(0), prepare(1) ..., or of every `parts` joined."""
        # Imported late: only this feed needs it.
        import grain

        threads = self.num_threads
        # What is decoded but not yet sent: at most a batch, or a part for each thread.
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, parts))
        batches = grain.MapDataset.range(count).map(prepare).to_iter_dataset(options)
        return batches if join is None else batches.batch(parts, batch_fn=join)

    def _send(self, batches: Any) -> Iterator[Any]:
        """Yields batches that lie on the devices, sent ahead by a thread of its own."""
        import grain

        return self._iterate(
            grain.experimental.ThreadPrefetchIterDataset(
                batches.map(self._mesh.shard), prefetch_buffer_size=self._data.prefetch_batches
            )
        )

    def _iterate(self, batches: Any) -> Iterator[Any]:
        # Closed also where the loop ends early: its threads would go on for ever.
        with contextlib.closing(iter(batches)) as iterator:
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
            **self._keys(epoch),
        }

    def _keys(self, epoch: int) -> dict[str, np.ndarray]:
        seeds_D = self._orders.seeds_D
        return {"seed": seeds_D, "epoch": np.full(len(seeds_D), epoch, np.int32)}
