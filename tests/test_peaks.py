"""Peaks by device and precision, and what is made of them."""

import math

import pytest

from jaxbench.peaks import _rows, find_peak
from jaxbench.validity import impossible


@pytest.mark.parametrize(
    ("device_kind", "precision", "arithmetic", "tflops", "gb_per_s"),
    [
        ("NVIDIA H200", "bf16", "bf16", 989.4, 4800),
        ("NVIDIA H100 80GB HBM3", "fp32", "tf32", 494.7, 3352),
        ("NVIDIA A100-SXM4-80GB", "bf16", "bf16", 312, 2039),
        ("Tesla V100-SXM2-16GB", "fp32", "fp32", 15.7, 900),
        ("Tesla V100-SXM2-16GB", "fp16", "fp16", 125, 900),
        ("NVIDIA GeForce RTX 2080 Ti", "fp32", "fp32", 13.45, 616),
        ("NVIDIA GeForce RTX 3090", "bf16", "bf16", 71, 936),
        ("NVIDIA GeForce RTX 4090", "fp32", "tf32", 82.6, 1008),
        ("NVIDIA L4", "bf16", "bf16", 121, 300),
        # Two JAX devices a chip.
        ("TPU v2", "bf16", "bf16", 23, 350),
        ("TPU v3", "fp32", "bf16", 61.5, 450),
        ("TPU v4", "bf16", "bf16", 275, 1228),
        ("TPU v5 lite", "bf16", "bf16", 197, 819),
        ("TPU v5p", "bf16", "bf16", 459, 2765),
        ("TPU v6 lite", "bf16", "bf16", 918, 1640),
    ],
)
def test_devices_by_the_names_that_jax_has_for_them(
    device_kind, precision, arithmetic, tflops, gb_per_s
):
    peak = find_peak(device_kind, precision)
    assert peak.arithmetic == arithmetic and peak.source
    assert math.isclose(peak.flops_per_s, tflops * 1e12)
    assert math.isclose(peak.bytes_per_s, gb_per_s * 1e9)


def test_what_is_unknown_has_no_peak():
    for kind in ("cpu", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 3090 Ti", "TPU v7"):
        assert find_peak(kind, "bf16") is None
    assert find_peak("Tesla V100-SXM2-16GB", "bf16") is None  # it has no such units
    assert find_peak("TPU v4", "fp64") is None
    # Full fp32 where it was asked for.
    peak = find_peak("NVIDIA H200", "fp32", "highest")
    assert peak.flops_per_s == pytest.approx(66.9e12)
    assert find_peak("NVIDIA H200", "fp32", "float32").arithmetic == "fp32"


def test_every_row_is_whole():
    for row in _rows():
        assert row["kind"] and row["source"] and float(row["bandwidth_gb_per_s"]) > 100
        assert int(row["per_chip"]) in (1, 2)
        assert row["bf16_tflops"] or row["fp16_tflops"]


def test_more_than_a_device_can_do_is_invalid():
    record = {
        "images_per_s": 100.0,
        "images_per_s_low": 90.0,
        "images_per_s_high": 110.0,
        "step_s": 1.0,
        "mfu": 1.2,
        "peak": {"kind": "TPU v4"},
    }
    assert impossible(record) == ["120% of what TPU v4 can do at most"]
    assert impossible(record | {"mfu": 0.9}) == impossible(record | {"mfu": None}) == []
