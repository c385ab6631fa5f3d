"""The speed run's experiment, small enough to compile quickly."""

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.sources import synthetic
from jaxbench.modes.train import run_training
from jaxbench.records.writers.console import Console
from tests.conftest import config_of

TINY = "cifar10_speedrun94:tiny"
FIELDS = {
    "model__channels": (4, 8, 8),
    "data__train_examples": 128,
    "data__eval_examples": 50,
    "batch_size": 32,
    "num_devices": 1,
}


def config_with(**fields):
    return config_of(TINY, **FIELDS | fields)


def run(workdir, checkpoints=None, resume="none", **fields):
    more = {"checkpoints": checkpoints} if checkpoints else {}
    more |= {"resume": resume, "telemetry_s": 0}
    return run_training(config_with(**fields), str(workdir), Console(), **more)


def images():
    """Synthetic ones, as the network sees them."""
    dataset = synthetic.load(DataConfig(train_examples=128, eval_examples=50))
    mean, std = dataset.normalization(np.float32).values()
    return (dataset.train.inputs_Nx.astype(np.float32) - mean) / std
