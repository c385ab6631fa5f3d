"""What a card takes from its runs, and its copy to publish."""

import io
import math
import time
import types

import jax
import pytest

from jaxbench.analysis.rate import Estimate, rate_of
from jaxbench.cards.card import measured
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.figures import PRESETS, PresetNetwork
from jaxbench.cards.from_runs import network_figures, soak_figures, step_time_figures
from jaxbench.cards.submission import submit
from jaxbench.hardware import peaks
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.telemetry import summary
from jaxbench.hardware.telemetry.nvml import NvmlReader
from jaxbench.hardware.telemetry.readers import HostReader
from jaxbench.modes import runner
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import ceilings, networks, run
from jaxbench.qualification.plan import Plan
from jaxbench.records.reader import load_run
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, ThroughputRecord
from jaxbench.xla.compile_cache import without_cache
from tests import fake_nvml
from tests.cards import made
from tests.conftest import refusal
from tests.qualification.conftest import PRESET
from tests.recorded import filled

SW_THERMAL_SLOWDOWN = 0x20


@pytest.fixture(scope="module")
def qualified(tmp_path_factory):
    """The folder of a card of two simulated devices, with a board's sensors and a peak."""
    board = fake_nvml.Board(
        energy_mj=lambda: int(300_000 * time.monotonic()), reasons=SW_THERMAL_SLOWDOWN
    )
    peak = find_peak("NVIDIA A100-SXM4-40GB", "fp32", "highest")
    plan = Plan({"ceilings": 1.0, "networks": 600.0, "soak": 1.0}, {}, soak_is_fixed=True)
    pace = {"rounds": 8, "window_s": 0.05, "telemetry_s": 0.1}
    # A card has the network by its name, this preset by its file.
    by_name = PRESET._replace(networks=(PresetNetwork("micro", 16, 3840),))

    def measure_ceilings(session, time_s):
        session.figures.append(
            measured("matmul_fp32_tflops", Estimate(0.01, 0.009, 0.011), device=0)
        )

    out = tmp_path_factory.mktemp("qualified") / "card"
    with pytest.MonkeyPatch.context() as patch, without_cache():
        fake_nvml.install(patch, fake_nvml.Nvml([board]), fake_nvml.Cuda([0x0F]))
        readers = lambda devices: [HostReader(), NvmlReader({"gpu0": 0})]  # noqa: E731
        patch.setattr(runner, "create_readers", readers)
        patch.setattr(peaks, "find_peak", lambda *_: peak)
        # However few and late the samples are on a busy machine.
        patch.setattr(summary, "_LONGEST_GAPS", math.inf)
        patch.setattr(summary, "_LEAST_INTERVALS", 1)
        patch.setattr(ceilings, "measure", measure_ceilings)
        patch.setattr(networks, "pace_of", lambda _: pace)
        patch.setattr(run, "CPU", PRESET)
        patch.setitem(PRESETS, PRESET.name, by_name)
        patch.setattr(run, "make_plan", lambda *_, **__: plan)
        mesh = DataMesh(tuple(jax.devices()[:2]), "shard_map")
        patch.setattr(run, "create_mesh", lambda _: mesh)
        run.qualify(1.0, str(out), Console(io.StringIO()))
        yield out


def test_a_card_has_the_metrics_of_its_runs_and_is_accepted(qualified):
    assert check_card(qualified) == []
    card = read_card(qualified)
    names = {figure.name for figure in card.figures()}
    assert {"images_per_s", "flops_per_image", "mfu", "measured_peak_share"} <= names
    assert {"energy_j_per_image", "energy_longest_gap_s", "energy_covered_share"} <= names
    assert {"step_per_image_s", "step_fixed_s", "compile_cold_s", "drift_percent"} <= names
    assert {"temperature_max_c", "power_mean_w", "throttled_share"} <= names
    rates = [*card.named("images_per_s")]
    for one in rates:
        rate = rate_of(load_run(str(qualified / one.run)))
        assert (one.value, *one.ends) == pytest.approx(rate.span, rel=1e-6), one
    assert len(rates) == 2


@pytest.mark.parametrize("host", ["gpu", "runs", "1", "", "w\u00f6rk", "Lab.example.org"])
def test_any_name_of_a_host_is_hidden(host, tmp_path):
    """Whatever else has that name; so are the hosts that variables list."""
    text = f"at {host} and {host.lower()}.a.b: no"

    def name_hosts(content):
        content["environment"] |= {"hostname": host, "variables": {"TPU_WORKER_HOSTNAMES": "a,b"}}
        content["parts"][0]["checks"][0]["detail"] = text

    path = made.alter(made.write(tmp_path / "a"), name_hosts)
    assert submit(str(path), str(tmp_path / "out")) == str(tmp_path / "out" / CARD)
    card = read_card(tmp_path / "out")
    assert card.environment["hostname"] == "host" and card.environment["backend"] == "gpu"
    assert card.environment["variables"] == {"TPU_WORKER_HOSTNAMES": "host"}
    assert card.parts[0].checks[0].detail == ("at host and host: no" if host else text)


