"""Load the data set that a config names.

A new source is a module with a function `load(data, *, masks, progress, bar) -> Dataset`, a line in
`_SOURCES` and its name among the choices of `DataConfig.source` (and of `path`, if it reads files).
`masks` asks for segmentation, `progress` is called now and then with a line that says how far the
reading is, `bar` with what is fetched (see `download.Bar`).
"""

import dataclasses
from collections.abc import Callable

from jaxbench.config import Config
from jaxbench.data.dataset import Dataset
from jaxbench.data.sources import cifar10, custom, digits, folder, npz, synthetic, text, tfds
from jaxbench.data.sources.cache import apply_cache
from jaxbench.data.sources.download import Bar
from jaxbench.errors import BadInput
from jaxbench.tasks import get_task

_SOURCES = {
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
    dataset.check(task.label_shape(dataset.image_shape))
    dataset = dataclasses.replace(
        dataset,
        train=dataset.train.first(data.train_examples),
        eval=dataset.eval.first(data.eval_examples),
    )
    shape, problem = dataset.image_shape, ""
    if shape != data.example_shape:
        problem = (
            f"images are {shape}, the experiment is made for {data.example_shape}; "
            f"--experiment.data.image_shape='{shape}' changes it"
        )
    elif dataset.num_classes != data.num_classes:
        problem = (
            f"has {dataset.num_classes} classes, the experiment is made for {data.num_classes}; "
            f"--experiment.data.num_classes={dataset.num_classes} changes it"
        )
    elif config.batch_size > len(dataset.train):
        problem = (
            f"has {len(dataset.train)} training examples, fewer than batch_size={config.batch_size}"
        )
    if problem:
        raise BadInput(f"{dataset.description}: {problem}")
    return dataset if data.cache == "none" else apply_cache(dataset, data, progress)
