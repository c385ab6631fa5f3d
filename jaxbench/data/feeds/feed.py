"""What a feed offers, and the feed that a config names."""

from collections.abc import Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.batch_layout import BatchLayout
from jaxbench.config import Config
from jaxbench.data.dataset import Dataset
from jaxbench.data.feeds import resident, stream
from jaxbench.data.feeds.resident import ResidentFeed
from jaxbench.data.feeds.stream import StreamFeed
from jaxbench.data.feeds.synthetic import SyntheticFeed
from jaxbench.data.sampler import EpochSampler, device_seeds
from jaxbench.parallel.mesh import DataMesh
from jaxbench.tasks import get_task

# How a step takes its examples from a feed's arrays: (data, batch, step) -> Examples.
UNPACK_BATCH = {
    "resident": resident.unpack_batch,
    "stream": stream.unpack_batch,
    "synthetic": stream.unpack_batch,
}


class Feed(Protocol):
    """Brings a data set to the devices.

    A step gets two arguments from it: the arrays that stay on the devices (`train_data` or
    `eval_data`, the same on every device), and this step's batch for each device, which the feed's
    function in `UNPACK_BATCH` unpacks inside the step.
    """

    name: str  # as in `DataConfig.feed`
    train_data: Any
    eval_data: Any
    steps_per_epoch: int  # full training batches in the split
    eval_steps: int
    num_eval: int  # examples of the evaluation split
    eval_count: int  # those that an evaluation counts: all but the corrupt ones
    corrupt: dict[str, str]  # {name: reason} of the images that could not be decoded so far
    # For the record: num_threads (of each worker process, None if no thread prepares batches),
    # num_workers, resident_bytes_per_device, and sent_bytes_per_step (to all devices).
    resources: dict[str, int | float | None]

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yield, on the devices, the batches of `num_steps` steps of an epoch, 0 the first."""

    def eval_batches(self) -> Iterator[Any]:
        """Yield, on the devices, the batch of each evaluation step."""

    def close(self) -> None:
        """End the threads and processes that work ahead."""


def create_feed(
    config: Config,
    dataset: Dataset | None,
    mesh: DataMesh,
    layout: BatchLayout,
    param_dtype: Any,
) -> Feed:
    """Build the feed that the config names; place on the devices what stays there.

    A process reads only its devices' batches, and all processes together read every batch. Without
    a data set the feed is synthetic; `param_dtype` is that of the pixels' mean and deviation.

    Raises:
      BadInput: the data set cannot do what the config asks for.
    """
    seeds_R = config.seeds(layout.num_devices)
    if dataset is None:
        label_shape = get_task(config.task).label_shape(config.data.example_shape)
        seeds_L = device_seeds(layout, seeds_R)
        return SyntheticFeed(config.data, mesh, layout, seeds_L, label_shape, param_dtype)
    sampler = EpochSampler(
        layout, num_train=len(dataset.train), num_eval=len(dataset.eval), seeds_R=seeds_R
    )
    if config.data.feed == "resident":
        return ResidentFeed(dataset, mesh, sampler, param_dtype)
    num_steps = config.num_steps(sampler.steps_per_epoch)
    return StreamFeed(config.data, dataset, mesh, sampler, param_dtype, num_steps)


def abstract_args(
    config: Config, layout: BatchLayout, label_shape: tuple[int, ...], param_dtype: Any
) -> tuple[Any, Any]:
    """Return the shapes of a training step's (data, batch), to compile without a data set."""
    shape = jax.ShapeDtypeStruct
    example, dtype = config.data.example_shape, config.data.example_dtype
    label_dtype = dtype if label_shape else jnp.int32
    num_devices, per_device = layout.num_devices, layout.batch_per_device
    data = {}
    if not config.data.sequence_length:
        data = {name: shape(example[-1:], param_dtype) for name in ("mean", "std")}
    batch = {"seed": shape((num_devices,), np.uint32)}
    if config.data.feed == "resident":
        # The step does not depend on how many examples there are; one batch stands in.
        data["images"] = shape((per_device, *example), dtype)
        data["labels"] = shape((per_device, *label_shape), label_dtype)
        batch["order"] = shape((num_devices, 1, per_device), jnp.int32)
        return data, batch
    batch["images"] = shape((num_devices, per_device, *example), dtype)
    batch["labels"] = shape((num_devices, per_device, *label_shape), label_dtype)
    batch["indices"] = shape((num_devices, per_device), jnp.int32)
    batch["epoch"] = shape((num_devices,), jnp.int32)
    return data, batch
