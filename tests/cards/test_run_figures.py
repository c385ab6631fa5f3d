"""Figures that are made from a run directory's records."""

import types

import pytest

from jaxbench.cards.card import measured
from jaxbench.cards.run_figures import drift_figure, share_of_measured, soak_figures

RATES = [measured("matmul_fp32_tflops", 50.0, device=0)]
RATES += [
    measured("matmul_bf16_tflops", rate, device=at) for at, rate in enumerate((600, 700, 800))
]


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
    step = types.SimpleNamespace(windows_s=[1.0] * 18)
    drift, *figures = soak_figures(step, {"devices": devices}, "runs/soak")
    assert (drift.name, drift.run) == ("drift_percent", "runs/soak")
    found = {(one.name, one.device): one.value for one in figures if not one.labels}
    assert found["temperature_max_c", 12] == 71 and found["power_mean_w", 0] == 300
    shares = {one.labels["reason"]: one.value for one in figures if one.labels}
    assert shares["sw_thermal_slowdown"] == 0.25 and shares["hw_slowdown"] == 0
    assert "gpu_idle" not in shares
    assert {one.device for one in figures if one.labels} == {0}  # the other board does not tell


@pytest.mark.parametrize(
    ("arithmetic", "precision", "flops_per_s", "backend", "share"),
    [
        ("bf16", "bf16", 350e12, "gpu", 0.5),  # of the median, each device by itself
        ("bf16", "bf16", 35e12, "cpu", 0.4),  # simulated devices share the processor
        ("fp16", "fp16", 350e12, "gpu", None),
        ("bf16", "bf16", None, "gpu", None),
        ("bf16", "fp32", 350e12, "tpu", 0.5),
        # Without a published peak nothing says whether fp32 is multiplied in TF32.
        (None, "fp32", 50e12, "gpu", None),
        (None, "fp32", 5e12, "cpu", 0.8),
        (None, "bf16", 350e12, "gpu", 0.5),
        ("bf16", "bf16", 701e12, "gpu", None),  # more than was measured is no fraction of it
    ],
)
def test_a_share_is_that_of_the_same_arithmetic(arithmetic, precision, flops_per_s, backend, share):
    found = share_of_measured(RATES, arithmetic, precision, flops_per_s, 8, backend)
    assert found == (share and pytest.approx(share))
