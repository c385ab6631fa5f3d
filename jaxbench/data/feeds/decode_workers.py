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
from jaxbench.parallel.signals import LIKE_SIGTERM

# Examples that one thread decodes in one go: few enough that all threads share a batch.
_MAX_CHUNK = 32
# How often a worker process checks that the process that started it still runs.
_WATCH_S = 1.0


@dataclasses.dataclass
class ChunkDecoder:
    """Decodes chunks by number; can be sent to another process.

    An example whose label is not within 0 to `num_classes` - 1 is corrupt. A chunk with more than
    `data.max_corrupt` corrupt examples is given up: the run ends there anyway.
    """

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

    def __call__(self, number: int) -> dict[str, Any]:
        """Decode a chunk; the next example, or padding, replaces a corrupt one.

        Returns:
          `batch`, its number; `images`, uint8; `labels` and `indices`, int32 of shape (B,);
          `corrupt` and `warnings`, libjpeg's: JSON of {name: reason}, because text goes from
          process to process unchanged.
        """
        batch, chunk = divmod(number, self.chunks_per_batch)
        epoch, step = divmod(batch, self._steps)
        device, first = divmod(chunk * self.chunk_size, self._per_device)
        sampler, draws = self.sampler, None
        order_LxSxB = sampler.train_LxSxB(epoch) if self.training else sampler.eval_LxSxB
        if self.training and (self.data.random_resized_crop or self.data.flip):
            draws = ExampleDraws(int(sampler.seeds_L[device]), epoch)
        indices_B = order_LxSxB[device, step, first : first + self.chunk_size].copy()
        labels_B = np.zeros(self.chunk_size, np.int32)
        images_BxHxWx3 = np.zeros((self.chunk_size, *self.split.image_shape), np.uint8)
        corrupt: dict[str, str] = {}
        warnings: dict[str, str] = {}
        for row, index in enumerate(indices_B):
            indices_B[row], labels_B[row] = self._decode(
                int(index), draws, images_BxHxWx3[row], corrupt, warnings
            )
            if indices_B[row] == PADDING:
                images_BxHxWx3[row] = 0
        return {
            "batch": batch,
            "images": images_BxHxWx3,
            "labels": labels_B,
            "indices": indices_B,
            "corrupt": json.dumps(corrupt),
            "warnings": json.dumps(warnings),
        }

    def _decode(
        self,
        index: int,
        draws: ExampleDraws | None,
        out_HxWx3: np.ndarray,
        corrupt: dict[str, str],
        warnings: dict[str, str],
    ) -> tuple[int, int]:
        """Decode an example or its replacement; return that one's index and label."""
        tries = len(self.split) if self.training else 1
        for attempt in range(tries if index != PADDING else 0):
            replacement = (index + attempt) % len(self.split)
            try:
                label, warning = self.split.decode(
                    replacement,
                    draws.of(replacement) if draws else None,
                    out_HxWx3,
                    random_crop=self.data.random_resized_crop,
                    flip=self.data.flip,
                )
                if warning:
                    warnings[self.split.source.name(replacement)] = warning
                if 0 <= label < self.num_classes:
                    return replacement, label
                raise CorruptImageError(f"label {label} is not within 0 to {self.num_classes - 1}")
            except CorruptImageError as error:
                corrupt[self.split.source.name(replacement)] = str(error)
                if len(corrupt) > self.data.max_corrupt:
                    break
        return PADDING, 0


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
