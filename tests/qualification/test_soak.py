"""The soak, its drift and telemetry, and the search for silent corruption."""

import jax
import numpy as np
import pytest

from jaxbench.cards.figures import FIGURES
from jaxbench.qualification import soak
from jaxbench.qualification.corruption import CorruptionCheck
from tests.conftest import records, run_json


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


def values(bench, name):
    return {one.key[1:]: one.value for one in bench.figures if one.name == name}


def test_equal_steps_have_no_mismatch(bench):
    check = CorruptionCheck(bench)
    check.report()
    assert not bench.figures  # nothing is told of nothing
    check.burst()
    check.burst()
    check.report()
    assert values(bench, "rounds") == {(None, ()): 8}
    assert values(bench, "mismatches") == {(0, ()): 0, (1, ()): 0}
    assert bench.clock.totals_s()["corruption"] > 0


def test_a_result_that_changes_between_bursts_is_a_mismatch(bench):
    """Within the second burst all rounds agree."""
    check = CorruptionCheck(bench)
    check.burst()
    weights, _ = check._inputs
    weights["layer2"].view(np.uint32)[3, 3] ^= 1 << 22
    check.burst()
    check.report()
    found = values(bench, "mismatches")
    assert found[0, ()] > 0 and found[1, ()] == 0
    assert not values(bench, "mismatched_values")


def test_mismatches_are_named_by_device_round_and_tensor(bench, monkeypatch):
    corrupt_device(monkeypatch, type(bench.mesh), 1)
    check = CorruptionCheck(bench)
    check.burst()
    check.report()
    named = [one for one in bench.figures if one.name == "mismatched_values"]
    assert {one.device for one in named} == {1}
    assert {one.labels["round"] for one in named} == {0, 1, 2}
    assert "layer1" in {one.labels["tensor"] for one in named}
    assert values(bench, "mismatches")[1, ()] == len(named)


def test_a_soak_is_a_run_with_windows_and_bursts(bench):
    bench.part = "soak"
    with bench.clock.phase("soak"):
        soak.measure_soak(bench, 1.0)
    folder = bench.folder / "runs" / "soak"
    document = run_json(folder)
    assert (document["status"], document["mode"]) == ("done", "throughput")
    [record] = records(folder, "throughput")
    [drift] = [one for one in bench.figures if one.name == "drift_percent"]
    assert drift.interval[0] <= drift.value <= drift.interval[1]
    assert len(record["windows_s"]) >= 18
    assert values(bench, "rounds")[None, ()] >= 3 * 4  # at both ends, and between
    assert {FIGURES[one.name].part for one in bench.figures} == {"soak", "corruption"}
    assert document["summary"]["telemetry"]["devices"]["host"]["samples"] >= 2


def test_drift_is_that_of_the_last_third():
    slower = [1.0, 1.01] * 5 + [1.05] * 10 + [1.1, 1.11] * 5
    figure = soak.drift_figure(slower)
    assert figure.value == pytest.approx(100 * (1.005 / 1.105 - 1), abs=0.1)
    assert figure.interval[0] < figure.value < figure.interval[1] < -8
    assert soak.drift_figure([1.0] * 18).interval == (0, 0)


def test_sensors_and_throttling_by_device():
    board = {"kind": "gpu", "temperature_c_max": 71.0, "power_w_mean": 300.0}
    figures = soak.telemetry_figures(
        {
            "host": {"kind": "host", "samples": 3},
            "gpu0": board | {"throttle_reasons": {"sw_thermal_slowdown": 0.25, "gpu_idle": 0.5}},
            "gpu12": board,
        }
    )
    found = {(one.name, one.device): one.value for one in figures if not one.labels}
    assert found["temperature_max_c", 12] == 71 and found["power_mean_w", 0] == 300
    shares = {one.labels["reason"]: one.value for one in figures if one.labels}
    assert shares["sw_thermal_slowdown"] == 0.25 and shares["hw_slowdown"] == 0
    assert "gpu_idle" not in shares
    assert {one.device for one in figures if one.labels} == {0}  # the other board does not tell


def test_error_counters_before_and_after(bench, monkeypatch):
    counters = iter(({"gpu1": {"ecc_corrected": 2}}, {"gpu1": {"ecc_corrected": 5}}))
    monkeypatch.setattr(soak, "read_error_counters", lambda _: next(counters))
    soak.measure_soak(bench, 0.2)
    of = (1, (("counter", "ecc_corrected"),))
    assert values(bench, "errors_before")[of] == 2 and values(bench, "errors_after")[of] == 5


def test_counters_that_cannot_be_read_are_noted(bench, monkeypatch):
    monkeypatch.setattr(soak, "read_error_counters", lambda _: 1 / 0)
    bench.part = "soak"
    assert soak._counters(bench, {}) == {}
    [note] = bench.notes["soak"]
    assert note.status == "warning" and "division by zero" in note.found
