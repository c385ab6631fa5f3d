"""Chunks of batches, decoded by whichever thread or worker process is free.

Chunks are numbered by epoch, batch and position in the batch. A chunk's pixels follow from its
number only, whoever decodes it and when. Nothing here imports JAX: worker processes need none.
"""

import dataclasses
import json
import os
import signal
import threading
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.images.encoded import EncodedSplit, ExampleDraws
from jaxbench.data.sampler import PADDING, EpochSampler
from jaxbench.errors import RunFailed
from jaxbench.parallel.signals import LIKE_SIGTERM

# Examples that one thread decodes in one go: few enough that all threads share a batch.
_MAX_CHUNK = 32
# How often a worker process checks that the process that started it still runs.
_WATCH_S = 1.0
# Each image is decoded to its end once in so many epochs, because damage below its crops is told
# only then.
_EPOCHS_PER_CHECK = 16


@dataclasses.dataclass
class ChunkDecoder:
    """Decodes chunks by number; can be sent to another process."""

    data: DataConfig
    split: EncodedSplit
    sampler: EpochSampler
    num_classes: int
    training: bool

    def __post_init__(self):
        # The evaluation's batches are padded, and may be of another size.
        num_devices, self._steps, self._per_device = self.sampler.eval_LxSxB.shape
        if self.training:
            self._steps = self.sampler.steps_per_epoch
            self._per_device = self.sampler.layout.batch_per_device
        self.batch_shape = num_devices, self._per_device
        sizes = range(1, _MAX_CHUNK + 1)
        self.chunk_size = max(size for size in sizes if self._per_device % size == 0)
        self.chunks_per_batch = num_devices * self._per_device // self.chunk_size

    def __call__(self, number: int, images_BxHxWx3: np.ndarray | None = None) -> dict[str, Any]:
        """Decode a chunk, into the given uint8 array if there is one.

        Returns:
          `batch`, its number; `images`, uint8; `labels` and `indices`, int32 of shape (B,);
          `warnings`, libjpeg's: JSON of {name: warning}, because text goes from process to process
          unchanged.

        Raises:
          RunFailed: an image is corrupt, or its label is not within 0 to `num_classes` - 1.
        """
        batch, chunk = divmod(number, self.chunks_per_batch)
        epoch, step = divmod(batch, self._steps)
        device, first = divmod(chunk * self.chunk_size, self._per_device)
        sampler, draws = self.sampler, None
        order_LxSxB = sampler.train_LxSxB(epoch) if self.training else sampler.eval_LxSxB
        if self.training and (self.data.random_resized_crop or self.data.flip):
            draws = ExampleDraws(int(sampler.seeds_L[device]), epoch)
        indices_B = order_LxSxB[device, step, first : first + self.chunk_size]
        labels_B = np.zeros(self.chunk_size, np.int32)
        if images_BxHxWx3 is None:
            images_BxHxWx3 = np.empty((self.chunk_size, *self.split.image_shape), np.uint8)
        warnings: dict[str, str] = {}
        for row, index in enumerate(indices_B.tolist()):
            if index == PADDING:
                images_BxHxWx3[row] = 0
                continue
            name = self.split.source.name(index)
            try:
                label, warning = self.split.decode(
                    index,
                    draws.of(index) if draws else None,
                    images_BxHxWx3[row],
                    random_crop=self.data.random_resized_crop,
                    flip=self.data.flip,
                    all_rows=(index + epoch) % _EPOCHS_PER_CHECK == 0,
                )
            except CorruptImageError as error:
                raise RunFailed(f"{name}: {error}; mend or remove it") from error
            if not 0 <= label < self.num_classes:
                raise RunFailed(f"{name}: label {label} is not within 0 to {self.num_classes - 1}")
            labels_B[row] = label
            if warning:
                warnings[name] = warning
        return {
            "batch": batch,
            "images": images_BxHxWx3,
            "labels": labels_B,
            "indices": indices_B,
            "warnings": json.dumps(warnings),
        }


def begin_worker(*_: int) -> None:
    """Let a worker process end with the process that started it, and not before."""
    # Terminals and schedulers send these to all processes; the first one ends the others in good
    # order, by SIGTERM.
    for number in (signal.SIGINT, *LIKE_SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        # If the first process was killed, nobody else would end this one.
        while os.getppid() == parent:
            threading.Event().wait(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
