"""Which example is read when: a function of only seed and epoch.

Letters: N examples of a split, D devices, L of them in this process, S steps, B examples per
device, R models (1, or D if each device trains one). The global batch of a step is the same on any
number of devices, and so is each of its parts if gradients are accumulated: device d gets the d-th
slice of each part.
"""

import numpy as np

from jaxbench.batch_layout import BatchLayout

# Fills the order if a batch is not full; the steps mask it out.
PADDING = -1


def train_order(layout: BatchLayout, num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Return order_DxSxB of a model's epoch, B in equal parts; drop an incomplete last batch."""
    steps = num_examples // layout.global_batch
    # Philox is a counter-based generator: (seed, epoch) is its key, so no epoch depends on
    # having drawn the ones before it.
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order_N = generator.permutation(num_examples)[: steps * layout.global_batch].astype(np.int32)
    order_SxN = order_N.reshape(steps, layout.global_batch)
    return _split(order_SxN, layout.devices_per_model, layout.gradient_accumulation_steps)


def eval_order(layout: BatchLayout, num_examples: int) -> np.ndarray:
    """Return order_DxSxB that holds every example exactly once, the remainder PADDING.

    Any batch size will do: each step's batch is padded to a multiple of the model's devices.
    """
    batch_size, num_devices = layout.global_eval_batch, layout.devices_per_model
    steps = -(-num_examples // batch_size)
    padded_batch = -(-batch_size // num_devices) * num_devices
    order_SxN = np.full((steps, padded_batch), PADDING, np.int32)
    examples_N = np.full(steps * batch_size, PADDING, np.int32)
    examples_N[:num_examples] = np.arange(num_examples)
    order_SxN[:, :batch_size] = examples_N.reshape(steps, batch_size)
    return _split(order_SxN, num_devices)


def _split(order_SxN: np.ndarray, num_devices: int, num_parts: int = 1) -> np.ndarray:
    steps = len(order_SxN)
    order_SxPxDxN = order_SxN.reshape(steps, num_parts, num_devices, -1)
    return np.ascontiguousarray(order_SxPxDxN.transpose(2, 0, 1, 3)).reshape(num_devices, steps, -1)


def device_seeds(layout: BatchLayout, seeds_R: tuple[int, ...]) -> np.ndarray:
    """Return seeds_L, uint32: of the model on each of this process's devices."""
    seeds_D = np.repeat(np.array(seeds_R, np.uint32), layout.devices_per_model)
    return seeds_D[layout.local_slice]


class EpochSampler:
    """Returns which example each of this process's L devices reads in which step."""

    def __init__(
        self, layout: BatchLayout, *, num_train: int, num_eval: int, seeds_R: tuple[int, ...]
    ):
        self.layout = layout
        self.num_train = num_train
        self.num_eval = num_eval
        self.steps_per_epoch = num_train // layout.global_batch
        self.seeds_L = device_seeds(layout, seeds_R)
        self._seeds_R = seeds_R
        self._train_by_epoch: dict[int, np.ndarray] = {}
        model_DxSxB = eval_order(layout, num_eval)
        self.eval_LxSxB = np.concatenate([model_DxSxB] * len(seeds_R))[layout.local_slice]
        self.eval_steps = self.eval_LxSxB.shape[1]

    def train_LxSxB(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch, 0 the first; several threads may call this."""
        order_LxSxB = self._train_by_epoch.get(epoch)
        if order_LxSxB is None:
            orders = [train_order(self.layout, self.num_train, s, epoch) for s in self._seeds_R]
            order_LxSxB = np.concatenate(orders)[self.layout.local_slice]
            # Two epochs are read at once when one ends and the other begins.
            last = {key: kept for key, kept in self._train_by_epoch.items() if key == epoch - 1}
            self._train_by_epoch = {**last, epoch: order_LxSxB}
        return order_LxSxB

    def keys(self, epoch: int) -> dict[str, np.ndarray]:
        """Return `seed` and `epoch` for each device: what random draws are keyed by."""
        return {"seed": self.seeds_L, "epoch": np.full(len(self.seeds_L), epoch, np.int32)}
