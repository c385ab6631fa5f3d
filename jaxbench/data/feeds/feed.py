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
from jaxbench.data.feeds.stream import StreamFeed
from jaxbench.data.feeds.synthetic_feed import SyntheticFeed
from jaxbench.data.sampler import EpochSampler
from jaxbench.distributed.mesh import DataMesh
from jaxbench.tasks import get_task


class Feed(Protocol):
    """What a job asks of a feed.

    A step gets two arguments from it: what lies on the devices all the time (`train_data`,
    `eval_data`; the same on every device), and this step's batch for each device. The feed's
    module has a function `take(data, batch, step) -> Examples`, which the step calls to get its
    images.

    Attributes:
      name: as in `DataConfig.feed`.
      steps_per_epoch, eval_steps: full training batches in the split; evaluation steps.
      num_eval: examples of the evaluation split.
      eval_count: how many of them an evaluation counts: all but the corrupt ones.
      num_threads: host threads (of each worker process) that prepare batches, None where none do.
      num_workers: processes that prepare training batches, 0 where threads of this one do.
      jpeg_decoder: what decodes images as they are needed, None where none are.
      corrupt: {name: reason} of what could not be decoded so far.
      resident_bytes_per_device: what lies on each device all the time.
      sent_bytes_per_step: what goes from the host to all devices for a training step.
    """

    name: str
    train_data: Any
    eval_data: Any
    steps_per_epoch: int
    eval_steps: int
    num_eval: int
    eval_count: int
    num_threads: int | None
    num_workers: int | None
    jpeg_decoder: str | None
    corrupt: dict[str, str]
    resident_bytes_per_device: int
    sent_bytes_per_step: float

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Any]:
        """Yields, on the devices, what so many steps of an epoch (0 is the first) need."""

    def eval_batches(self) -> Iterator[Any]:
        """Yields, on the devices, what each evaluation step needs."""

    def close(self) -> None:
        """Ends what works ahead; no more batches are asked for."""


def create_feed(
    config: Config,
    dataset: Dataset | None,
    mesh: DataMesh,
    param_dtype: Any,
    *,
    process: tuple[int, int] | None = None,
) -> Feed:
    """Builds the feed that the config names; places on the devices what stays there.

    Args:
      config: the experiment.
      dataset: its splits; None for data.feed=synthetic.
      mesh: the devices.
      param_dtype: of the pixels' mean and deviation.
      process: (index, count) of processes with as many devices each, by default the mesh's; this
        one reads its own devices' batches only, all together read every batch.

    Raises:
      BadInput: the config asks for what the data set cannot do.
    """
    process = process or mesh.process
    share = len(mesh.local_devices)
    num_devices = share * process[1]
    if dataset is None:
        seeds_R = config.seeds(num_devices)
        devices_per_model = num_devices // len(seeds_R)
        seeds_D = np.repeat(np.array(seeds_R, np.uint32), devices_per_model)
        first = process[0] * share
        return SyntheticFeed(
            config.data,
            mesh,
            seeds_D[first : first + share],
            process,
            config.batch_size // devices_per_model,
            get_task(config.task).label_shape(config.data.image_shape),
            param_dtype,
        )
    orders = EpochSampler(
        num_train=len(dataset.train),
        num_eval=len(dataset.eval),
        batch_size=config.batch_size,
        eval_batch_size=config.global_eval_batch,
        seeds_R=config.seeds(num_devices),
        num_devices=num_devices,
        process=process,
    )
    kind = {"resident": ResidentFeed, "stream": StreamFeed}[config.data.feed]
    num_steps = config.num_steps(orders.steps_per_epoch)
    return kind(config.data, dataset, mesh, orders, param_dtype, num_steps)


def abstract_args(
    config: Config, num_devices: int, label_shape: tuple[int, ...], param_dtype: Any
) -> tuple[Any, Any]:
    """Returns the shapes of a training step's (data, batch), for compiling without a data set.

    Args:
      config: the experiment.
      num_devices: D.
      label_shape: of one example's label.
      param_dtype: of the pixels' mean and deviation.
    """
    shape = jax.ShapeDtypeStruct
    label_dtype = jnp.uint8 if label_shape else jnp.int32
    channels = config.data.image_shape[-1]
    share = config.batch_size // (num_devices // config.num_models(num_devices))
    data = {"mean": shape((channels,), param_dtype), "std": shape((channels,), param_dtype)}
    batch = {"seed": shape((num_devices,), np.uint32)}
    if config.data.feed == "resident":
        # The step does not depend on how many examples there are; one batch stands in.
        data["images"] = shape((share, *config.data.image_shape), jnp.uint8)
        data["labels"] = shape((share, *label_shape), label_dtype)
        batch["order"] = shape((num_devices, 1, share), jnp.int32)
        return data, batch
    batch["images"] = shape((num_devices, share, *config.data.image_shape), jnp.uint8)
    batch["labels"] = shape((num_devices, share, *label_shape), label_dtype)
    batch["indices"] = shape((num_devices, share), jnp.int32)
    batch["epoch"] = shape((num_devices,), jnp.int32)
    return data, batch
