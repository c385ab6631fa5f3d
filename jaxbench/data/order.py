"""Which example is read when: a function of seed and epoch alone.

Letters: N examples of a split, D devices, S steps, B examples per device. The global batch of a
step is the same whatever D is: device d gets its d-th slice.
"""

import numpy as np

# Stands in the order where a batch is not full; the steps mask it out.
PADDING = -1


def epoch_order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns a permutation of the split, int32 of shape (N,)."""
    # Philox is a counter-based generator: (seed, epoch) is its key, so no epoch depends on
    # having drawn the ones before it.
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(num_examples).astype(np.int32)


def train_order(
    num_examples: int, *, seed: int, epoch: int, batch_size: int, num_devices: int
) -> np.ndarray:
    """Returns order_DxSxB of one epoch: full batches only, the rest waits for another epoch."""
    steps = num_examples // batch_size
    order_N = epoch_order(num_examples, seed, epoch)[: steps * batch_size]
    return _deal(order_N.reshape(steps, batch_size), num_devices)


def eval_order(num_examples: int, *, batch_size: int, num_devices: int) -> np.ndarray:
    """Returns order_DxSxB that holds every example exactly once, the remainder PADDING.

    Any batch size will do: each step's rows are padded to a multiple of the devices.
    """
    steps = -(-num_examples // batch_size)
    padded_batch = -(-batch_size // num_devices) * num_devices
    order_SxN = np.full((steps, padded_batch), PADDING, np.int32)
    for step in range(steps):
        batch = np.arange(step * batch_size, min((step + 1) * batch_size, num_examples))
        order_SxN[step, : len(batch)] = batch
    return _deal(order_SxN, num_devices)


def _deal(order_SxN: np.ndarray, num_devices: int) -> np.ndarray:
    steps, batch = order_SxN.shape
    order_SxDxB = order_SxN.reshape(steps, num_devices, batch // num_devices)
    return np.ascontiguousarray(order_SxDxB.transpose(1, 0, 2))
