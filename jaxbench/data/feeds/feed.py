"""Feeds bring a data set to the devices: resident, synthetic, and `stream` in its own file.

Letters: N examples, D devices, L of them in this process, S steps, B examples per device.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.aliases import Batch, DType
from jaxbench.batch_layout import BatchLayout
from jaxbench.config import Config
from jaxbench.data.augment import Examples
from jaxbench.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset
from jaxbench.data.feeds import stream
from jaxbench.data.sampler import PADDING, EpochSampler, device_seeds
from jaxbench.parallel.mesh import DataMesh
from jaxbench.precision import get_precision
from jaxbench.tasks import get_task


class Feed(Protocol):
    """Brings a data set to the devices.

    A step gets two arguments from it: the arrays that stay on the devices (`train_data` or
    `eval_data`, the same on every device), and this step's batch for each device, which the feed's
    function in `UNPACK_BATCH` unpacks inside the step.
    """

    name: str  # as in `DataConfig.feed`
    train_data: Batch
    eval_data: Batch
    steps_per_epoch: int  # full training batches in the split
    eval_steps: int
    num_eval: int  # examples of the evaluation split
    # For the record: num_threads (of each worker process, None if no thread prepares batches),
    # num_workers, resident_bytes_per_device, and sent_bytes_per_step (to all devices).
    resources: dict[str, int | float | None]

    @property
    def image_warnings(self) -> Mapping[str, str]:
        """Return {name: libjpeg's warning} of images that this process decoded in spite of it."""
        return {}

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield, on the devices, the batches of `num_steps` steps of an epoch, 0 the first."""

    def eval_batches(self) -> Iterator[Batch]:
        """Yield, on the devices, the batch of each evaluation step."""

    def close(self) -> None:
        """End the threads and processes that work ahead."""
        return  # most feeds have none


def create_feed(
    config: Config,
    dataset: Dataset | None,
    mesh: DataMesh,
    layout: BatchLayout,
) -> Feed:
    """Build the feed that the config names; place on the devices what stays there.

    A process reads only its devices' batches, and all processes together read every batch. Without
    a data set the feed is synthetic.

    Raises:
      BadInput: the data set cannot do what the config asks for.
    """
    if dataset is None:
        return SyntheticFeed(config, mesh, layout)
    # Of the pixels' mean and deviation.
    param_dtype = get_precision(config.precision).param_dtype
    seeds_R = config.seeds(layout.num_devices)
    sampler = EpochSampler(
        layout, num_train=len(dataset.train), num_eval=len(dataset.eval), seeds_R=seeds_R
    )
    if config.data.feed == "resident":
        return ResidentFeed(dataset, mesh, sampler, param_dtype)
    num_steps = config.num_steps(sampler.steps_per_epoch)
    return stream.StreamFeed(config.data, dataset, mesh, sampler, param_dtype, num_steps)


def unpack_resident(
    data: dict[str, jax.Array], batch: dict[str, jax.Array], step: jax.Array
) -> Examples:
    """Gather the batch of `step` (counted from the start of training) inside the step.

    Another example replaces PADDING; only the mask marks it.
    """
    order_SxB = batch["order"]
    epoch, row = jnp.divmod(step, order_SxB.shape[0])
    indices_B = jax.lax.dynamic_index_in_dim(order_SxB, row, keepdims=False)
    mask_B = indices_B != PADDING
    safe_B = jnp.where(mask_B, indices_B, 0)
    return Examples(
        inputs_Bx=data["images"][safe_B],
        labels_Bx=data["labels"][safe_B],
        indices_B=indices_B,
        mask_B=mask_B,
        seed=batch["seed"],
        epoch=epoch,
    )


# How a step takes its examples from a feed's arrays: (data, batch, step) -> Examples.
UNPACK_BATCH = {
    "resident": unpack_resident,
    "stream": stream.unpack_batch,
    "synthetic": stream.unpack_batch,
}


class ResidentFeed(Feed):
    """Place a data set on every device as uint8; send the order in which each epoch reads it.

    Nothing else is sent during an epoch: the step gathers its batch.
    """

    name = "resident"

    def __init__(self, dataset: Dataset, mesh: DataMesh, sampler: EpochSampler, param_dtype: DType):
        self._mesh = mesh
        self._sampler = sampler
        self.steps_per_epoch = sampler.steps_per_epoch
        self.eval_steps = sampler.eval_steps
        self.num_eval = sampler.num_eval
        # Arguments of the step rather than constants in it: one executable serves every seed
        # and every data set of the same shape.
        statistics = dataset.normalization(param_dtype)
        self.train_data, self.eval_data = (
            mesh.replicate({"images": split.inputs_Nx, "labels": split.labels_Nx, **statistics})
            for split in (dataset.train, dataset.eval)
        )
        leaves = jax.tree.leaves((self.train_data, self.eval_data))
        self.resources = {
            "num_threads": None,
            "num_workers": None,
            "resident_bytes_per_device": sum(leaf.nbytes for leaf in leaves),
            # The indices of the epoch's order, 4 bytes each, sent once in the epoch.
            "sent_bytes_per_step": 4.0 * sampler.layout.images_per_step,
        }
        self._eval_batches = [
            self._send(sampler.eval_LxSxB[:, step : step + 1]) for step in range(self.eval_steps)
        ]

    def _send(self, order_LxSxB: np.ndarray) -> dict[str, jax.Array]:
        return self._mesh.shard({"order": order_LxSxB, "seed": self._sampler.seeds_L})

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Batch]:
        """Send an epoch's order; every step gets all of it."""
        del first_step  # the state's step counts
        batch = self._send(self._sampler.train_LxSxB(epoch))
        return itertools.repeat(batch, num_steps)

    def eval_batches(self) -> Iterator[Batch]:
        """Yield the order of each evaluation step, sent once at the start."""
        return iter(self._eval_batches)


class SyntheticFeed(Feed):
    """Hold one batch of random pixels or tokens on the devices, for every step.

    It measures only the devices.
    """

    name = "synthetic"
    steps_per_epoch = 1000  # an epoch has no meaning here; schedules need one
    eval_steps = 1

    def __init__(self, config: Config, mesh: DataMesh, layout: BatchLayout):
        data, process = config.data, layout.process_index
        statistics, shapes = abstract_args(config, layout)
        seeds_L = device_seeds(layout, config.seeds(layout.num_devices))
        num_devices, first = len(seeds_L), process * layout.batch_per_process
        indices_N = np.arange(first, first + layout.batch_per_process, dtype=np.int32)
        batch = {
            "indices": indices_N.reshape(num_devices, -1),
            "seed": seeds_L,
            "epoch": np.zeros(num_devices, np.int32),
        }
        generator = np.random.Generator(np.random.Philox(key=[int(seeds_L[0]), process]))
        masks = shapes["labels"].ndim > 2 and not data.sequence_length
        num_values = {
            "labels": 2 if masks else data.num_classes,
            "images": data.num_classes if data.sequence_length else 256,
        }
        for name, high in num_values.items():
            shape = (num_devices, *shapes[name].shape[1:])
            batch[name] = generator.integers(0, high, shape, shapes[name].dtype)
        self._batch = mesh.shard(batch)
        imagenet = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        statistics_C = {
            name: np.resize(np.array(imagenet[name], channels.dtype), channels.shape)
            for name, channels in statistics.items()
        }
        self.train_data = self.eval_data = mesh.replicate(statistics_C)
        self.num_eval = layout.images_per_step
        resident = [*statistics_C.values(), *(leaf[0] for leaf in batch.values())]
        self.resources = {
            "num_threads": None,
            "num_workers": None,
            "resident_bytes_per_device": sum(array.nbytes for array in resident),
            "sent_bytes_per_step": 0.0,
        }

    def train_batches(self, epoch: int, num_steps: int, first_step: int = 0) -> Iterator[Batch]:
        del epoch, first_step
        return itertools.repeat(self._batch, num_steps)

    def eval_batches(self) -> Iterator[Batch]:
        return iter([self._batch])


def abstract_args(config: Config, layout: BatchLayout) -> tuple[Any, Any]:
    """Return the shapes of a training step's (data, batch), to compile without a data set."""
    shape = jax.ShapeDtypeStruct
    label_shape = get_task(config.task).label_shape(config.data.example_shape)
    param_dtype = get_precision(config.precision).param_dtype
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
