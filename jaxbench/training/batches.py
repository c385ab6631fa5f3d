"""The training batches of a run, in the order of its steps."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxbench.data.feeds.feed import Feed

# Shown in TensorBoard and in Weights & Biases.
_SAMPLE_IMAGES = 16


class TrainBatches:
    """Batches from a feed, with one that compilation needs before its step does."""

    def __init__(self, feed: Feed):
        self._feed = feed
        self._kept: dict[tuple[int, int], Any] = {}

    def peek(self, epoch: int, step: int) -> Any:
        """Return the batch of a step, both counted from 0, and keep it for `take`."""
        batch = next(self._feed.train_batches(epoch, 1, step))
        self._kept[epoch, step] = batch
        return batch

    def take(self, epoch: int, num_steps: int, first_step: int) -> Iterator[Any]:
        """Yield the batches of an epoch's steps, on the devices."""
        if not num_steps or (epoch, first_step) not in self._kept:
            return self._feed.train_batches(epoch, num_steps, first_step)
        later = self._feed.train_batches(epoch, num_steps - 1, first_step + 1)
        # Only the iterator holds the kept batch, so that its memory is free after its step.
        return itertools.chain(iter([self._kept.pop((epoch, first_step))]), later)

    def sample_images(self) -> np.ndarray:
        """Return a few training images as the feed has them, uint8 of shape (N, H, W, C).

        The images of a resident feed are cropped and flipped later, in the step.
        """
        [batch] = self._kept.values()
        held = batch if "images" in batch else self._feed.train_data
        images = held["images"].addressable_shards[0].data
        if images.ndim == 5:  # with an axis of devices
            images = images[0]
        return np.asarray(images[:_SAMPLE_IMAGES])
