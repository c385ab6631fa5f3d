"""Efficiencies, splits and predictions: arithmetic that can be done by hand."""

import pytest

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
