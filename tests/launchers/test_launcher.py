"""Which launchers there are, their options, and the resources that Ray is asked for."""

import functools
import importlib
import sys

import jax
import pytest
from jax._src import xla_bridge

from jaxbench.api import sweep
from jaxbench.errors import BadInput
from jaxbench.launchers.launcher import Limits, create_launcher
from tests.conftest import MICRO, refusal
from tests.launchers.fakes import FakeLauncher, make
from tests.modes.mixed_devices import FakeDevice
from tests.recorded import GIB


def test_a_launcher_that_there_is_not_is_told():
    refusal(create_launcher, "slum", Limits(), print, {}, told="did you mean 'slurm'")
    told = "--gpus with --launcher=ray: there is no such option"
    refusal(create_launcher, "ray", Limits(), print, {"gpus": 1}, told=told)


def test_hardware_is_part_of_a_key_elsewhere():
    [here] = make("seed=0")
    there = here.on(FakeLauncher(None, hardware=["GPU:1"]).hardware)
    assert here.on(()).key == here.key != there.key
    assert there.with_field("batch_size", 64).key != here.with_field("batch_size", 64).key


@pytest.mark.parametrize(
    ("variables", "stats", "is_refused"),
    [
        ({}, {}, True),
        ({}, {"pool_bytes": 60 * GIB}, True),
        ({}, {"pool_bytes": 2 * GIB}, False),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, {}, False),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, {"bytes_in_use": 30 * GIB}, True),
        # 60 GiB are 0.4 of 150: there is room for another.
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4"}, {"pool_bytes": 60 * GIB}, False),
        ({"XLA_CLIENT_MEM_FRACTION": ".4"}, {"pool_bytes": 60 * GIB}, False),
        # XLA_PYTHON_CLIENT_ALLOCATOR=platform.
        ({}, {"bytes_limit": None}, False),
    ],
)
def test_no_trial_starts_on_a_gpu_whose_memory_this_process_holds(
    monkeypatch, tmp_path, variables, stats, is_refused
):
    gpu = FakeDevice(0, "GPU")
    gpu.memory_stats = lambda: {"bytes_limit": 60 * GIB, "bytes_in_use": GIB, **stats}
    for name in ("PYTHON_CLIENT_PREALLOCATE", "PYTHON_CLIENT_MEM_FRACTION", "CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(f"XLA_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    jax.devices()
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    if is_refused:
        told = "GiB of the GPU's memory, which the trials need: restart it"
        folder = tmp_path / "sweep"
        refusal(sweep, MICRO, {"batch_size": [8, 16]}, sweepdir=folder, told=told)
        assert not folder.exists()
    create = functools.partial(create_launcher, "local", Limits(), print, {})
    refusal(create) if is_refused else create()
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    create()


@pytest.fixture
def ray_launcher():
    pytest.importorskip("ray", reason="needs Ray: pip install 'jaxbench[ray]'")
    return importlib.import_module("jaxbench.launchers.ray")


def test_without_ray_there_is_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "jaxbench.launchers.ray", raising=False)
    with pytest.raises(BadInput, match=r"^--launcher=ray: .*: pip install 'jaxbench\[ray\]'$"):
        create_launcher("ray", Limits(), print, {})


def test_resources_are_parsed(ray_launcher):
    amounts = ray_launcher.parse_resources("GPU:2, accelerator_type:H100,lab:a:1")
    assert amounts == {"GPU": 2, "accelerator_type:H100": 0.001, "lab:a": 1}
    assert ray_launcher.parse_resources("") == {}


@pytest.mark.parametrize(
    "text", ["GPU", "GPU:", "GPU:0", "GPU:0.5", "GPU:-1", ":1", "GPU:1,,CPU:1"]
)
def test_other_resources_are_told(ray_launcher, text):
    with pytest.raises(BadInput, match=f"^--ray_resources={text}: .* such as GPU:1, or accel"):
        ray_launcher.parse_resources(text)


def node(**has):
    return {"Resources": has}


def test_a_trial_gets_what_was_asked_for_or_its_whole_node(ray_launcher):
    h100 = {"accelerator_type:H100": 1.0}
    head = node(memory=1e9)
    two, eight = node(CPU=4.0, GPU=2.0, **h100), node(CPU=96.0, GPU=8.0, **h100)
    plain = node(CPU=4.0, object_store_memory=1e9)
    nodes = [head, two, eight, plain]

    def found(text):
        asked = ray_launcher.parse_resources(text)
        return [(nodes.index(one), a) for one, a in ray_launcher.find_nodes(asked, nodes)]

    # The types of accelerators are always a part, for a trial's hardware must be known.
    types = {"accelerator_type:H100": 0.001}
    whole = [(1, {"CPU": 4, "GPU": 2, **types}), (2, {"CPU": 96, "GPU": 8, **types})]
    assert found("") == [*whole, (3, {"CPU": 4})]
    assert found("accelerator_type:H100") == whole
    assert found("GPU:4") == [(2, {"GPU": 4, **types})]
    assert found("object_store_memory:9") == [(3, {"CPU": 4})]
    assert found("GPU:16") == found("accelerator_type:V100") == []
