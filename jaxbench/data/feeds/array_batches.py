"""Batches of splits that are held in memory: the host gathers, crops and mirrors.

Letters: N examples, L devices of this process, B examples per device.
"""

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data import augment
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.feeds.prefetch import prepare_in_threads, threads_per_process
from jaxbench.data.sampler import PADDING, EpochSampler


class ArrayBatches:
    """Assembles batches from arrays."""

    # Nothing is decoded.
    corrupt: dict[str, str] = {}
    num_eval_corrupt = 0

    def __init__(self, data: DataConfig, dataset: Dataset, sampler: EpochSampler):
        self._data = data
        self._dataset = dataset
        self._sampler = sampler
        self._num_threads = threads_per_process(data.num_threads, 1)
        self._draw = jax.jit(self._draw_windows)
        self._windows_by_epoch: dict[int, list[augment.CropWindows]] = {}
        self._windows_lock = threading.Lock()

    def train(self, start: int, stop: int) -> Any:
        """Return a grain data set of the batches of steps `start` to `stop` - 1."""

        def prepare(step: int) -> dict[str, np.ndarray]:
            epoch, place = divmod(step, self._sampler.steps_per_epoch)
            order_LxB = self._sampler.train_LxSxB(epoch)[:, place]
            return self.assemble(self._dataset.train, order_LxB, epoch, self._windows(epoch))

        return prepare_in_threads(prepare, start, stop, num_threads=self._num_threads)

    def eval(self) -> Any:
        """Return a grain data set of the evaluation's batches."""

        def prepare(step: int) -> dict[str, np.ndarray]:
            return self.assemble(self._dataset.eval, self._sampler.eval_LxSxB[:, step], 0, None)

        return prepare_in_threads(
            prepare, 0, self._sampler.eval_steps, num_threads=self._num_threads
        )

    def assemble(
        self,
        split: Split,
        order_LxB: np.ndarray,
        epoch: int,
        windows_L: list[augment.CropWindows] | None,
    ) -> dict[str, np.ndarray]:
        """Return a batch as `stream.unpack_batch` takes it, with a leading axis L.

        Args:
          split: what is read.
          order_LxB: the examples' places in it, or PADDING.
          epoch: keys the step's random draws.
          windows_L: where every example of the split is cropped; None crops nothing.
        """
        images, labels = [], []
        for device, indices_B in enumerate(order_LxB):
            # Where the order says PADDING another example takes the place; only the mask marks it.
            safe_B = np.where(indices_B == PADDING, 0, indices_B)
            images_BxHxWxC, labels_Bx = split.images_NxHxWxC[safe_B], split.labels_Nx[safe_B]
            if windows_L is not None:
                crop = functools.partial(
                    augment.crop_and_flip,
                    augment.CropWindows(*(values_N[safe_B] for values_N in windows_L[device])),
                    padding=self._data.crop_padding,
                    fill=self._data.padding_mode,
                    flip=self._data.flip,
                    numpy=np,
                )
                images_BxHxWxC = crop(images_BxHxWxC)
                if labels_Bx.ndim == 3:  # masks move with their images
                    labels_Bx = crop(labels_Bx)
            images.append(images_BxHxWxC)
            labels.append(labels_Bx)
        return {
            "images": np.stack(images),
            "labels": np.stack(labels),
            "indices": order_LxB,
            **self._sampler.keys(epoch),
        }

    def _windows(self, epoch: int) -> list[augment.CropWindows] | None:
        """Return windows_L of all N examples for each device's seed, drawn once an epoch."""
        if not self._data.crop_padding and not self._data.flip:
            return None
        # Several threads prepare batches of one epoch; the first draws for all.
        with self._windows_lock:
            if epoch not in self._windows_by_epoch:
                seeds = self._sampler.seeds_L.tolist()
                drawn = {
                    seed: jax.device_get(self._draw(np.uint32(seed), np.int32(epoch)))
                    for seed in set(seeds)
                }
                # Batches of two epochs are prepared at once where one ends and the other begins.
                self._windows_by_epoch.pop(epoch - 2, None)
                self._windows_by_epoch[epoch] = [drawn[seed] for seed in seeds]
            return self._windows_by_epoch[epoch]

    def _draw_windows(self, seed: jax.Array, epoch: jax.Array) -> augment.CropWindows:
        indices_N = jnp.arange(self._sampler.num_train, dtype=jnp.int32)
        keys_N = augment.example_keys(seed, epoch, indices_N)
        windows = augment.draw_windows(keys_N, padding=self._data.crop_padding)
        if self._data.flip_order == "alternating":
            windows = augment.alternate(windows, seed, epoch, indices_N)
        return windows
