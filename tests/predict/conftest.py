"""What the tests of predictions share."""

import pytest

from jaxbench.cli import entry_point
from jaxbench.modes import predictions
from jaxbench.modes.predictions import read_shape

_TRACED = {}


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Returns the shape of an experiment; it is traced once for all tests."""

    def read_once(config, attention="xla"):
        key = config.name, config.precision, config.data.sequence_length, attention
        if key not in _TRACED:
            _TRACED[key] = read_shape(config, attention)
        return _TRACED[key]

    monkeypatch.setattr(predictions, "read_shape", read_once)
    return lambda *args: read_once(*args)[0]


@pytest.fixture(scope="session")
def resnet50():
    overrides = ["--experiment.precision=bf16", "--experiment.batch_size=256"]
    return entry_point.load_experiment("resnet50:synthetic", overrides)
