"""The streamed feed: the host cuts, mirrors and gathers each batch and sends it over as uint8.

Worker threads (or processes, for encoded images) work ahead of the training loop, so that reading,
sending and computing overlap where the host has the cores for it; how long the loop waited is in
`data_wait_s`. Training is worked ahead of from the run's first step to its last, across epochs.
Letters: N examples, D devices, S steps, B examples per device.
"""

import contextlib
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from jaxbench.config import DataConfig
from jaxbench.data import augment
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.examples import Examples
from jaxbench.data.feeds.decode_workers import ChunkDecoder, SharedBatches, begin_worker
from jaxbench.data.images.decode import load_decoder
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.distributed.mesh import DataMesh
from jaxbench.errors import BadInput, CorruptDataError, WorkerLost
from jaxbench.hardware.environment import available_cores

_QUIET = "ignore:resource_tracker:UserWarning"


def unpack_batch(
    data: dict[str, jax.Array], batch: dict[str, jax.Array], step: jax.Array
) -> Examples:
    """Unpacks the batch that was sent for this step."""
    del data, step
    return Examples(
        images_BxHxWxC=batch["images"],
        labels_Bx=batch["labels"],
        indices_B=batch["indices"],
        mask_B=batch["indices"] != PADDING,
        seed=batch["seed"],
        epoch=batch["epoch"],
    )


