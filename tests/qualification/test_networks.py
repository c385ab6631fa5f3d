"""The networks of a card: what is measured, estimated, halved, and left out for time."""

import types

import jax
import pytest
from msgspec.structs import replace

from jaxbench.batch_layout import BatchLayout
from jaxbench.cards.card import measured
from jaxbench.cards.card_file import list_files
from jaxbench.cards.preset import CPU, PRESETS, STANDARD
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import networks
from jaxbench.qualification.bench import PartFailed
from jaxbench.qualification.networks import make_config
from jaxbench.records.schema import CompileRecord, ThroughputRecord
from jaxbench.train import build_program
from jaxbench.xla.compile_cache import without_cache
from tests.conftest import run_json
from tests.recorded import filled

GIB = 2**30


def test_a_network_is_a_run_and_its_figures(bench):
    bench.part = "networks"
    with without_cache():  # or every step is compiled three times
        networks.measure(bench, 60.0)
    # The first of each name is of the stated batch, the second of half of it.
    by_name = {figure.name: figure for figure in reversed(bench.figures)}
    rate = by_name["images_per_s"]
    assert rate.labels == {"network": "micro", "precision": "fp32", "batch": 32}
    assert rate.run == "runs/micro-fp32-32" and rate.interval[0] <= rate.value
    document = run_json(bench.folder / rate.run)
    assert document["summary"]["images_per_s"] == rate.value
    assert by_name["flops_per_image"].value == document["training_flops_per_image"]
    assert f"{rate.run}/metrics.jsonl" in list_files(bench.folder)
    halves = [one.labels["batch"] for one in bench.figures if one.name == "images_per_s"]
    assert halves == [32, 16] and {"step_fixed_s", "step_per_image_s"} <= {*by_name}
    # Simulated devices have no peak, no energy counter, and no memory of their own.
    assert not {"mfu", "energy_j_per_image"} & {*by_name}
    [note] = bench.notes["networks"]
    assert "CPU devices" in note.found


def result(batch=32, needs_bytes=GIB, limit_bytes=8 * GIB):
    """The outcome of a run, as far as it is looked at."""
    compiled = types.SimpleNamespace(
        memory={"total_bytes": needs_bytes}, device_memory_bytes=limit_bytes
    )
    return types.SimpleNamespace(summary={"status": "done"}, compiled=compiled)


@pytest.fixture
def ran(bench, monkeypatch):
    """Has runs take no time, and those of more than 100 images no place; returns their batches."""
    batches = []

    def measure(config, *_, **__):
        batches.append(config.batch_size)
        if config.batch_size > 100:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return result()

    monkeypatch.setattr(networks, "measure_throughput", measure)
    monkeypatch.setattr(networks, "network_figures", lambda *_: [])
    monkeypatch.setattr(networks, "train_step_of", lambda _: ())
    bench.preset = bench.preset._replace(largest=True)
    return batches


@pytest.mark.parametrize(
    ("estimate", "tried", "told"),
    [
        (192, [32, 16, 192, 96], None),  # halved where memory runs out
        (32, [32, 16], "no larger batch"),
    ],
)
def test_the_largest_batch(bench, ran, monkeypatch, estimate, tried, told):
    monkeypatch.setattr(networks.Networks, "_estimate", lambda *_: estimate)
    bench.part = "networks"
    networks.measure(bench, 60.0)
    notes = [note.found for note in bench.notes.get("networks", ())]
    assert ran == tried and len(notes) == bool(told) and (told or "") in "".join(notes)


def test_a_stated_batch_that_does_not_fit_is_no_failure(bench, ran):
    network = replace(bench.preset.networks[0], batch_per_device=64)
    bench.part, bench.preset = "networks", bench.preset._replace(networks=(network,))
    networks.measure(bench, 60.0)
    [note] = bench.notes["networks"]
    assert ran == [128] and note.found == "does not fit in the device's memory"


