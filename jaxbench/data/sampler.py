"""Which example is read when: a function of seed and epoch alone.

Letters: N examples of a split, D devices, S steps, B examples per device, R models (1, or D when
each device trains its own). The global batch of a step is the same whatever D is: device d gets
its d-th slice.
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


class EpochSampler:
    """Which example is read when by this process's D devices.

    Args:
      num_train, num_eval: examples of the splits.
      batch_size, eval_batch_size: a model's, over all its devices.
      seeds_R: one for each model.
      num_devices: of all processes.
      process: (index, count); the devices of process 0 come first. Each process reads its own
        rows only, and all together read every row.
    """

    def __init__(
        self,
        *,
        num_train: int,
        num_eval: int,
        batch_size: int,
        eval_batch_size: int,
        seeds_R: tuple[int, ...],
        num_devices: int,
        process: tuple[int, int] = (0, 1),
    ):
        self.num_train = num_train
        self.num_eval = num_eval
        self.batch_size = batch_size
        self.num_models = len(seeds_R)
        self.steps_per_epoch = num_train // batch_size
        self._seeds_R = seeds_R
        self._train_by_epoch: dict[int, np.ndarray] = {}
        index, count = process
        share = num_devices // count
        # This process's devices; only their rows are read here.
        self._local = slice(index * share, (index + 1) * share)
        self._devices_per_model = num_devices // len(seeds_R)
        # A row of it for each device, whichever model is there.
        self.seeds_D = np.repeat(np.array(seeds_R, np.uint32), self._devices_per_model)
        self.seeds_D = self.seeds_D[self._local]
        own_DxSxB = eval_order(
            num_eval, batch_size=eval_batch_size, num_devices=self._devices_per_model
        )
        self.eval_DxSxB = np.concatenate([own_DxSxB] * len(seeds_R))[self._local]

    def train_DxSxB(self, epoch: int) -> np.ndarray:
        """The order of an epoch, 0 the first; several threads may ask."""
        order_DxSxB = self._train_by_epoch.get(epoch)
        if order_DxSxB is None:
            order_DxSxB = self._draw(epoch)
            # Two epochs are read at once where one ends and the other begins.
            last = {key: kept for key, kept in self._train_by_epoch.items() if key == epoch - 1}
            self._train_by_epoch = {**last, epoch: order_DxSxB}
        return order_DxSxB

    def _draw(self, epoch: int) -> np.ndarray:
        return np.concatenate(
            [
                train_order(
                    self.num_train,
                    seed=seed,
                    epoch=epoch,
                    batch_size=self.batch_size,
                    num_devices=self._devices_per_model,
                )
                for seed in self._seeds_R
            ]
        )[self._local]
