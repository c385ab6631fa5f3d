"""The conv2d experiment: what is computed, how it is told apart, and what is said of it."""

import itertools

import jax
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.clock import pause
from jaxbench.models.convolution import Problem, convolve, convolve_with_scipy, make_inputs
from jaxbench.modes import conv2d
from jaxbench.modes.conv2d import measure_conv2d
from jaxbench.records.writers.console import Console
from tests.conftest import config_of, records, refusal, run_json, table


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize(("channels", "filters"), [(1, 1), (3, 2)])
@pytest.mark.device
@pytest.mark.usefixtures("fp32_products")
def test_xla_and_scipy_compute_the_same(kernel, channels, filters):
    images, weights = make_inputs(Problem(3, 12, 10, channels, filters, kernel), seed=0)
    ours = np.asarray(convolve(weights, images, np.float32))
    assert ours.shape == (3, 12, 10, filters)
    np.testing.assert_allclose(ours, convolve_with_scipy(weights, images), rtol=1e-5)
    # And by hand, at one pixel: an even kernel reaches further to the top and left.
    padded = np.pad(images[1], ((kernel // 2, kernel), (kernel // 2, kernel), (0, 0)))
    window = padded[5 : 5 + kernel, 4 : 4 + kernel]
    by_hand = np.tensordot(window, weights, 3)
    np.testing.assert_allclose(ours[1, 5, 4], by_hand, rtol=1e-5)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    config = registry.load("conv2d:tiny")
    config.device_counts = (1, 2, 8)
    folder = tmp_path_factory.mktemp("conv2d") / "run"
    with open(folder.parent / "log", "w") as log:
        result = measure_conv2d(config, str(folder), Console(log))
    return result, folder, (folder.parent / "log").read_text()


def test_every_part_is_measured_on_every_number_of_devices(measured):
    result, folder, _ = measured
    trials = records(folder, "conv2d")
    assert trials == [record.to_json() for record in result.records]
    keys = [(trial["kernel"], trial["channels"], trial["devices"]) for trial in trials]
    # The devices, the kernel and the channels vary one at a time.
    assert keys == [
        *((3, 1, devices) for devices in (1, 2, 8)),
        *((k, c, devices) for k, c in ((4, 1), (3, 2)) for devices in (1, 8)),
    ]
    for trial in trials:
        for part in ("host_to_device_s", "compute_s", "call_s", "device_to_host_s"):
            assert trial[part] == pytest.approx(np.median(trial["samples"][part]))
            assert len(trial["samples"][part]) == 3 and min(trial["samples"][part]) > 0
        assert trial["first_use_s"] >= trial["lower_s"] + trial["compile_s"] > 0
        assert trial["steady_total_s"] == pytest.approx(
            trial["host_to_device_s"] + trial["compute_s"] + trial["device_to_host_s"]
        )
        assert trial["images_per_s"] == pytest.approx(24 / trial["compute_s"])
        macs = 24 * 16 * 16 * trial["kernel"] ** 2 * trial["channels"]
        assert trial["gflop_per_s"] == pytest.approx(2e-9 * macs / trial["compute_s"])
        assert trial["scipy_s"] > 0 and trial["max_relative_error"] < 1e-5
    assert [trial["speedup"] for trial in trials if trial["devices"] == 1] == [1, 1, 1]
    assert trials[2]["speedup"] == pytest.approx(trials[0]["compute_s"] / trials[2]["compute_s"])
    document = run_json(folder)
    assert document["status"] == "done" and document["mode"] == "conv2d"
    assert len(result.summary["findings"]) == 5
    assert document["problems"][0]["macs"] == 24 * 16 * 16 * 9
    rows = table(folder / "conv2d.csv")
    assert [float(row["compute_s"]) for row in rows] == [trial["compute_s"] for trial in trials]


@pytest.fixture
def measure(tmp_path):
    """Measures one problem, once a call; returns its record."""
    count = itertools.count()

    def run(**fields):
        fields = {"device_counts": (1,), "kernels": (3,), "channels": (1,)} | fields
        config, workdir = config_of("conv2d:tiny", **fields), tmp_path / f"run{next(count)}"
        [record] = measure_conv2d(config, str(workdir), Console()).records
        return record.to_json()

    return run


def test_a_wrong_convolution_is_seen(measure, monkeypatch):
    """Images that change places on their device are far off."""
    monkeypatch.setattr(conv2d, "convolve", lambda *args, **how: convolve(*args, **how)[::-1])
    assert measure(device_counts=(2,))["max_relative_error"] > 0.1


@pytest.mark.device
def test_a_slow_way_to_the_device_is_not_computing(measure, monkeypatch):
    genuine = conv2d.Conv2dTrial._place

    def slowly(self):
        pause(0.3)
        return genuine(self)

    monkeypatch.setattr(conv2d.Conv2dTrial, "_place", slowly)
    trial = measure()
    assert min(trial["host_to_device_s"], trial["first_use_s"]) >= 0.3
    for part in ("compute_s", "call_s", "device_to_host_s"):
        assert trial[part] < 0.15, part


@pytest.mark.device
def test_a_slow_computation_is_not_moving_data(measure, monkeypatch):
    def sleep(pixel):
        pause(0.1)
        return pixel

    def heavy(kernel, images, dtype):
        pixel = images[0, 0, 0, 0]
        woken = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), pixel.dtype), pixel)
        return convolve(kernel, images, dtype) + 0 * woken

    monkeypatch.setattr(conv2d, "convolve", heavy)
    trial = measure()
    # Each call of several in a row takes as long as one by itself: not dispatch only.
    assert trial["compute_s"] >= 0.1 and trial["call_s"] >= 0.1
    for part in ("host_to_device_s", "device_to_host_s"):
        assert trial[part] < 0.05, part


