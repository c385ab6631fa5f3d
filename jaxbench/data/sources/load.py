"""Load the data set that a config names.

A new source is a module with a function `load(data, *, masks, progress, bar) -> Dataset`, a line in
`_SOURCES` and its name among the choices of `DataConfig.source` (and of `path`, if it reads files).
`masks` asks for segmentation, `progress` is called now and then with a line that says how far the
reading is, `bar` with what is fetched (see `download.Bar`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxbench.batch_layout import batch_multiple
from jaxbench.config import Config
from jaxbench.config.data import is_channels_first
from jaxbench.data.dataset import Dataset
from jaxbench.data.images.encoded import EncodedSplit
from jaxbench.data.sources import cifar10, custom, digits, folder, npz, synthetic, text, tfds
from jaxbench.data.sources.cache import apply_cache
from jaxbench.data.sources.download import Bar
from jaxbench.errors import BadInput
from jaxbench.tasks import get_task

_SOURCES: dict[str, Any] = {
    "digits": digits.load,
    "tfds": tfds.load,
    "cifar10_batches": cifar10.load,
    "npz": npz.load,
    "folder": folder.load,
    "text": text.load,
    "synthetic": synthetic.load,
    "custom": custom.load,
}


def load_dataset(
    config: Config,
    progress: Callable[[str], None] = lambda text: None,
    bar: Bar = lambda *_: None,
) -> Dataset:
    """Read both splits, or open them, and check them against each other and the config.

    Raises:
      BadInput: the data set is missing, corrupt, or does not fit the experiment.
    """
    data, task = config.data, get_task(config.task)
    masks = not data.sequence_length and bool(task.label_shape(data.image_shape))
    dataset = _SOURCES[data.source](data, masks=masks, progress=progress, bar=bar)
    dataset = dataclasses.replace(
        dataset,
        train=dataset.train.first(data.train_examples),
        eval=dataset.eval.first(data.eval_examples),
    )
    if problem := _problem(dataset, config, task.label_shape(dataset.image_shape)):
        raise BadInput(f"{dataset.description}{problem}")
    return dataset if data.cache == "none" else apply_cache(dataset, data, progress)


def _problem(dataset: Dataset, config: Config, label_shape: tuple[int, ...]) -> str:
    """Return why the experiment cannot use a data set, "" if it can.

    The arrays of encoded splits are checked when they are decoded. `label_shape` is that of one
    example's label.
    """
    if dataset.encoded and (count := config.model.num_init_images()):
        return (
            f": {config.model.network_name} computes parameters from {count} training images, "
            "which are decoded on the fly; data.feed=resident and data.random_resized_crop=False "
            "read them whole"
        )
    if dataset.num_classes < 2 and len(dataset.train):
        return ": all training examples are of one class, expected two or more"
    for name, split in (("train", dataset.train), ("eval", dataset.eval)):
        if isinstance(split, EncodedSplit):
            continue
        inputs, labels, split_name = split.inputs_Nx, split.labels_Nx, f", {name} split"
        expected = (len(inputs), *label_shape)
        if dataset.statistics and (inputs.ndim != 4 or inputs.dtype != np.uint8):
            return (
                f"{split_name}: images are {inputs.dtype} of shape {inputs.shape}, expected uint8 "
                "of shape (N, height, width, channels)"
            )
        if labels.shape != expected:
            noun = "masks" if label_shape else "labels"
            return f"{split_name}: {noun} of shape {labels.shape}, expected {expected}"
        if not len(inputs):
            return f"{split_name}: has no examples"
        if inputs.shape[1:] != dataset.image_shape:
            return f"{split_name}: images are {inputs.shape[1:]}, in training {dataset.image_shape}"
        if labels.min() < 0 or labels.max() >= dataset.num_classes:
            labels_run = f"labels run from {labels.min()} to {labels.max()}"
            return f"{split_name}: {labels_run}, expected 0 to {dataset.num_classes - 1}"
    data, count, has, flags = config.data, len(dataset.train), [], []
    if dataset.image_shape != data.example_shape:
        if is_channels_first(dataset.image_shape):
            return f": images are {dataset.image_shape}, expected (height, width, channels)"
        has.append(f"images are {dataset.image_shape}")
        flags.append(f"--experiment.data.image_shape='{dataset.image_shape}'")
    if dataset.num_classes != data.num_classes:
        has.append(f"has {dataset.num_classes} classes")
        flags.append(f"--experiment.data.num_classes={dataset.num_classes}")
    if flags:
        return f": {', '.join(has)}, the experiment is made for others; set {' '.join(flags)}"
    if config.batch_size > count:
        multiple = batch_multiple(config, config.num_devices or jax.device_count())
        largest = count // multiple * multiple
        advice = f"; set --experiment.batch_size={largest}" if largest else ""
        return f": {count} training examples, fewer than batch_size={config.batch_size}{advice}"
    return ""
