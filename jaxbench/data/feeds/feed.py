"""How a data set reaches the devices.

A feed knows on which device which example belongs, and when; the networks and steps do not.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.config import Config
from jaxbench.data.dataset import Dataset
from jaxbench.data.feeds.resident import ResidentFeed
from jaxbench.data.feeds.resources import FeedResources
from jaxbench.data.feeds.stream import StreamFeed
from jaxbench.data.feeds.synthetic_feed import SyntheticFeed
from jaxbench.data.sampler import EpochSampler, device_seeds
from jaxbench.distributed.mesh import DataMesh
from jaxbench.geometry import BatchGeometry
from jaxbench.tasks import get_task


class Feed(Protocol):
    """What a job asks of a feed.

    A step gets two arguments from it: the arrays that stay on the devices (`train_data`,
    `eval_data`; the same on every device), and this step's batch for each device. The feed's module
    has a function `unpack_batch(data, batch, step) -> Examples`, which the step calls.

    Attributes:
      name: as in `DataConfig.feed`.
      train_data, eval_data: arrays on every device.
      steps_per_epoch, eval_steps: full training batches in the split; evaluation steps.
      num_eval: examples of the evaluation split.
      eval_count: how many of them an evaluation counts: all but the corrupt ones.
      corrupt: {name: reason} of the images that could not be decoded so far.
      resources: what the feed occupies.
    """

    name: str
    train_data: Any
    eval_data: Any
    steps_per_epoch: int
    eval_steps: int
    num_eval: int
    eval_count: int
    corrupt: dict[str, str]
    resources: FeedResources

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yield, on the devices, the batches of `num_steps` steps of an epoch, 0 the first."""

    def eval_batches(self) -> Iterator[Any]:
        """Yield, on the devices, the batch of each evaluation step."""

    def close(self) -> None:
        """End the threads and processes that work ahead; no more batches are asked for."""


def create_feed(
    config: Config,
    dataset: Dataset | None,
    mesh: DataMesh,
    param_dtype: Any,
    *,
    process: tuple[int, int] | None = None,
) -> Feed:
    """Build the feed that the config names; place on the devices what stays there.

    Args:
      config: the experiment.
      dataset: its splits; None for data.feed=synthetic.
      mesh: the devices.
      param_dtype: of the pixels' mean and deviation.
      process: (index, count) of processes with as many devices each, by default the mesh's; this
        one reads its own devices' batches only, all together read every batch.

    Raises:
      BadInput: the data set cannot do what the config asks for.
    """
    process = process or mesh.process
    geometry = BatchGeometry.create(config, len(mesh.local_devices) * process[1], process)
    seeds_R = config.seeds(geometry.num_devices)
    if dataset is None:
        label_shape = get_task(config.task).label_shape(config.data.image_shape)
        seeds_L = device_seeds(geometry, seeds_R)
        return SyntheticFeed(config.data, mesh, geometry, seeds_L, label_shape, param_dtype)
    sampler = EpochSampler(
        geometry, num_train=len(dataset.train), num_eval=len(dataset.eval), seeds_R=seeds_R
    )
    if config.data.feed == "resident":
        return ResidentFeed(dataset, mesh, sampler, param_dtype)
    num_steps = config.num_steps(sampler.steps_per_epoch)
    return StreamFeed(config.data, dataset, mesh, sampler, param_dtype, num_steps)


def abstract_args(
    config: Config, num_devices: int, label_shape: tuple[int, ...], param_dtype: Any
) -> tuple[Any, Any]:
    """Return the shapes of a training step's (data, batch), for compiling without a data set.

    Args:
      config: the experiment.
      num_devices: D.
      label_shape: of one example's label.
      param_dtype: of the pixels' mean and deviation.
    """
    shape = jax.ShapeDtypeStruct
    label_dtype = jnp.uint8 if label_shape else jnp.int32
    channels = config.data.image_shape[-1]
    per_device = BatchGeometry.create(config, num_devices).batch_per_device
    data = {"mean": shape((channels,), param_dtype), "std": shape((channels,), param_dtype)}
    batch = {"seed": shape((num_devices,), np.uint32)}
    if config.data.feed == "resident":
        # The step does not depend on how many examples there are; one batch stands in.
        data["images"] = shape((per_device, *config.data.image_shape), jnp.uint8)
        data["labels"] = shape((per_device, *label_shape), label_dtype)
        batch["order"] = shape((num_devices, 1, per_device), jnp.int32)
        return data, batch
    batch["images"] = shape((num_devices, per_device, *config.data.image_shape), jnp.uint8)
    batch["labels"] = shape((num_devices, per_device, *label_shape), label_dtype)
    batch["indices"] = shape((num_devices, per_device), jnp.int32)
    batch["epoch"] = shape((num_devices,), jnp.int32)
    return data, batch
