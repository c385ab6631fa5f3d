"""The networks of a card: what is measured, halved, and left out for time or memory."""

import types

import jax
import pytest
from msgspec.structs import replace

from jaxbench.batch_layout import BatchLayout
from jaxbench.cards.card import measured
from jaxbench.cards.figures import CPU
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import networks
from jaxbench.qualification.networks import make_config
from jaxbench.qualification.session import PartFailed
from jaxbench.train import build_program


def result():
    """The outcome of a run, as far as it is looked at."""
    return types.SimpleNamespace(summary={"status": "done"})


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
    return batches


def test_half_of_the_batch_follows_in_the_first_precision(session, ran):
    session.preset = session.preset._replace(precisions=("fp32", "bf16"))
    networks.measure(session, 60.0)
    assert ran == [32, 32, 16] and not session.notes


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
    assert note.detail == "micro bf16 32, micro fp32 16"


def test_an_invalid_run_has_no_figures(session, monkeypatch):
    invalid = result()
    invalid.summary = {"status": "invalid", "invalid": ["too fast"]}
    monkeypatch.setattr(networks, "measure_throughput", lambda *_, **__: invalid)
    with pytest.raises(PartFailed, match="too fast"):
        networks.measure(session, 1.0)
    assert not session.figures


# Those of `STANDARD` are traced by tests/models/test_models.py.
@pytest.mark.parametrize("network", CPU.networks, ids=lambda own: own.spec)
def test_a_preset_has_its_networks_operations_and_types(network):
    config = make_config(network, "bf16", 1)
    mesh = DataMesh(tuple(jax.devices()[:1]), "shard_map")
    program = build_program(config, mesh, BatchLayout.create(config, 1), steps_per_epoch=1)
    assert program.training_flops == network.flops_per_image
    # By which the peak is chosen.
    assert program.analysis.main_dtype == "bfloat16"
