"""The ceiling of a step: arithmetic that can be done by hand."""

import pytest

from jaxbench.analysis.ceiling import all_reduced_bytes, ceiling, least_traffic

STEP = {
    "images_per_step": 100,
    "flops_per_device": 2e12,
    "bytes_per_device": 3e9,
    "exchanged_bytes": 1e9,
    "num_devices": 2,
    "peak_flops_per_s": 1e13,
    "memory_bytes_per_s": 1e11,
    "link_bytes_per_s": 1e10,
}


def test_the_slowest_part_binds():
    found = ceiling(**STEP)
    # 2e12 / 1e13; 3e9 / 1e11; of two devices each sends half of 1e9 twice.
    assert found["least_s"] == pytest.approx({"compute": 0.2, "memory": 0.03, "links": 0.1})
    assert found["bound_by"] == "compute" and found["images_per_s"] == pytest.approx(500)
    slower = ceiling(**STEP | {"link_bytes_per_s": 1e9})
    assert slower["bound_by"] == "links" and slower["images_per_s"] == pytest.approx(100)


def test_one_device_has_no_links_and_an_unknown_peak_no_ceiling():
    assert "links" not in ceiling(**STEP | {"num_devices": 1})["least_s"]
    unknown = ceiling(**STEP | {"peak_flops_per_s": None})
    assert unknown["bound_by"] is None and unknown["images_per_s"] is None
    assert list(unknown["least_s"]) == ["memory", "links"]


def test_what_is_alive_beyond_the_cache_is_written_and_read():
    memory = {
        "argument_bytes": 10, "output_bytes": 8, "alias_bytes": 7, "temporary_bytes": 100
    }  # fmt: skip
    assert least_traffic(memory, uncached_bytes=0, cache_bytes=0) == 10 + 1 + 200
    assert least_traffic(memory, uncached_bytes=0, cache_bytes=60) == 10 + 1 + 80
    assert least_traffic(memory, uncached_bytes=0, cache_bytes=500) == 11
    assert least_traffic(memory, uncached_bytes=999, cache_bytes=0) == 999


def test_gathers_and_scatters_load_a_ring_half_as_much_as_the_all_reduce_of_their_whole():
    whole, devices = 800, 8
    count = {"count": 1, "largest_bytes": 1}
    halves = {
        "reduce-scatter": count | {"bytes": whole},
        "all-gather": count | {"bytes": whole // devices},
    }
    assert all_reduced_bytes(halves, devices) == whole
    assert all_reduced_bytes({"all-reduce": count | {"bytes": whole}} | halves, 8) == 2 * whole