@pytest.mark.device
def test_scipy_and_the_devices_work_as_often_as_asked_for(measure, monkeypatch):
    counts = []

    def note(kernel, images):
        counts.append(len(images))
        return convolve_with_scipy(kernel, images)

    monkeypatch.setattr(conv2d, "convolve_with_scipy", note)
    trial = measure(scipy_rounds=2, images=48, calls=7)
    # 16 images are compared, all are timed.
    assert sorted(counts) == [16, 48, 48] and len(trial["samples"]["scipy_s"]) == 2
    assert trial["samples"]["calls"] == [7, 7, 7]
    counts.clear()
    monkeypatch.setattr(conv2d, "_WINDOW_S", 0.0)
    trial = measure(scipy_rounds=0, images=48, calls=7)
    assert trial["samples"]["calls"] == [1, 1, 1]
    assert counts == [16] and not {"scipy_s", "scipy_per_compute"} & set(trial)


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("bf16", 1e-3, 2e-2), ("fp16", 1e-5, 1e-3)]
)
@pytest.mark.device
def test_half_precisions_are_computed_in_them(measure, precision, least, most):
    assert least < measure(precision=precision)["max_relative_error"] < most


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image_shape": (10,)}, "must be (height, width)"),
        ({"kernels": (3, 17)}, "images are only 16x16"),
        ({"kernels": ()}, "at least one number"),
        ({"device_counts": (5,)}, "5 must divide images=24"),
        ({"device_counts": (4,), "num_devices": 2}, "device_counts=4: must lie within 1 and 2"),
        ({"device_counts": (24,)}, "device_counts=24: must lie within 1 and 8"),
        ({"scipy_rounds": 9}, "at most rounds=3"),
        ({"rounds": 1}, "rounds=1: must be at least 3"),
    ],
)
def test_convolutions_that_cannot_be_are_refused(tmp_path, fields, told):
    refusal(measure_conv2d, config_of("conv2d:tiny", **fields), str(tmp_path / "run"), told=told)
    assert not (tmp_path / "run").exists()
