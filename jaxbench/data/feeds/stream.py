"""The streamed feed: the host prepares each batch and sends it as uint8.

Threads (or worker processes, for encoded images) work ahead of the training loop, so that reading,
sending and computing overlap if the host has the cores for it; `data_wait_s` is how long the loop
waited. Training batches are prepared from the run's first step to its last, across epochs.
Letters: N examples, L devices of this process, B examples per device.
"""

import contextlib
import errno
import gc
import json
import math
import mmap
import os
import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from jaxbench.aliases import Batch, DType
from jaxbench.config import DataConfig
from jaxbench.data.augment import Examples
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.feeds.decode_workers import ChunkDecoder, begin_worker
from jaxbench.data.images.decode import load_decoder
from jaxbench.data.images.encoded import check_open_files
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.errors import BadInput, RunFailed
from jaxbench.hardware.system import available_cores
from jaxbench.parallel.mesh import DataMesh
from jaxbench.parallel.signals import defer_signals

# Where worker processes pass chunks; the most chunks that one process has there at once (7.8 were
# measured: in its queue, in grain's threads, not yet freed); the bytes of its queues and locks.
_SHARED = "/dev/shm"
_CHUNKS_PER_WORKER, _QUEUE_BYTES = 9, 2**17
# Files that worker processes open in the first one, and those that other parts still open.
_FILES_PER_WORKER, _FILES = 8, 16
_QUIET = "ignore:resource_tracker:UserWarning"


def unpack_batch(
    data: dict[str, jax.Array], batch: dict[str, jax.Array], step: jax.Array
) -> Examples:
    """Unpack the batch that was sent for this step."""
    del data, step
    return Examples(
        inputs_Bx=batch["images"],
        labels_Bx=batch["labels"],
        indices_B=batch["indices"],
        mask_B=batch["indices"] != PADDING,
        seed=batch["seed"],
        epoch=batch["epoch"],
    )


