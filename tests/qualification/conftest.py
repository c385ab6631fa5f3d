"""A bench of two simulated devices with a network that compiles in no time."""

import io

import jax
import pytest

from jaxbench.distributed.mesh import DataMesh
from jaxbench.qualification.bench import Bench
from jaxbench.qualification.preset import Preset, PresetNetwork
from jaxbench.records.writers.console import PlainConsole
from tests.conftest import MICRO

PRESET = Preset("test-1", (PresetNetwork(MICRO, 16),), ("fp32",), largest=False, check_width=16)


@pytest.fixture
def preset():
    return PRESET


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def bench(tmp_path, output):
    mesh = DataMesh(tuple(jax.devices()[:2]), "shard_map")
    return Bench(mesh, tmp_path, PRESET, PlainConsole(output), 60.0)
