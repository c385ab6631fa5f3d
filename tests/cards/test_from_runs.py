"""A card follows from its runs: one that was altered is refused, and so are altered runs."""

import io
import json
import math
import shutil
import time
import types

import jax
import pytest

from jaxbench.analysis.rate import Estimate
from jaxbench.cards import submission
from jaxbench.cards.card import measured
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.figures import PRESETS, PresetNetwork
from jaxbench.cards.from_runs import network_figures, soak_figures, step_time_figures
from jaxbench.cards.submission import submit
from jaxbench.cards.verdict import load_thresholds
from jaxbench.hardware import peaks
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.telemetry import summary
from jaxbench.hardware.telemetry.nvml import NvmlReader
from jaxbench.hardware.telemetry.readers import HostReader
from jaxbench.modes import runner
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import ceilings, networks, run
from jaxbench.qualification.plan import Plan
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, ThroughputRecord
from jaxbench.xla.compile_cache import without_cache
from tests import fake_nvml
from tests.cards import made
from tests.conftest import refusal
from tests.qualification.conftest import PRESET
from tests.recorded import filled

RUN, HALF, SOAK = "runs/micro-fp32-32", "runs/micro-fp32-16", "runs/soak"
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
        run.qualify(1.0, str(out), load_thresholds(), Console(io.StringIO()))
        yield out


@pytest.fixture
def card(qualified, tmp_path):
    return shutil.copytree(qualified, tmp_path / "card")


def figures_of(content, name):
    figures = (one for part in content["parts"] for one in part.get("figures", ()))
    return [one for one in figures if one["name"] == name]


def test_a_card_is_accepted_with_its_runs_and_without(card, tmp_path):
    assert check_card(card) == []
    [note] = read_card(card).part("networks").checks
    assert "CPU devices" in note.detail
    shutil.copy(card / CARD, tmp_path / "alone.json")
    assert check_card(tmp_path / "alone.json") == []


BY_BATCH = ("images_per_s", "flops_per_image", "mfu", "measured_peak_share", "compile_cold_s")
BY_BATCH += ("energy_j_per_image", "energy_longest_gap_s", "energy_covered_share")
ONCE = ("step_per_image_s", "step_fixed_s", "drift_percent", "temperature_max_c", "power_mean_w")
ALTERED = [(name, at, "value") for name in BY_BATCH for at in (0, 1)]
ALTERED += [(name, 0, "value") for name in ONCE]
ALTERED += [("throttled_share", at, "value") for at in range(5)]
INTERVALS = ("images_per_s", *ONCE[:3])
ALTERED += [
    (name, 0, end) for name in INTERVALS for end in ("value_low", "value_high", "no interval")
]


@pytest.mark.parametrize(("name", "at", "field"), ALTERED)
def test_each_altered_metric_is_refused(card, name, at, field):
    def change(content):
        one = figures_of(content, name)[at]
        if field == "no interval":
            del one["value_low"], one["value_high"]
        else:
            one[field] = one[field] * (1 - 1e-6) or 1e-6

    made.alter(card / CARD, change)
    problems = check_card(card)
    assert any(line.startswith(name) and "does not follow" in line for line in problems), problems


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("images_per_s", {"run": SOAK}),
        ("mfu", {"run": HALF}),
        ("compile_cold_s", {"labels": {"network": "micro", "precision": "bf16", "batch": 32}}),
        ("temperature_max_c", {"device": 1}),
        ("matmul_fp32_tflops", {"value": 0.0101}),
    ],
)
def test_a_metric_of_another_run_network_or_device_is_refused(card, name, fields):
    made.alter(card / CARD, lambda content: figures_of(content, name)[0].update(fields))
    assert any("does not follow from runs/" in line for line in check_card(card))


def lines_changed(change):
    def changed(text):
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            change(line)
        return "".join(json.dumps(line) + "\n" for line in lines)

    return changed


def faster(line):
    if "windows_s" in line:
        line["windows_s"] = [0.99 * window_s for window_s in line["windows_s"]]


