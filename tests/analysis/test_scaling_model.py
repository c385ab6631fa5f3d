"""Efficiencies, splits, predictions and ceilings: arithmetic that can be done by hand."""

import pytest

from jaxbench.analysis.ceiling import all_reduced_bytes, ceiling, least_traffic
from jaxbench.analysis.rate import Estimate
from jaxbench.analysis.scaling_model import efficiency, predict, ring_bytes, split
from jaxbench.schema import DeviceRecord
from tests.recorded import filled


def test_efficiency_by_hand():
    one, four = Estimate(100.0, 90.0, 125.0), Estimate(320.0, 300.0, 360.0)
    # 320 / (4 x 100); 300 / (4 x 125); 360 / (4 x 90)
    assert efficiency(4, four, one).span == pytest.approx((0.8, 0.6, 1.0))
    assert efficiency(4, four, None) == efficiency(4, None, one) == Estimate()


def test_prediction_by_hand():
    """A step of 10 ms, 100 MB over 25 GB/s: on 8 devices 2 x 7/8 x 4 ms = 7 ms of all-reduce."""
    how = {"step_s": 0.01, "batch_per_device": 32, "link_source": "stated"}
    found = predict(8, gradient_bytes=10**8, link_bytes_per_s=25e9, **how)
    assert found["all_reduce_s"] == pytest.approx(0.007)
    assert found["step_s_no_overlap"] == pytest.approx(0.017)
    assert found["images_per_s_no_overlap"] == pytest.approx(8 * 32 / 0.017)
    assert found["efficiency_no_overlap"] == pytest.approx(10 / 17)
    assert found["step_s_full_overlap"] == pytest.approx(0.01)
    assert found["efficiency_full_overlap"] == pytest.approx(1.0)
    # Four times the gradient: 28 ms of it cannot hide behind 10.
    found = predict(8, gradient_bytes=4 * 10**8, link_bytes_per_s=25e9, **how)
    assert found["efficiency_full_overlap"] == pytest.approx(10 / 28)
    assert ring_bytes(1024, 1024) == 2 * 1023


def test_splits_by_hand():
    """One device does 16 images in 10 ms, the other in 40."""

    def device(number, kind, step_s, low, middle, high):
        rates = {"images_per_s": middle, "images_per_s_low": low, "images_per_s_high": high}
        names = {"device_id": number, "device_kind": kind, "batch_size": 16}
        return filled(DeviceRecord, step_s=step_s, windows_s=[1.0] * 6, **names, **rates)

    fast = device(0, "A", 0.01, 1500.0, 1600.0, 1700.0)
    found = split([fast, device(1, "B", 0.04, 390.0, 400.0, 410.0)])
    assert found["slowest"] == {"device_id": 1, "device_kind": "B", "step_s": 0.04}
    assert found["slowest_over_fastest"] == pytest.approx(4) and found["differ"]
    assert found["even_split_images_per_s"] == pytest.approx(2 * 16 / 0.04)
    assert found["uneven_split_images_per_s"] == pytest.approx(2000)
    # Intervals that overlap.
    assert not split([fast, device(1, "B", 0.04, 390.0, 1590.0, 1700.0)])["differ"]


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
