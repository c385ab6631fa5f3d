"""A session of two simulated devices with a network that compiles in no time."""

import io

import jax
import numpy as np
import pytest

from jaxbench.cards.figures import PRESETS, Preset, PresetNetwork
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification.plan import Plan
from jaxbench.qualification.session import QualifySession
from jaxbench.records.writers.console import Console
from tests.conftest import MICRO

NETWORK = PresetNetwork(MICRO, 16, 3840)
PRESET = Preset("cpu-test", ("fp32",), 16, (NETWORK,))


@pytest.fixture
def preset(monkeypatch):
    monkeypatch.setitem(PRESETS, PRESET.name, PRESET)
    return PRESET


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def session(tmp_path, output):
    mesh = DataMesh(tuple(jax.devices()[:2]), "shard_map")
    return QualifySession(mesh, tmp_path, PRESET, Console(output), Plan({"soak": 60.0}, {}))


def corrupt_device(monkeypatch, mesh_class, place):
    """Flips a bit of what one device computes from."""
    replicate = mesh_class.replicate

    def corrupt(self, tree):
        weights, inputs = replicate(self, tree)
        array = weights["layer1"]
        copies = [np.array(shard.data) for shard in array.addressable_shards]
        copies[place].view(np.uint32)[0, 1] ^= 1 << 22
        placed = [*map(jax.device_put, copies, self.devices)]
        make = jax.make_array_from_single_device_arrays
        return {**weights, "layer1": make(array.shape, array.sharding, placed)}, inputs

    monkeypatch.setattr(mesh_class, "replicate", corrupt)
