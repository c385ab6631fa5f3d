"""Batches of encoded splits: threads or worker processes decode them on the fly.

Letters: L devices of this process, B examples per device, N = L * B.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset
from jaxbench.data.feeds.decode_workers import ChunkDecoder, SharedBatches, begin_worker
from jaxbench.data.feeds.prefetch import prepare_in_threads, threads_per_process
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.errors import CorruptDataError

_QUIET = "ignore:resource_tracker:UserWarning"


class DecodedBatches:
    """Decodes batches and keeps account of corrupt images.

    Attributes:
      corrupt: {name: reason} of all images that could not be decoded so far.
      num_eval_corrupt: how many of the latest evaluation.
    """

    def __init__(self, data: DataConfig, dataset: Dataset, sampler: EpochSampler):
        self._data = data
        self._dataset = dataset
        self._sampler = sampler
        self.corrupt: dict[str, str] = {}
        self.num_eval_corrupt = 0

    def train(self, start: int, stop: int) -> Any:
        """Return a grain data set of the batches of steps `start` to `stop` - 1."""
        return self._decode(start, stop, training=True)

    def eval(self) -> Any:
        """Return a grain data set of the evaluation's batches, which threads decode in any case."""
        self.num_eval_corrupt = 0  # an image may be readable again
        return self._decode(0, self._sampler.eval_steps, training=False)

    def _decode(self, start: int, stop: int, *, training: bool) -> Any:
        """Have chunks of batches decoded, so that all threads work on the next batch."""
        split = self._dataset.train if training else self._dataset.eval
        num_classes = self._dataset.num_classes
        decoder = ChunkDecoder(
            self._data, split, self._sampler, num_classes=num_classes, training=training
        )
        num_workers = self._data.num_workers if training else 0
        shared = None if num_workers else SharedBatches(decoder, split.image_shape)
        chunks = prepare_in_threads(
            shared or decoder,
            start * decoder.chunks_per_batch,
            stop * decoder.chunks_per_batch,
            num_threads=threads_per_process(self._data.num_threads, num_workers),
            buffer=decoder.chunks_per_batch,
        )
        if num_workers:
            chunks = _in_processes(chunks, num_workers)

        def join(chunks: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
            for chunk in chunks:
                self._note_corrupt(json.loads(chunk["corrupt"]), training)
                if training and (chunk["indices"] == PADDING).any():
                    raise CorruptDataError(
                        f"{list(self.corrupt)[-1]}: no image of the training split is left that "
                        "can be decoded"
                    )
            number = chunks[0]["batch"]
            arrays_N = {
                name: np.concatenate([chunk[name] for chunk in chunks])
                for name in ("labels", "indices", *(() if shared else ("images",)))
            }
            if shared:
                arrays_N["images"] = shared.take(number)
            for chunk in chunks:
                # A worker process hands a chunk over in shared memory, which is freed with the last
                # reference; grain keeps some of the chunks until its end.
                chunk.clear()
            shape = (decoder.num_devices, decoder.batch_per_device)
            batch = {name: of.reshape(*shape, *of.shape[1:]) for name, of in arrays_N.items()}
            epoch = number // self._sampler.steps_per_epoch if training else 0
            return batch | self._sampler.keys(epoch)

        return chunks.batch(decoder.chunks_per_batch, batch_fn=join)

    def _note_corrupt(self, corrupt: dict[str, str], training: bool) -> None:
        """Count corrupt images; raise CorruptDataError where there are too many."""
        self.corrupt |= corrupt
        if not training:
            # Each is met once in an evaluation.
            self.num_eval_corrupt += len(corrupt)
        if len(self.corrupt) > self._data.max_corrupt:
            name, reason = list(self.corrupt.items())[self._data.max_corrupt]
            raise CorruptDataError(
                f"{name}: {reason} (corrupt images so far: {len(self.corrupt)}; "
                f"data.max_corrupt={self._data.max_corrupt} allows no more)"
            )


def _in_processes(batches: Any, num_workers: int) -> Any:
    """Return the same grain data set, prepared by the threads of this many worker processes."""
    import grain

    if not flags.FLAGS.is_parsed():  # grain looks at flags of its own
        flags.FLAGS.mark_as_parsed()
    # Python frees the shared memory that interrupted processes leave, and warns of it in two lines.
    # The process that frees it starts with the workers and inherits these options.
    if _QUIET not in sys.warnoptions:
        sys.warnoptions.append(_QUIET)
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers, 2), begin_worker)
