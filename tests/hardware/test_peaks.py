"""Peaks by device and precision, and what is made of them."""

import math
import types

import pytest

from jaxbench.hardware.peak_table import cpu_flops_limit, find_bandwidth, find_peak, rows
from jaxbench.hardware.peaks import flops_limit, utilization
from tests.conftest import ROOT, table

ARITHMETIC = ("bf16", "fp16", "tf32", "fp32")


@pytest.mark.parametrize(
    ("device_kind", "precision", "arithmetic", "tflops", "gb_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", "fp32", "tf32", 494.7, 3352),
        ("Tesla V100-SXM2-16GB", "fp32", "fp32", 15.7, 900),
        ("Tesla V100-PCIE-32GB", "fp16", "fp16", 112, 900),
        # With and without the maker's name.
        ("GeForce RTX 2080 Ti", "fp16", "fp16", 53.8, 616),
        ("NVIDIA GeForce RTX 2080 Ti", "fp32", "fp32", 13.4, 616),
        ("NVIDIA TITAN X (Pascal)", "fp32", "fp32", 10.97, 480),
        # Two JAX devices a chip.
        ("TPU v3", "fp32", "bf16", 61.5, 450),
        ("TPU7x", "bf16", "bf16", 1153.5, 3690),
        ("TPU v5 lite", "bf16", "bf16", 197, 819),
        ("TPU v5", "bf16", "bf16", 459, 2765),
    ],
)
def test_devices_by_the_names_that_jax_has_for_them(
    device_kind, precision, arithmetic, tflops, gb_per_s
):
    peak = find_peak(device_kind, precision)
    assert peak.arithmetic == arithmetic and peak.source
    assert math.isclose(peak.flops_per_s, tflops * 1e12)
    assert math.isclose(peak.bytes_per_s, gb_per_s * 1e9)


def test_a_gpu_s_fp32_peak_is_that_of_its_cores_and_clock():
    for row in table(ROOT / "jaxbench/hardware/targets/gpus.csv"):
        cores = int(row["sms"]) * int(row["fpus_per_sm"])
        peak = find_peak(row["kind"], "fp32", "highest")
        expected = 2 * cores * 1e9 * float(row["clock_ghz"])
        assert peak.flops_per_s == pytest.approx(expected, rel=0.011), row["name"]


def test_what_is_unknown_has_no_peak():
    for kind in ("cpu", "NVIDIA H300", "NVIDIA GeForce RTX 3090 Ti", "TPU v7"):
        assert find_peak(kind, "bf16") is None
    assert find_peak("Tesla V100-SXM2-16GB", "bf16") is None  # it has no such units
    assert find_bandwidth("Tesla V100-SXM2-16GB") == 900e9
    assert find_bandwidth("cpu") is find_bandwidth("Tesla V100-SXM3-32GB") is None
    assert find_peak("NVIDIA GeForce GTX 1080 Ti", "bf16") is None
    assert find_peak("TPU v4", "fp64") is None
    # A cell that is empty is no 0.
    sxm3 = find_peak("Tesla V100-SXM3-32GB", "fp16")
    assert (sxm3.flops_per_s, sxm3.bytes_per_s) == (125e12, None)
    assert find_peak("Tesla V100-SXM3-32GB", "fp32") is None
    # Full fp32 where it was asked for.
    peak = find_peak("NVIDIA H200", "fp32", "highest")
    assert peak.flops_per_s == pytest.approx(66.9e12)
    assert find_peak("NVIDIA H200", "fp32", "float32").arithmetic == "fp32"


def test_every_row_is_whole():
    table = rows()
    assert len({row["kind"] for row in table}) == len(table)
    for row in table:
        assert row["kind"] and row["source"] and int(row["per_chip"]) in (1, 2)
        figures = {name: float(row[f"{name}_tflops"] or 0) for name in ARITHMETIC}
        assert any(figures.values())
        # Half the bits, twice the rate: a figure with sparsity or fp16 accumulation in it shows.
        if figures["tf32"]:
            assert figures["bf16"] == figures["fp16"]
            assert figures["bf16"] / figures["tf32"] == pytest.approx(2, rel=0.025)
        # Operations a byte: a factor of 1000, or bits for bytes, would leave these bounds.
        if row["bandwidth_gb_per_s"]:
            ridge = 1e3 * max(figures.values()) / float(row["bandwidth_gb_per_s"])
            assert 14 < ridge < 600, row["kind"]


def test_tpus_are_named_as_jax_names_them():
    """By JAX's own list, where this version has it; what is newer than the table has no peak."""
    tpu_info = pytest.importorskip("jax._src.pallas.mosaic.tpu_info")
    if not hasattr(tpu_info, "chip_version_from_device_kind"):
        pytest.skip("this JAX has no list of TPUs")
    kinds = [row["kind"] for row in rows() if row["kind"].startswith("TPU")]
    versions = {str(tpu_info.chip_version_from_device_kind(kind)) for kind in kinds}
    assert versions == {"v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"}


def test_a_rate_is_set_beside_the_peak_of_all_its_devices():
    device = types.SimpleNamespace(device_kind="NVIDIA H200")
    mesh = types.SimpleNamespace(devices=[device] * 4, num_devices=4)
    said = utilization(mesh, "bf16", images_per_s=1e4, flops_per_image=10**10)
    assert said["flops_per_s_per_device"] == 2.5e13
    assert said["mfu"] == pytest.approx(2.5e13 / 989.4e12, rel=1e-3)


def test_no_device_exceeds_its_limit():
    """A limit lies above every peak: an EPYC 9755's 128 cores, in fp32 at 4.1 GHz; no GPU's."""
    assert 128 * 4.1e9 * 64 < cpu_flops_limit(128, ["fma", "avx512f"]) < 10 * 128 * 4.1e9 * 64
    assert cpu_flops_limit(2, ["avx2", "fma"]) == 2 * 6.5e9 * 32
    # Of what is unknown, nothing is said that is not true of all.
    assert cpu_flops_limit(1, []) == cpu_flops_limit(1, ["amx_tile", "avx512f"]) == 6.5e9 * 2048
    gpu = types.SimpleNamespace(platform="gpu", process_index=0)
    fastest = max(float(row["bf16_tflops"] or 0) for row in rows())
    assert flops_limit([gpu]) == 2e12 * fastest


def test_simulated_devices_share_one_processor():
    def cpus(*processes):
        return [types.SimpleNamespace(platform="cpu", process_index=p) for p in processes]

    assert flops_limit(cpus(0)) == 4 * flops_limit(cpus(0, 0, 0, 0))
    assert flops_limit(cpus(0, 0, 1, 1)) == flops_limit(cpus(0, 0))
