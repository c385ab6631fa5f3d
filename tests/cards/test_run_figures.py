"""Figures that are made from a run directory's records."""

import pytest

from jaxbench.cards.run_figures import drift_figure, soak_figures


def test_drift_is_that_of_the_last_third():
    slower = [1.0, 1.01] * 5 + [1.05] * 10 + [1.1, 1.11] * 5
    figure = drift_figure(slower, "runs/soak")
    assert figure.value == pytest.approx(100 * (1.005 / 1.105 - 1), abs=0.1)
    assert figure.interval[0] < figure.value < figure.interval[1] < -8
    assert drift_figure([1.0] * 18, "runs/soak").interval == (0, 0)


def test_sensors_and_throttling_by_device():
    board = {"kind": "gpu", "temperature_c_max": 71.0, "power_w_mean": 300.0}
    devices = {
        "host": {"kind": "host", "samples": 3},
        "gpu0": board | {"throttle_reasons": {"sw_thermal_slowdown": 0.25, "gpu_idle": 0.5}},
        "gpu12": board,
    }
    summary = {"telemetry": {"devices": devices}}
    drift, *figures = soak_figures({"windows_s": [1.0] * 18}, summary, "runs/soak")
    assert (drift.name, drift.run) == ("drift_percent", "runs/soak")
    found = {(one.name, one.device): one.value for one in figures if not one.labels}
    assert found["temperature_max_c", 12] == 71 and found["power_mean_w", 0] == 300
    shares = {one.labels["reason"]: one.value for one in figures if one.labels}
    assert shares["sw_thermal_slowdown"] == 0.25 and shares["hw_slowdown"] == 0
    assert "gpu_idle" not in shares
    assert {one.device for one in figures if one.labels} == {0}  # the other board does not tell