def test_one_network_that_fails_leaves_the_others(bench, monkeypatch):
    def measure(config, *_, **__):
        if config.precision == "bf16":
            raise ValueError("no bf16\nhere")
        return result()

    monkeypatch.setattr(networks, "measure_throughput", measure)
    figure = measured("images_per_s", 1.0, network="a", precision="fp32", batch=1)
    monkeypatch.setattr(networks, "network_figures", lambda *_: [figure])
    monkeypatch.setattr(networks, "train_step_of", lambda _: ())
    bench.preset = bench.preset._replace(precisions=("bf16", "fp32"))
    with pytest.raises(PartFailed, match="^micro bf16 32: no bf16$"):
        networks.measure(bench, 60.0)
    assert bench.figures == [figure]


def test_what_there_is_no_time_for_is_named(bench, ran):
    bench.part = "networks"
    bench.preset = bench.preset._replace(precisions=("fp32", "bf16"))
    networks.measure(bench, 0.0)
    [note] = bench.notes["networks"]
    assert ran == [32]  # the first one in any case
    assert note.found == "micro bf16 32, micro fp32 16, micro fp32 largest batch"


def test_an_invalid_run_has_no_figures(bench, monkeypatch):
    invalid = result()
    invalid.summary = {"status": "invalid", "invalid": ["too fast"]}
    monkeypatch.setattr(networks, "measure_throughput", lambda *_, **__: invalid)
    with pytest.raises(PartFailed, match="too fast"):
        networks.measure(bench, 1.0)
    assert not bench.figures


@pytest.mark.parametrize("long_enough", [True, False])
def test_energy_is_told_only_with_enough_samples(long_enough):
    step = filled(
        ThroughputRecord,
        **{"stage": "train_step", "flops_per_image": 10, "images_per_step": 4, "num_devices": 2},
        **{"steps_per_window": 5, "windows_s": [2.0] * 8, "peak": None, "batch_size": 4},
    )
    compiled = filled(CompileRecord, function="train_step", cold_compile_s=2.0, warm_compile_s=None)
    telemetry = {
        "joules_per_image": 0.5,
        "energy_longest_gap_s": 0.2,
        "energy_covered": 1.0,
        "energy_window_long_enough": long_enough,
    }
    found = networks.network_figures(step, compiled, telemetry, "a", "runs/x", [], "gpu")
    figures = {one.name: one.value for one in found}
    expected = {"images_per_s": 10.0, "flops_per_image": 10, "compile_cold_s": 2.0}
    energy = {"energy_j_per_image": 0.5, "energy_longest_gap_s": 0.2, "energy_covered_share": 1.0}
    assert figures == expected | (energy if long_enough else {})


def test_the_estimate_compiles_and_runs_nothing(bench):
    config = make_config(bench.preset.networks[0], "fp32", 2)
    own = networks.Networks(bench, 1.0)
    first = types.SimpleNamespace(
        **{"memory": {"total_bytes": 1}, "device_memory_bytes": GIB, "function": "train_step"},
        stage="train_step",
    )
    found = own._estimate(config, types.SimpleNamespace(of_kind=lambda _: [first]))
    assert found > 0 and found % 16 == 0 and [*bench.folder.iterdir()] == []


@pytest.mark.parametrize("name", PRESETS)
def test_every_network_of_a_preset_is_one(name):
    preset = PRESETS[name]
    for network in preset.networks:
        for precision in preset.precisions:
            config = make_config(network, precision, 8)
            config.validate()
            assert config.batch_size == 8 * network.batch_per_device
            assert config.name == network.spec


# ResNet-50 is traced by tests/models/test_models.py.
@pytest.mark.parametrize("network", STANDARD.networks[1:] + CPU.networks, ids=lambda own: own.spec)
def test_a_preset_has_its_networks_operations_and_types(network):
    config = make_config(network, "bf16", 1)
    mesh = DataMesh(tuple(jax.devices()[:1]), "shard_map")
    program = build_program(config, mesh, BatchLayout.create(config, 1), steps_per_epoch=1)
    assert program.training_flops == network.flops_per_image
    # By which the peak is chosen.
    assert program.analysis.main_dtype == "bfloat16"
