"""The networks of a card: what is measured, halved, and left out for time or memory."""

import re
import types

import jax
import pytest
from msgspec.structs import replace

from jaxbench.cards.card import measured
from jaxbench.cards.figures import CPU
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import networks
from jaxbench.qualification.networks import make_config
from jaxbench.qualification.plan import make_plan
from jaxbench.qualification.session import PartFailed
from jaxbench.training.program import create_network


def result():
    """The outcome of a run, as far as it is looked at."""
    return types.SimpleNamespace(summary={"status": "done"})


@pytest.fixture
def runs_s():
    """{precision: seconds of a run}, else none."""
    return {}


@pytest.fixture
def ran(session, monkeypatch, runs_s):
    """Has runs of more than 100 images no place; returns the runs' batches."""
    batches, now_s = [], [0.0]

    def measure(config, *_, **__):
        batches.append(config.batch_size)
        now_s[0] += runs_s.get(config.precision, 0.0)
        if config.batch_size > 100:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return result()

    def watch():
        began_s = now_s[0]
        return types.SimpleNamespace(elapsed_s=lambda: now_s[0] - began_s)

    monkeypatch.setattr(networks, "Stopwatch", watch)
    monkeypatch.setattr(networks, "measure_steps", measure)
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

    monkeypatch.setattr(networks, "measure_steps", measure)
    figure = measured("images_per_s", 1.0, network="a", precision="fp32", batch=1)
    monkeypatch.setattr(networks, "network_figures", lambda *_: [figure])
    session.preset = session.preset._replace(precisions=("bf16", "fp32"))
    with pytest.raises(PartFailed, match="^micro bf16 32: no bf16$"):
        networks.measure(session, 60.0)
    assert session.figures == [figure]


@pytest.mark.parametrize(
    ("time_s", "bf16_s", "batches", "said", "noted"),
    [
        (35.0, 10.0, [32, 32, 16], [], []),
        (25.0, 10.0, [32, 32], ["half"], ["half"]),
        # The second precision took less than the first: there is time.
        (25.0, 2.0, [32, 32, 16], ["half"], []),
        # It took more.
        (35.0, 20.0, [32, 32], [], ["half"]),
        # The first run begins in any case.
        (5.0, 10.0, [32], ["stated", "half"], ["stated", "half"]),
    ],
)
def test_what_there_is_no_time_for_is_named(
    session, ran, output, runs_s, time_s, bf16_s, batches, said, noted
):
    """Before the second precision, and in the end; a card without half batches is complete."""
    session.part = "networks"
    session.preset = session.preset._replace(precisions=("fp32", "bf16"))
    runs_s |= {"fp32": 10.0, "bf16": bf16_s}
    networks.measure(session, time_s)
    assert ran == batches
    runs = {"stated": "micro bf16 32", "half": "micro fp32 16"}
    lines = " ".join(output.getvalue().split())
    assert lines.count("networks: no time for") == len(said)
    for kind in said:
        assert re.search(rf"no time for {kind} batches: give --minutes=\d for {runs[kind]}", lines)
    notes = session.notes.get("networks", [])
    statuses = {
        f"no time for {kind} batches": "ok" if kind == "half" else "warning" for kind in noted
    }
    assert {note.name: note.status for note in notes} == statuses


def test_the_minutes_that_are_named_have_the_time(session, ran, runs_s, output):
    """Two runs of 40 s, of which the first one begins in any case."""
    session.part = "networks"
    session.plan = make_plan(1.0, num_devices=2, on_cpu=True)
    runs_s |= {"fp32": 40.0}
    networks.measure(session, session.plan.times_s["networks"])
    [note] = session.notes["networks"]
    minutes = int(re.search(r"minutes=(\d+)", note.detail)[1])
    plan = make_plan(minutes, num_devices=2, on_cpu=True)
    assert ran == [32] and plan.times_s["networks"] >= 80


def test_an_invalid_run_has_no_figures(session, monkeypatch):
    invalid = result()
    invalid.summary = {"status": "invalid", "invalid": ["too fast"]}
    monkeypatch.setattr(networks, "measure_steps", lambda *_, **__: invalid)
    with pytest.raises(PartFailed, match="too fast"):
        networks.measure(session, 1.0)
    assert not session.figures


# Those of `STANDARD` are traced by tests/models/test_models.py.
@pytest.mark.parametrize("network", CPU.networks, ids=lambda own: own.spec)
def test_a_preset_has_its_networks_operations_and_types(network):
    config = make_config(network, "bf16", 1)
    mesh = DataMesh(tuple(jax.devices()[:1]), "shard_map")
    analysis = create_network(config, mesh, steps_per_epoch=1).analysis
    assert analysis.training_flops == network.flops_per_image
    # By which the peak is chosen.
    assert analysis.main_precision == "bf16"
