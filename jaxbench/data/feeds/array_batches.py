"""Batches of splits that are held in memory: the host gathers, crops and mirrors.

Letters: N examples, L devices of this process, B examples per device.
"""

from typing import Any

import jax
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
        self._cpu = _cpu_device()

    def train(self, start: int, stop: int) -> Any:
        """Return a grain data set of the batches of steps `start` to `stop` - 1."""

        def prepare(step: int) -> dict[str, np.ndarray]:
            epoch, place = divmod(step, self._sampler.steps_per_epoch)
            order_LxB = self._sampler.train_LxSxB(epoch)[:, place]
            windows_L = self._windows(epoch, order_LxB)
            return self.assemble(self._dataset.train, order_LxB, epoch, windows_L)

        self._windows(0, self._sampler.train_LxSxB(0)[:, 0])  # else each thread would compile it
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
          windows_L: where each device's examples are cropped; None crops nothing.
        """
        images, labels = [], []
        for device, indices_B in enumerate(order_LxB):
            # Where the order says PADDING another example takes the place; only the mask marks it.
            safe_B = np.where(indices_B == PADDING, 0, indices_B)
            images_BxHxWxC, labels_Bx = split.inputs_Nx[safe_B], split.labels_Nx[safe_B]
            if windows_L is not None:
                windows, data = windows_L[device], self._data
                images_BxHxWxC = augment.crop_and_flip(windows, images_BxHxWxC, data)
                if labels_Bx.ndim == 3:  # masks move with their images
                    labels_Bx = augment.crop_and_flip(windows, labels_Bx, data)
            images.append(images_BxHxWxC)
            labels.append(labels_Bx)
        return {
            "images": np.stack(images),
            "labels": np.stack(labels),
            "indices": order_LxB,
            **self._sampler.keys(epoch),
        }

    def _windows(self, epoch: int, order_LxB: np.ndarray) -> list[augment.CropWindows] | None:
        """Return windows_L, where each device's examples of a training batch are cropped."""
        if not self._data.crop_padding and not self._data.flip:
            return None
        with jax.default_device(self._cpu):
            drawn_L = [
                self._draw(seed, np.int32(epoch), indices_B)
                for seed, indices_B in zip(self._sampler.seeds_L, order_LxB, strict=True)
            ]
        return jax.device_get(drawn_L)

    def _draw_windows(
        self, seed: jax.Array, epoch: jax.Array, indices_B: jax.Array
    ) -> augment.CropWindows:
        keys_B = augment.example_keys(seed, epoch, indices_B)
        return augment.example_windows(keys_B, seed, epoch, indices_B, self._data)


def _cpu_device() -> jax.Device | None:
    """Return a device that no training step is queued on, unless the CPU trains.

    None, the default device, if JAX_PLATFORMS leaves the CPU out. Its bits are the same, but the
    host then waits for the steps that are queued there.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