class StreamFeed:
    """Prepares batches of a data set on the host and keeps some of them ready on the devices.

    Args:
      data: how images are varied, by how many threads and processes.
      dataset: the splits.
      mesh: the devices.
      orders: which example is read when.
      param_dtype: of the pixels' mean and deviation.
      num_steps: training steps of the whole run; what comes after them is not prepared.

    Raises:
      BadInput: worker processes for images that lie in memory.
    """

    name = "stream"

    def __init__(
        self,
        data: DataConfig,
        dataset: Dataset,
        mesh: DataMesh,
        orders: EpochSampler,
        param_dtype: Any,
        num_steps: int,
    ):
        if data.num_workers and not dataset.encoded:
            raise BadInput(
                f"data.num_workers={data.num_workers}: {dataset.description} lies in memory, where "
                "threads cut images out; worker processes are for images decoded as needed"
            )
        self._data = data
        self._dataset = dataset
        self._mesh = mesh
        self._sampler = orders
        self._num_steps = num_steps
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
        # Before any thread or process works: see there.
        self.jpeg_decoder: str | None = load_decoder() if dataset.encoded else None
        cores = available_cores()
        self.num_workers: int | None = data.num_workers
        self.num_threads: int | None = data.num_threads or -(-cores // max(1, data.num_workers))
        self._corrupt: dict[str, str] = {}
        self._eval_damaged: set[str] = set()
        self._draw = jax.jit(self._draw_windows)
        self._windows_by_epoch: dict[int, list[augment.Window] | None] = {}
        self._windows_lock = threading.Lock()
        # Training batches under way, and the step that the next of them is for.
        self._ahead: Any = None
        self._next_step = 0

    @property
    def corrupt(self) -> dict[str, str]:
        """{name: reason} of what could not be decoded so far."""
        return dict(self._corrupt)

    @property
    def eval_count(self) -> int:
        """How many examples an evaluation counts: all but the corrupt ones."""
        return self.num_eval - len(self._eval_damaged)

    def close(self) -> None:
        """Ends the threads and processes that work ahead."""
        if self._ahead is None:
            return
        self._ahead.close()
        self._ahead = None

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yields the batches from `first_step` on; what comes before it is not read.

        Where this goes on from where it was left, what has been worked ahead is used.
        """
        start = epoch * self.steps_per_epoch + first_step
        if self._ahead is None or self._next_step != start:
            self.close()
            stop = max(self._num_steps, start + num_steps)
            self._ahead = iter(self._send(self._train_batches(start, stop)))
            self._next_step = start
        for _ in range(num_steps):
            try:
                batch = next(self._ahead)
            except Exception as error:
                self.close()
                if "Worker process was terminated" in str(error):  # grain's words
                    raise WorkerLost(
                        "a worker process that decodes images was killed; where nobody did, it "
                        "was the system, short of memory: fewer data.num_workers need less"
                    ) from error
                raise
            self._next_step += 1
            yield batch

    def host_rows(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """The same batches, left on the host: each a dict of arrays with a leading axis D."""
        start = epoch * self.steps_per_epoch + first_step
        return self._iterate(self._train_batches(start, start + num_steps))

    def eval_batches(self) -> Iterator[Any]:
        """Yields the batches of the evaluation, which threads prepare in any case."""
        self._eval_damaged = set()  # an image may be readable again
        yield from self._iterate(self._send(self._eval_batches()))
        if not self.eval_count:
            raise CorruptDataError(
                f"{list(self._corrupt)[-1]}: no image of the evaluation split can be decoded"
            )

    def _train_batches(self, start: int, stop: int) -> Any:
        """Returns a grain data set of the batches of steps `start` to `stop`, counted from 0."""
        if self._dataset.encoded:
            return self._decode_ahead(start, stop, training=True)

        def prepare(step: int) -> dict[str, np.ndarray]:
            epoch, place = divmod(step, self.steps_per_epoch)
            order_DxB = self._sampler.train_DxSxB(epoch)[:, place]
            return self._assemble(self._dataset.train, order_DxB, epoch, self._windows(epoch))

        return self._work_ahead(prepare, start, stop)

    def _eval_batches(self) -> Any:
        if self._dataset.encoded:
            return self._decode_ahead(0, self.eval_steps, training=False)

        def prepare(step: int) -> dict[str, np.ndarray]:
            order_DxB = self._sampler.eval_DxSxB[:, step]
            return self._assemble(self._dataset.eval, order_DxB, 0, None)

        return self._work_ahead(prepare, 0, self.eval_steps)

    def _decode_ahead(self, start: int, stop: int, *, training: bool) -> Any:
        """Has parts of batches decoded, so that all threads work on the next one."""
        import grain

        split = self._dataset.train if training else self._dataset.eval
        decoder = ChunkDecoder(
            split,
            self._sampler,
            training=training,
            random_window=self._data.random_resized_crop,
            flip=self._data.flip,
            num_classes=self._dataset.num_classes,
            max_corrupt=self._data.max_corrupt,
        )
        devices, share = decoder.num_devices, decoder.share
        in_processes = training and self._data.num_workers > 0
        shared = None if in_processes else SharedBatches(decoder, split.image_shape)

        def join(parts: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
            for part in parts:
                self._note_damaged(json.loads(part["corrupt"]), training)
                if training and (part["indices"] == PADDING).any():
                    raise CorruptDataError(
                        f"{list(self._corrupt)[-1]}: no image of the training split is left that "
                        "can be decoded"
                    )
            number = parts[0]["batch"]
            if shared is not None:
                images_NxHxWx3 = shared.take(number)
            else:
                images_NxHxWx3 = np.concatenate([part["images"] for part in parts])
            batch = {
                "images": images_NxHxWx3.reshape(devices, share, *split.image_shape),
                **{
                    name: np.concatenate([part[name] for part in parts]).reshape(devices, share)
                    for name in ("labels", "indices")
                },
                **self._keys(number // self.steps_per_epoch if training else 0),
            }
            for part in parts:
                # A worker process handed it over in shared memory, which is freed with the last
                # reference; grain keeps some of the parts until its end.
                part.clear()
            return batch

        ahead = self._work_ahead(
            shared or decoder,
            start * decoder.parts,
            stop * decoder.parts,
            buffer=decoder.parts,
            # Worker processes share the cores; what is not theirs has all of them.
            threads=self.num_threads if in_processes else self._data.num_threads,
        )
        if in_processes:
            if not flags.FLAGS.is_parsed():  # grain looks at flags of its own
                flags.FLAGS.mark_as_parsed()
            # Python frees what interrupted processes leave, and would say so in two more lines. The
            # process that does it starts with the workers and takes these options over.
            if _QUIET not in sys.warnoptions:
                sys.warnoptions.append(_QUIET)
            ahead = ahead.mp_prefetch(
                grain.MultiprocessingOptions(self._data.num_workers, 2), begin_worker
            )
        return ahead.batch(decoder.parts, batch_fn=join)

    def _note_damaged(self, corrupt: dict[str, str], training: bool) -> None:
        self._corrupt |= corrupt
        if not training:
            self._eval_damaged |= corrupt.keys()
        if len(self._corrupt) > self._data.max_corrupt:
            name, reason = list(self._corrupt.items())[self._data.max_corrupt]
            raise CorruptDataError(
                f"{name}: {reason} (corrupt images so far: {len(self._corrupt)}; "
                f"data.max_corrupt={self._data.max_corrupt} allows no more)"
            )

    def _work_ahead(
        self,
        prepare: Callable[[int], Any],
        start: int,
        stop: int,
        *,
        buffer: int = 1,
        threads: int = 0,
    ) -> Any:
        """Returns a grain data set of prepare(start) ... prepare(stop - 1).

        Args:
          buffer: how many of them are held ready, one for each thread at least.
          threads: 0 is one for each core.
        """
        # Imported late: only this feed needs it.
        import grain

        threads = threads or self._data.num_threads or available_cores()
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, buffer))
        return grain.MapDataset.range(start, stop).map(prepare).to_iter_dataset(options)

    def _send(self, batches: Any) -> Any:
        """Has a thread of its own put batches on the devices, ahead of their use."""
        import grain

        return grain.experimental.ThreadPrefetchIterDataset(
            batches.map(self._mesh.shard), prefetch_buffer_size=self._data.prefetch_batches
        )

    def _iterate(self, batches: Any) -> Iterator[Any]:
        # Closed also where the loop ends early: its threads would go on for ever.
        with contextlib.closing(iter(batches)) as iterator:
            yield from iterator

    def _windows(self, epoch: int) -> list[augment.Window] | None:
        """Draws where to cut every example of an epoch, one set for each device's seed."""
        if not self._data.crop_padding and not self._data.flip:
            return None
        with self._windows_lock:
            if epoch not in self._windows_by_epoch:
                drawn = {
                    seed: jax.device_get(self._draw(np.uint32(seed), np.int32(epoch)))
                    for seed in set(self._sampler.seeds_D.tolist())
                }
                # Batches of two epochs are prepared at once where one ends and the other begins.
                self._windows_by_epoch.pop(epoch - 2, None)
                self._windows_by_epoch[epoch] = [
                    drawn[seed] for seed in self._sampler.seeds_D.tolist()
                ]
            return self._windows_by_epoch[epoch]

    def _draw_windows(self, seed: jax.Array, epoch: jax.Array) -> augment.Window:
        indices_N = jnp.arange(self._sampler.num_train, dtype=jnp.int32)
        keys_N = augment.example_keys(seed, epoch, indices_N)
        windows = augment.draw_windows(keys_N, padding=self._data.crop_padding)
        if self._data.flip_order == "alternating":
            windows = augment.alternate(windows, seed, epoch, indices_N)
        return windows

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
                    fill=self._data.padding_mode,
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
        seeds_D = self._sampler.seeds_D
        return {"seed": seeds_D, "epoch": np.full(len(seeds_D), epoch, np.int32)}