def slower_at_the_end(line):
    if "windows_s" in line:
        line["windows_s"][-6:] = [2 * window_s for window_s in line["windows_s"][-6:]]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (f"{RUN}/metrics.jsonl", lines_changed(faster)),
        (f"{RUN}/metrics.jsonl", lines_changed(lambda line: line.pop("cold_compile_s", None))),
        (f"{RUN}/metrics.jsonl", lambda text: ""),
        (f"{RUN}/metrics.jsonl", lambda text: "{}\n"),
        (f"{RUN}/run.json", lambda text: "[]"),
        (f"{RUN}/run.json", lambda text: text.replace('"micro"', '"macro"')),
        (f"{RUN}/telemetry.csv", lambda text: text.replace(",gpu0,", ",gpu1,", 3)),
        (f"{SOAK}/metrics.jsonl", lines_changed(slower_at_the_end)),
        (f"{SOAK}/telemetry.csv", lambda text: text.replace(",61,", ",60,")),
        (f"{SOAK}/run.json", lambda text: text.replace('"windows": [', '"windows": [1,')),
    ],
)
def test_altered_records_of_a_run_are_refused(card, name, change):
    before = (card / name).read_text()
    (card / name).write_text(change(before))
    assert (card / name).read_text() != before
    problems = check_card(card)
    assert problems and all("\n" not in line for line in problems)


def files_of(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_submission_has_what_the_card_follows_from(card, tmp_path):
    out = tmp_path / "out"
    line = submit(str(card), str(out))
    assert line.startswith(f"{out}/card.json: ") and line.endswith(" the records of 3 run(s)")
    assert check_card(out) == []
    names = ("run.json", "metrics.jsonl", "telemetry.csv")
    records = {out / run / name for run in (RUN, HALF, SOAK) for name in names}
    assert files_of(out) == {out / CARD} | records
    texts = [path.read_text() for path in records]
    host = read_card(card).environment["hostname"]
    assert not [text for text in texts if str(tmp_path) in text or host in text or ",host," in text]
    path = out / RUN / "metrics.jsonl"
    path.write_text(lines_changed(faster)(path.read_text()))
    assert any(one.startswith("images_per_s, network micro") for one in check_card(out))


def test_what_has_no_room_in_200_kb_is_left_out_and_named(card, tmp_path, monkeypatch):
    samples = card / SOAK / "telemetry.csv"
    lines = samples.read_text().splitlines(keepends=True)
    last = next(line for line in reversed(lines) if ",gpu0," in line)
    samples.write_text("".join([*lines, *[last] * 5000]))
    out = tmp_path / "out"
    assert submit(str(card), str(out)).endswith("; no room for runs/soak/telemetry.csv")
    assert check_card(out) == [] and not (out / SOAK / "telemetry.csv").exists()
    assert sum(path.stat().st_size for path in files_of(out)) < submission.MOST_BYTES
    # Without room for anything it is the card.
    monkeypatch.setattr(submission, "MOST_BYTES", 1)
    assert f"{RUN}/run.json" in submit(str(card), str(tmp_path / "alone"))
    assert [*(tmp_path / "alone").iterdir()] == [tmp_path / "alone" / CARD]


@pytest.mark.parametrize("host", ["gpu", "runs", "1", "", "w\u00f6rk", "Lab.example.org"])
def test_any_name_of_a_host_is_hidden(host, tmp_path):
    """Whatever else has that name; so are the hosts that variables list."""
    text = f"at {host} and {host.lower()}.a.b: no"

    def name_hosts(content):
        content["environment"] |= {"hostname": host, "variables": {"TPU_WORKER_HOSTNAMES": "a,b"}}
        content["parts"][0]["checks"][0]["detail"] = text

    path = made.alter(made.write(tmp_path / "a"), name_hosts)
    submit(str(path), str(tmp_path / "out"))
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
    rates = {batch: batch / (0.01 + 0.001 * batch) for batch in (64, 16, 32)}
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
