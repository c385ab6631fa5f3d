"""A bench of two simulated devices with a network that compiles in no time."""

import io

import jax
import pytest

from jaxbench.cards.preset import PRESETS, Preset, PresetNetwork
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification.bench import Bench
from jaxbench.qualification.plan import Plan
from jaxbench.records.writers.console import Console
from tests.conftest import MICRO

NETWORK = PresetNetwork(MICRO, 16, 3840)
PRESET = Preset("cpu-test", (NETWORK,), ("fp32",), largest=False, check_width=16)


@pytest.fixture
def preset(monkeypatch):
    monkeypatch.setitem(PRESETS, PRESET.name, PRESET)
    return PRESET


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def bench(tmp_path, output):
    mesh = DataMesh(tuple(jax.devices()[:2]), "shard_map")
    return Bench(mesh, tmp_path, PRESET, Console(output), Plan({"soak": 60.0}, {}))
