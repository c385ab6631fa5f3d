"""Loads the data set that a config names."""

from collections.abc import Callable

from jaxbench.config import Config
from jaxbench.data.dataset import Dataset
from jaxbench.data.sources import arrays, digits, folder, synthetic, tfds
from jaxbench.data.sources.cache import apply_cache
from jaxbench.errors import BadInput
from jaxbench.tasks import get_task


def load_dataset(config: Config, progress: Callable[[str], None] = lambda text: None) -> Dataset:
    """Reads both splits, or their names, and checks them against each other and the config.

    Args:
      config: the experiment.
      progress: told now and then how far the reading is.

    Raises:
      BadInput: missing, corrupt, or does not fit the experiment.
    """
    data, task = config.data, get_task(config.task)
    masks = task.name == "segmentation"
    limits = (data.train_examples, data.eval_examples)
    if data.source == "digits":
        dataset = digits.load()
    elif data.source == "synthetic":
        dataset = synthetic.load(data.image_shape, data.num_classes, *limits, masks=masks)
    elif data.source == "tfds":
        dataset = tfds.load(
            data.name,
            data.path,
            splits=(data.train_split, data.eval_split),
            limits=limits,
            mask_shape=data.image_shape[:2] if masks else None,
            encoded_shape=data.image_shape if data.random_resized_crop else None,
            progress=progress,
        )
    elif data.source == "cifar10_batches":
        dataset = arrays.load_cifar10_batches(data.path)
    elif data.source == "folder":
        dataset = folder.load(
            data.path,
            data.image_shape,
            splits=(data.train_split, data.eval_split),
            limits=limits,
            encoded=data.feed == "stream",
            progress=progress,
        )
    elif data.source == "npz":
        dataset = arrays.load_npz(data.path, masks=masks)
    else:
        raise ValueError(f"no data source {data.source!r}")
    dataset.check(task.label_shape(dataset.image_shape))
    dataset = Dataset(
        description=dataset.description,
        train=dataset.train.first(limits[0]),
        eval=dataset.eval.first(limits[1]),
        num_classes=dataset.num_classes,
    )
    if dataset.image_shape != data.image_shape:
        raise BadInput(
            f"{dataset.description}: images are {dataset.image_shape}, the experiment is made for "
            f"{data.image_shape}; --experiment.data.image_shape='{dataset.image_shape}' changes it"
        )
    if dataset.num_classes != data.num_classes:
        raise BadInput(
            f"{dataset.description}: has {dataset.num_classes} classes, the experiment is made for "
            f"{data.num_classes}; --experiment.data.num_classes={dataset.num_classes} changes it"
        )
    if config.batch_size > len(dataset.train):
        raise BadInput(
            f"batch_size={config.batch_size}: {dataset.description} has only "
            f"{len(dataset.train)} training examples"
        )
    if data.cache != "none":
        dataset = apply_cache(dataset, data, progress)
    return dataset
