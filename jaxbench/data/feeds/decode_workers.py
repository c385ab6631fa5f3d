"""Parts of batches, decoded by whichever thread or worker process is free.

Parts are numbered through: those of a batch, the batches of an epoch, the epochs. A number says
all that decoding it needs, so neither who decodes it nor when changes a pixel. Nothing here
imports JAX: worker processes need none.
"""

import json
import os
import signal
import threading
from typing import Any

import numpy as np

from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.images.encoded import EncodedSplit, ExampleDraws
from jaxbench.data.sampler import PADDING, EpochSampler

# Examples that one thread decodes in one go: few enough that all threads share a batch.
_MOST_IN_PART = 32
# How often a worker process looks whether the one that started it is still there.
_LOOK_S = 1.0


class ChunkDecoder:
    """Decodes parts by number; can be sent to another process.

    Args:
      split: the encoded examples.
      orders: which of them is read when.
      training: the training split's epochs in their orders, varied; else the evaluation's order.
      random_window, flip: how training examples are varied.
      num_classes: K; an example whose label is not within 0 to K-1 is corrupt.
      max_corrupt: a part with more corrupt examples is given up: the run ends there anyway.
    """

    def __init__(
        self,
        split: EncodedSplit,
        orders: EpochSampler,
        *,
        training: bool,
        random_window: bool,
        flip: bool,
        num_classes: int,
        max_corrupt: int,
    ):
        self._split = split
        self._sampler = orders
        self._training = training
        self._random_window = random_window
        self._flip = flip
        self._num_classes = num_classes
        self._max_damaged = max_corrupt
        self.num_devices, self.steps, self.share = self._order(0).shape
        self.size = max(part for part in range(1, _MOST_IN_PART + 1) if self.share % part == 0)
        self.parts = self.num_devices * self.share // self.size

    def __call__(self, number: int) -> dict[str, Any]:
        """Decodes a part into an array of its own; see `decode_into`."""
        images_BxHxWx3 = np.empty((self.size, *self._split.image_shape), np.uint8)
        return {"images": images_BxHxWx3, **self.decode_into(number, images_BxHxWx3)}

    def decode_into(self, number: int, images_BxHxWx3: np.ndarray) -> dict[str, Any]:
        """Decodes a part; in place of a corrupt example comes the next one, or padding.

        Args:
          number: of the part.
          images_BxHxWx3: uint8, contiguous; takes the pixels.

        Returns:
          `batch`, its number; `labels` and `indices`, int32 of shape (B,); `corrupt`, JSON of
          {name: reason}: text goes from process to process as it is.
        """
        batch, part = divmod(number, self.parts)
        epoch, step = divmod(batch, self.steps) if self._training else (0, batch)
        device, place = divmod(part * self.size, self.share)
        indices_B = self._order(epoch)[device, step, place : place + self.size].copy()
        labels_B = np.zeros(self.size, np.int32)
        corrupt: dict[str, str] = {}
        draws = None
        if self._training and (self._random_window or self._flip):
            draws = ExampleDraws(int(self._sampler.seeds_D[device]), epoch)
        for place, index in enumerate(indices_B):
            own = self._decode(int(index), draws, labels_B, place, images_BxHxWx3[place], corrupt)
            if own == PADDING:
                images_BxHxWx3[place] = 0
            indices_B[place] = own
        return {
            "batch": batch,
            "labels": labels_B,
            "indices": indices_B,
            "corrupt": json.dumps(corrupt),
        }

    def _decode(
        self,
        index: int,
        draws: ExampleDraws | None,
        labels_B: np.ndarray,
        place: int,
        out_HxWx3: np.ndarray,
        corrupt: dict[str, str],
    ) -> int:
        """Decodes an example or the one that takes its place; returns which it was."""
        tries = len(self._split) if self._training else 1
        for attempt in range(tries if index != PADDING else 0):
            own = (index + attempt) % len(self._split)
            try:
                labels_B[place] = self._split.decode(
                    own,
                    draws.of(own) if draws else None,
                    out_HxWx3,
                    random_window=self._random_window,
                    flip=self._flip,
                )
                if not 0 <= labels_B[place] < self._num_classes:
                    raise CorruptImageError(
                        f"label {labels_B[place]} is not within 0 to {self._num_classes - 1}"
                    )
            except CorruptImageError as error:
                corrupt[self._split.source.name(own)] = str(error)
                if len(corrupt) > self._max_damaged:
                    break
            else:
                return own
        labels_B[place] = 0
        return PADDING

    def _order(self, epoch: int) -> np.ndarray:
        return self._sampler.train_DxSxB(epoch) if self._training else self._sampler.eval_DxSxB


def begin_worker(index: int, count: int) -> None:
    """Lets a worker process end with the one that started it, and not before.

    Args:
      index, count: of the workers; unused.
    """
    del index, count
    # A terminal sends Ctrl-C to all processes; the first one ends the others in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        # Where that was killed, nobody else would end this one.
        while os.getppid() == parent:
            threading.Event().wait(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class SharedBatches:
    """Batches that several threads decode parts of into one array, so that nothing is copied.

    Args:
      decoder: does the decoding.
      image_shape: (height, width, 3).
    """

    def __init__(self, decoder: ChunkDecoder, image_shape: tuple[int, int, int]):
        self._decoder = decoder
        self._shape = (decoder.parts * decoder.size, *image_shape)
        self._lock = threading.Lock()
        self._open: dict[int, np.ndarray] = {}

    def __call__(self, number: int) -> dict[str, Any]:
        """Decodes a part into its batch's array; the batch's first part makes that."""
        batch, part = divmod(number, self._decoder.parts)
        with self._lock:
            if batch not in self._open:
                self._open[batch] = np.empty(self._shape, np.uint8)
            images_NxHxWx3 = self._open[batch]
        size = self._decoder.size
        own_BxHxWx3 = images_NxHxWx3[part * size : (part + 1) * size]
        return self._decoder.decode_into(number, own_BxHxWx3)

    def take(self, batch: int) -> np.ndarray:
        """Returns images_NxHxWx3 of a batch all of whose parts have been decoded."""
        with self._lock:
            return self._open.pop(batch)