def test_what_is_not_submitted(tmp_path):
    path = made.write(tmp_path / "a")
    refusal(submit, str(path), str(tmp_path / "a"), told="nothing is overwritten")
    made.alter(path, lambda c: c.update(created_at="yesterday"))
    told = "is refused by `jaxbench qualify check`: created_at"
    refusal(submit, str(path), str(tmp_path / "out"), told=told)
    assert not (tmp_path / "out").exists()


def of_kinds(*records):
    """The records of a run."""
    of_kind = lambda kind: [one for one in records if isinstance(one, kind)]  # noqa: E731
    return types.SimpleNamespace(of_kind=of_kind)


@pytest.mark.parametrize("long_enough", [True, False])
def test_energy_is_told_only_with_enough_samples(long_enough):
    fields = {"stage": "train_step", "flops_per_image": 10, "num_devices": 2, "peak": None}
    fields |= {"images_per_step": 5, "steps_per_window": 4, "windows_s": [2.0, 2.0, 2.0, 2.5] * 2}
    compiled = filled(CompileRecord, function="train_step", cold_compile_s=2.0, warm_compile_s=None)
    telemetry = {
        "joules_per_image": 0.5,
        "energy_longest_gap_s": 0.2,
        "energy_covered": 1.0,
        "energy_window_long_enough": long_enough,
    }
    records = of_kinds(filled(ThroughputRecord, **fields), compiled)
    found = network_figures(records, telemetry, "a", "runs/x", (), "cpu")
    figures = {one.name: one.value for one in found}
    expected = {"images_per_s": 10.0, "flops_per_image": 10, "compile_cold_s": 2.0}
    energy = {"energy_j_per_image": 0.5, "energy_longest_gap_s": 0.2, "energy_covered_share": 1.0}
    assert figures == expected | (energy if long_enough else {})
    assert found[0].ends == (8.0, 10.0)


def test_the_time_of_a_step_by_two_batches():
    """10 ms and 1 ms an image, each rate to 1 % either way."""
    labels = {"network": "a", "precision": "bf16"}
    rates = {batch: batch / (0.01 + 0.001 * batch) for batch in (32, 16)}
    figures = [
        measured("images_per_s", Estimate(rate, rate / 1.01, rate * 1.01), batch=batch, **labels)
        for batch, rate in rates.items()
    ]
    image, fixed = step_time_figures(figures)
    assert (image.name, fixed.name) == ("step_per_image_s", "step_fixed_s")
    assert (image.value, fixed.value) == pytest.approx((0.001, 0.01))
    # The slower of one batch and the faster of the other.
    t16, t32 = 0.026, 0.042
    assert image.ends == pytest.approx(
        ((t32 / 1.01 - t16 * 1.01) / 16, (t32 * 1.01 - t16 / 1.01) / 16)
    )
    assert fixed.ends == pytest.approx((2 * t16 / 1.01 - t32 * 1.01, 2 * t16 * 1.01 - t32 / 1.01))
    assert [*step_time_figures(figures[:1])] == []


def drift_of(windows_s):
    [figure] = soak_figures(of_kinds(filled(ThroughputRecord, windows_s=windows_s)), None)
    return figure


def test_drift_is_that_of_the_last_third():
    slower = [1.0, 1.01] * 5 + [1.05] * 10 + [1.1, 1.11] * 5
    figure = drift_of(slower)
    assert figure.value == pytest.approx(100 * (1.005 / 1.105 - 1), abs=1e-3)
    assert figure.value_low < figure.value < figure.value_high < -8
    assert drift_of([1.0] * 18).ends == (0, 0)


def test_sensors_and_throttling_by_device():
    board = {"kind": "gpu", "temperature_c_max": 71.0, "power_w_mean": 300.0}
    devices = {
        "host": {"kind": "host", "samples": 3},
        "gpu0": board | {"throttle_reasons": {"sw_thermal_slowdown": 0.25, "gpu_idle": 0.5}},
        "gpu12": board,
    }
    records = of_kinds(filled(ThroughputRecord, windows_s=[1.0] * 18))
    drift, *figures = soak_figures(records, {"devices": devices})
    assert (drift.name, drift.run) == ("drift_percent", "runs/soak")
    found = {(one.name, one.device): one.value for one in figures if not one.labels}
    assert found["temperature_max_c", 12] == 71 and found["power_mean_w", 0] == 300
    shares = {one.labels["reason"]: one.value for one in figures if one.labels}
    assert shares["sw_thermal_slowdown"] == 0.25 and shares["hw_slowdown"] == 0
    assert "gpu_idle" not in shares
    assert {one.device for one in figures if one.labels} == {0}  # the other board does not tell
