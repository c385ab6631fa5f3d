"""What every feed has, and what it gives to a step."""

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedResources:
    """What a feed occupies on host and devices, for the record.

    Attributes:
      num_threads: host threads (of each worker process) that prepare batches, None where none do.
      num_workers: processes that prepare training batches, 0 where threads of this one do.
      resident_bytes_per_device: size of the arrays that stay on each device.
      sent_bytes_per_step: what the host sends to all devices for a training step.
    """

    num_threads: int | None = None
    num_workers: int | None = None
    resident_bytes_per_device: int
    sent_bytes_per_step: float


class Feed:
    """Base of the feeds: how a data set reaches the devices.

    A feed knows on which device which example belongs, and when; the networks and steps do not.
    A step gets two arguments from it: the arrays that stay on the devices (`train_data`,
    `eval_data`; the same on every device), and this step's batch for each device. The feed's module
    has a function `unpack_batch(data, batch, step) -> Examples`, which the step calls.

    Attributes:
      name: as in `DataConfig.feed`.
      train_data, eval_data: arrays on every device.
      steps_per_epoch, eval_steps: full training batches in the split; evaluation steps.
      num_eval: examples of the evaluation split.
    """

    name: str
    train_data: Any
    eval_data: Any
    steps_per_epoch: int
    eval_steps: int
    num_eval: int
    resources: FeedResources

    @property
    def corrupt(self) -> dict[str, str]:
        """{name: reason} of the images that could not be decoded so far."""
        return {}

    @property
    def eval_count(self) -> int:
        """How many examples an evaluation counts: all but the corrupt ones."""
        return self.num_eval

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yield, on the devices, the batches of `num_steps` steps of an epoch, 0 the first."""
        raise NotImplementedError

    def eval_batches(self) -> Iterator[Any]:
        """Yield, on the devices, the batch of each evaluation step."""
        raise NotImplementedError

    def close(self) -> None:
        """End the threads and processes that work ahead; no more batches are asked for."""
