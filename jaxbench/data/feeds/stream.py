"""The streamed feed: the host prepares each batch and sends it as uint8.

Worker threads (or processes, for encoded images) work ahead of the training loop, so that reading,
sending and computing overlap where the host has the cores for it; how long the loop waited is in
`data_wait_s`. Training batches are prepared from the run's first step to its last, across epochs.
Letters: L devices of this process, B examples per device.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.augment import Examples
from jaxbench.data.dataset import Dataset
from jaxbench.data.feeds.array_batches import ArrayBatches
from jaxbench.data.feeds.base import Feed, FeedResources
from jaxbench.data.feeds.decoded_batches import DecodedBatches
from jaxbench.data.feeds.prefetch import threads_per_process
from jaxbench.data.images.decode import load_decoder
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.errors import BadInput, CorruptDataError, WorkerLost
from jaxbench.parallel.mesh import DataMesh
from jaxbench.parallel.signals import defer_signals


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


class StreamFeed(Feed):
    """Prepares batches of a data set on the host and keeps some of them ready on the devices.

    Args:
      data, dataset, mesh, sampler, param_dtype: as for `create_feed`.
      num_steps: training steps of the whole run; no batch is prepared for later ones.

    Raises:
      BadInput: worker processes for images that are held in memory.
    """

    name = "stream"

    def __init__(
        self,
        data: DataConfig,
        dataset: Dataset,
        mesh: DataMesh,
        sampler: EpochSampler,
        param_dtype: Any,
        num_steps: int,
    ):
        if data.num_workers and not dataset.encoded:
            raise BadInput(
                f"data.num_workers={data.num_workers}: {dataset.description} is held in memory, "
                "where threads crop images; worker processes are for images decoded on the fly"
            )
        self._mesh = mesh
        self._num_steps = num_steps
        self._num_ahead = data.prefetch_batches
        self.steps_per_epoch = sampler.steps_per_epoch
        self.eval_steps = sampler.eval_steps
        self.num_eval = sampler.num_eval
        self.train_data = self.eval_data = mesh.replicate(dataset.normalization(param_dtype))
        # An example, its label, and its 4-byte index.
        if dataset.encoded:
            example_bytes = int(np.prod(dataset.image_shape)) + 4 + 4
        else:
            train = dataset.train
            example_bytes = train.inputs_Nx[:1].nbytes + train.labels_Nx[:1].nbytes + 4
        self.resources = FeedResources(
            num_threads=threads_per_process(data.num_threads, data.num_workers),
            num_workers=data.num_workers,
            resident_bytes_per_device=sum(leaf.nbytes for leaf in jax.tree.leaves(self.train_data)),
            sent_bytes_per_step=float(sampler.layout.images_per_step * example_bytes),
        )
        if dataset.encoded:
            load_decoder()
        batches = DecodedBatches if dataset.encoded else ArrayBatches
        self._host: ArrayBatches | DecodedBatches = batches(data, dataset, sampler)
        # Training batches under way, and the step that the next of them is for.
        self._ahead: Any = None
        self._next_step = 0

    @property
    def corrupt(self) -> dict[str, str]:
        return dict(self._host.corrupt)

    @property
    def eval_count(self) -> int:
        return self.num_eval - self._host.num_eval_corrupt

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from `first_step` on; earlier ones are not read.

        Where this continues the previous call, the batches prepared ahead are used.

        Raises:
          CorruptDataError: more images are corrupt than the config allows.
          WorkerLost: a worker process was killed.
        """
        start = epoch * self.steps_per_epoch + first_step
        if self._ahead is None or self._next_step != start:
            self.close()
            stop = max(self._num_steps, start + num_steps)
            self._ahead = self._sent_ahead(self._host.train(start, stop))
            self._next_step = start
            _start(self._ahead)
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

    def host_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yield the same batches, left on the host: each a dict of arrays with a leading axis L."""
        start = epoch * self.steps_per_epoch + first_step
        with contextlib.closing(iter(self._host.train(start, start + num_steps))) as batches:
            yield from batches

    def eval_batches(self) -> Iterator[Any]:
        """Yield the batches of the evaluation.

        Raises:
          CorruptDataError: too many images are corrupt, or all.
        """
        # Closed also where the loop ends early: the threads would go on for ever.
        with contextlib.closing(self._sent_ahead(self._host.eval())) as batches:
            _start(batches)
            yield from batches
        if not self.eval_count:
            raise CorruptDataError(
                f"{list(self.corrupt)[-1]}: no image of the evaluation split can be decoded"
            )

    def _sent_ahead(self, batches: Any) -> Any:
        """Return an iterator over a grain data set's batches, sent by a thread of its own."""
        import grain

        sent = batches.map(self._mesh.shard)
        return iter(
            grain.experimental.ThreadPrefetchIterDataset(sent, prefetch_buffer_size=self._num_ahead)
        )


def _start(iterator: Any) -> None:
    # A Ctrl-C between the thread's creation and its start would have `iterator.close()` join a
    # thread that never started, which raises RuntimeError.
    with defer_signals():
        iterator.start_prefetch()