class StreamFeed:
    """Prepares batches of a data set on the host and keeps some of them ready on the devices.

    No batch is prepared for steps after the run's `num_steps`.
    """

    name = "stream"

    def __init__(
        self,
        data: DataConfig,
        dataset: Dataset,
        mesh: DataMesh,
        sampler: EpochSampler,
        param_dtype: DType,
        num_steps: int,
    ):
        self._data, self._dataset, self._mesh, self._sampler = data, dataset, mesh, sampler
        self._num_steps = num_steps
        self.steps_per_epoch, self.eval_steps = sampler.steps_per_epoch, sampler.eval_steps
        self.num_eval = sampler.num_eval
        self.image_warnings: dict[str, str] = {}
        self.train_data = self.eval_data = mesh.replicate(dataset.normalization(param_dtype))
        if dataset.encoded:
            load_decoder()
            example_bytes = int(np.prod(dataset.image_shape)) + 4
            if data.num_workers:
                decoder = ChunkDecoder(data, dataset.train, sampler, dataset.num_classes, True)
                _check_open_files(data.num_workers)
                _check_shared_memory(data.num_workers, decoder, example_bytes)
        else:
            train = dataset.train
            example_bytes = train.inputs_Nx[:1].nbytes + train.labels_Nx[:1].nbytes
        self.resources = {
            "num_threads": _num_threads(data, data.num_workers),
            "num_workers": data.num_workers,
            "resident_bytes_per_device": sum(x.nbytes for x in jax.tree.leaves(self.train_data)),
            # 4 bytes more are each example's index.
            "sent_bytes_per_step": float(sampler.layout.images_per_step * (example_bytes + 4)),
        }
        # Training batches under way, and the step that the next of them is for.
        self._ahead: Any = None
        self._next_step = 0

    def close(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from `first_step` on; earlier ones are not read.

        If this continues the previous call, the batches prepared ahead are used. Raises RunFailed
        if an image is corrupt, or a worker process was killed.
        """
        start = epoch * self.steps_per_epoch + first_step
        with self._explained():
            if self._ahead is None or self._next_step != start:
                self.close()
                stop = max(self._num_steps, start + num_steps)
                self._ahead = self._sent_ahead(start, stop, training=True)
                self._next_step = start
                _start(self._ahead)
        for _ in range(num_steps):
            with self._explained():
                batch = next(self._ahead)
            self._next_step += 1
            yield batch

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise RunFailed for what the limits of the system make of worker processes."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(OSError):  # under the same limit
                self.close()
            check_open_files(error)
            number, reason = getattr(error, "errno", None), ""
            if "Worker process was terminated" in str(error):  # grain's words
                reason = (
                    "a worker process that decodes images was killed; if nobody did, it was the "
                    f"system, short of memory or of room in {_SHARED}"
                )
            elif number == errno.ENOSPC:
                reason = f"{_SHARED}, in which worker processes pass images, is full"
            elif number == errno.EAGAIN or "start new thread" in str(error):
                reason = "the system allows no more processes or threads (`ulimit -u`)"
            if reason and self._data.num_workers:
                raise RunFailed(
                    f"{reason}: fewer data.num_workers need less, "
                    "--experiment.data.num_workers=0 none"
                ) from error
            raise

    def host_batches(
        self, epoch: int, num_steps: int, first_step: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the same batches, left on the host: each a dict of arrays with a leading axis L."""
        start = epoch * self.steps_per_epoch + first_step
        with contextlib.closing(iter(self._batches(start, start + num_steps, True))) as batches:
            yield from batches

    def eval_batches(self) -> Iterator[Batch]:
        """Yield the batches of the evaluation; raise RunFailed for a corrupt image."""
        # Closed also if the loop ends early: the threads would go on for ever.
        with (
            self._explained(),
            contextlib.closing(self._sent_ahead(0, self.eval_steps, training=False)) as batches,
        ):
            _start(batches)
            yield from batches

    def _sent_ahead(self, start: int, stop: int, *, training: bool) -> Any:
        """Return an iterator over batches, which another thread sends to the devices."""
        import grain

        sent, ahead = self._batches(start, stop, training).map(self._mesh.shard), grain.experimental
        num_ahead = self._data.prefetch_batches
        return iter(ahead.ThreadPrefetchIterDataset(sent, prefetch_buffer_size=num_ahead))

    def _batches(self, start: int, stop: int, training: bool) -> Any:
        """Return a grain data set of the batches of steps `start` to `stop` - 1.

        Encoded images are decoded in chunks, so that all threads work on the next batch. Worker
        processes decode only for training.
        """
        import grain  # imported late: only the streamed feed needs it

        dataset, sampler = self._dataset, self._sampler
        split = dataset.train if training else dataset.eval

        def gather(step: int) -> dict[str, np.ndarray]:
            epoch, row = divmod(step, self.steps_per_epoch) if training else (0, step)
            order_LxSxB = sampler.train_LxSxB(epoch) if training else sampler.eval_LxSxB
            return self.assemble(split, order_LxSxB[:, row], epoch)

        def join(chunks: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
            for chunk in chunks:
                self.image_warnings |= json.loads(chunk["warnings"])
            number, batch = chunks[0]["batch"], {}
            for name in ("images", "labels", "indices"):
                if name == "images" and images is not None:
                    array = images.take(number)
                else:
                    array = np.stack([chunk[name] for chunk in chunks])
                batch[name] = array.reshape(*decoder.batch_shape, *array.shape[2:])
            epoch = number // self.steps_per_epoch if training else 0
            for chunk in chunks:
                # A worker process passes a chunk in shared memory, which is freed with the last
                # reference; grain keeps some of the chunks until its end.
                chunk.clear()
            return batch | sampler.keys(epoch)

        prepare, per_batch, num_workers, images = gather, 1, 0, None
        if dataset.encoded:
            decoder = ChunkDecoder(self._data, split, sampler, dataset.num_classes, training)
            per_batch = decoder.chunks_per_batch
            num_workers = self._data.num_workers if training else 0
            images = None if num_workers else _BatchImages(decoder)
            prepare = images.decode if images else decoder
        num_threads = _num_threads(self._data, num_workers)
        options = grain.ReadOptions(
            num_threads=num_threads, prefetch_buffer_size=max(num_threads, per_batch)
        )
        numbers = grain.MapDataset.range(start * per_batch, stop * per_batch)
        prepared = numbers.map(prepare).to_iter_dataset(options)
        if num_workers:
            if not flags.FLAGS.is_parsed():  # grain reads some flags
                flags.FLAGS.mark_as_parsed()
            # Python frees the shared memory that interrupted processes leave, and warns of it in
            # two lines. The process that frees it starts with the workers and inherits this option.
            if _QUIET not in sys.warnoptions:
                sys.warnoptions.append(_QUIET)
            # Python 3.12.1 warns of ended workers' semaphores that it frees while it makes others.
            gc.collect()
            workers = grain.MultiprocessingOptions(num_workers, 2)
            prepared = prepared.mp_prefetch(workers, begin_worker)
        return prepared.batch(per_batch, batch_fn=join) if dataset.encoded else prepared

    def assemble(self, split: Split, order_LxB: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """Gather a batch of a split that is held in memory; the last example replaces PADDING."""
        images, labels = split.inputs_Nx[order_LxB], split.labels_Nx[order_LxB]
        keys = self._sampler.keys(epoch)
        return {"images": images, "labels": labels, "indices": order_LxB, **keys}


class _BatchImages:
    """The arrays into which the threads of a process decode batches, so that nothing is copied."""

    def __init__(self, decoder: ChunkDecoder):
        self._decoder = decoder
        self._arrays: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def decode(self, number: int) -> dict[str, Any]:
        """Decode a chunk into its batch."""
        decoder = self._decoder
        batch, chunk = divmod(number, decoder.chunks_per_batch)
        shape = decoder.chunks_per_batch, decoder.chunk_size, *decoder.split.image_shape
        with self._lock:
            if batch not in self._arrays:
                self._arrays[batch] = np.empty(shape, np.uint8)
            images_BxHxWx3 = self._arrays[batch][chunk]
        return decoder(number, images_BxHxWx3)

    def take(self, batch: int) -> np.ndarray:
        """Return a batch of which all chunks are decoded, of shape (chunks, B, H, W, 3)."""
        return self._arrays.pop(batch)


def _check_open_files(num_workers: int) -> None:
    """Raise BadInput if not even the queues of the worker processes can be opened.

    What fails then is anything, with an error of its own. Under a limit that only just suffices
    `check_open_files` recognises it.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = len(os.listdir("/dev/fd")) + _FILES + _FILES_PER_WORKER * num_workers
    if 0 <= limit < needed:
        raise BadInput(
            f"data.num_workers={num_workers}: about {needed} files will be open, and `ulimit -n` "
            f"allows {limit}; raise it (ulimit -n 4096), or set --experiment.data.num_workers=0"
        )


def _check_shared_memory(num_workers: int, decoder: ChunkDecoder, example_bytes: int) -> None:
    """Raise BadInput if the chunks of the worker processes may not fit in shared memory.

    A process that writes to memory that is not there is killed.
    """
    try:
        status = os.statvfs(_SHARED)
    except OSError:  # another system, which passes them elsewhere
        return
    # Each array takes whole pages.
    chunk_bytes = decoder.chunk_size * example_bytes + 3 * mmap.PAGESIZE
    chunks = _CHUNKS_PER_WORKER * num_workers + decoder.chunks_per_batch
    needed_bytes = chunks * chunk_bytes + _QUEUE_BYTES * num_workers
    free_bytes, all_bytes = (
        count * status.f_frsize for count in (status.f_bavail, status.f_blocks)
    )
    if needed_bytes > free_bytes and all_bytes:  # 0: as large as the memory
        needed, free, whole = (size / 2**20 for size in (needed_bytes, free_bytes, all_bytes))
        raise BadInput(
            f"data.num_workers={num_workers}: worker processes pass images in {_SHARED}, and may "
            f"need {needed:.3g} MiB; it has {free:.3g} of {whole:.3g} MiB free. Give a container "
            f"more (docker run --shm-size={math.ceil(whole - free + needed)}m, or --ipc=host), or "
            "set --experiment.data.num_workers=0"
        )


def _start(iterator: Any) -> None:
    # A Ctrl-C between the thread's creation and its start would have `close` join a thread that
    # never started, which raises RuntimeError.
    with defer_signals():
        iterator.start_prefetch()


def _num_threads(data: DataConfig, num_processes: int) -> int:
    """Return the threads of each process: `data.num_threads`, or for 0 one for each core."""
    return data.num_threads or -(-available_cores() // max(1, num_processes))
