"""The networks of a card: what is measured, estimated, halved, and left out for time."""

import types

import jax
import pytest
from msgspec.structs import replace

from jaxbench.batch_layout import BatchLayout
from jaxbench.cards.card import measured
from jaxbench.cards.figures import CPU, STANDARD
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import networks
from jaxbench.qualification.networks import make_config
from jaxbench.qualification.session import PartFailed
from jaxbench.train import build_program

GIB = 2**30


def result(batch=32, needs_bytes=GIB, limit_bytes=8 * GIB):
    """The outcome of a run, as far as it is looked at."""
    compiled = types.SimpleNamespace(
        memory={"total_bytes": needs_bytes}, device_memory_bytes=limit_bytes
    )
    return types.SimpleNamespace(summary={"status": "done"}, compiled=compiled)


@pytest.fixture
def ran(session, monkeypatch):
    """Has runs take no time, and those of more than 100 images no place; returns their batches."""
    batches = []

    def measure(config, *_, **__):
        batches.append(config.batch_size)
        if config.batch_size > 100:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return result()

    monkeypatch.setattr(networks, "measure_throughput", measure)
    monkeypatch.setattr(networks, "network_figures", lambda *_: [])
    session.preset = session.preset._replace(largest=True)
    return batches


@pytest.mark.parametrize(
    ("estimate", "tried", "told"),
    [
        (192, [32, 16, 192, 96], None),  # halved where memory runs out
        (32, [32, 16], "no larger batch"),
    ],
)
def test_the_largest_batch(session, ran, monkeypatch, estimate, tried, told):
    monkeypatch.setattr(networks.Networks, "_estimate", lambda *_: estimate)
    session.part = "networks"
    networks.measure(session, 60.0)
    notes = [note.detail for note in session.notes.get("networks", ())]
    assert ran == tried and len(notes) == bool(told) and (told or "") in "".join(notes)


def test_a_stated_batch_that_does_not_fit_is_no_failure(session, ran):
    network = replace(session.preset.networks[0], batch_per_device=64)
    session.part, session.preset = "networks", session.preset._replace(networks=(network,))
    networks.measure(session, 60.0)
    [note] = session.notes["networks"]
    assert ran == [128] and note.detail == "does not fit in the memory"


def test_one_network_that_fails_leaves_the_others(session, monkeypatch):
    def measure(config, *_, **__):
        if config.precision == "bf16":
            raise ValueError("no bf16\nhere")
        return result()

    monkeypatch.setattr(networks, "measure_throughput", measure)
    figure = measured("images_per_s", 1.0, network="a", precision="fp32", batch=1)
    monkeypatch.setattr(networks, "network_figures", lambda *_: [figure])
    session.preset = session.preset._replace(precisions=("bf16", "fp32"))
    with pytest.raises(PartFailed, match="^micro bf16 32: no bf16$"):
        networks.measure(session, 60.0)
    assert session.figures == [figure]


def test_what_there_is_no_time_for_is_named(session, ran):
    session.part = "networks"
    session.preset = session.preset._replace(precisions=("fp32", "bf16"))
    networks.measure(session, 0.0)
    [note] = session.notes["networks"]
    assert ran == [32]  # the first one in any case
    assert note.detail == "micro bf16 32, micro fp32 16, micro fp32 largest batch"


def test_an_invalid_run_has_no_figures(session, monkeypatch):
    invalid = result()
    invalid.summary = {"status": "invalid", "invalid": ["too fast"]}
    monkeypatch.setattr(networks, "measure_throughput", lambda *_, **__: invalid)
    with pytest.raises(PartFailed, match="too fast"):
        networks.measure(session, 1.0)
    assert not session.figures


def test_the_estimate_compiles_and_runs_nothing(session):
    config = make_config(session.preset.networks[0], "fp32", 2)
    own = networks.Networks(session, 1.0)
    first = types.SimpleNamespace(
        **{"memory": {"total_bytes": 1}, "device_memory_bytes": GIB, "function": "train_step"},
        stage="train_step",
    )
    found = own._estimate(config, types.SimpleNamespace(of_kind=lambda _: [first]), 16)
    assert found > 0 and found % 16 == 0 and [*session.folder.iterdir()] == []


# ResNet-50 is traced by tests/models/test_models.py.
@pytest.mark.parametrize("network", STANDARD.networks[1:] + CPU.networks, ids=lambda own: own.spec)
def test_a_preset_has_its_networks_operations_and_types(network):
    config = make_config(network, "bf16", 1)
    mesh = DataMesh(tuple(jax.devices()[:1]), "shard_map")
    program = build_program(config, mesh, BatchLayout.create(config, 1), steps_per_epoch=1)
    assert program.training_flops == network.flops_per_image
    # By which the peak is chosen.
    assert program.analysis.main_dtype == "bfloat16"
