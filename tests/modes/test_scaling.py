"""--mode=scaling: efficiencies, unequal devices, replicas that drift, predictions."""

import re
import sys

import jax
import numpy as np
import pytest

from jaxbench.errors import RunFailed
from jaxbench.modes import scaling
from jaxbench.modes.scaling import ScalingTrial, efficiency_warnings
from jaxbench.parallel.mesh import DataMesh, unequal_copies
from jaxbench.records.reader import load_run
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, ScalingRecord
from tests.conftest import MICRO, config_of, records, refusal, run_json, table
from tests.modes.mixed_devices import REFUSAL, FakeDevice
from tests.recorded import filled


@pytest.fixture
def measure(tmp_path):
    def run(console=None, fields=(), **how):
        config = config_of(MICRO, **{"batch_size": 64, "optimizer__name": "sgd"} | dict(fields))
        how = {"rounds": 6, "window_s": 0.02} | how
        return scaling.measure_scaling(config, str(tmp_path / "run"), console or Console(), **how)

    return run


def of_kind(result, kind):
    return [record.to_json() for record in result.records if record.kind == kind]


def test_weak_and_strong_from_one_device_to_all(measure, tmp_path):
    fields = {"num_devices": 3, "batch_size": 48}
    result = measure(fields=fields, device_counts=(1, 3), link_gb_per_s=100.0, window_s=0.01)
    run = load_run(str(tmp_path / "run"))
    assert [r.to_json() for r in run.of_kind(ScalingRecord)] == of_kind(result, "scaling")
    found = {(r["scaling"], r["num_devices"]): r for r in of_kind(result, "scaling")}
    assert {key: (r["batch_size"], r["batch_per_device"]) for key, r in found.items()} == {
        ("weak", 1): (16, 16),
        ("weak", 3): (48, 16),
        ("strong", 1): (48, 48),
        ("strong", 3): (48, 16),
    }
    for (kind, count), record in found.items():
        assert len(record["windows_s"]) == 6
        one = found[kind, 1]
        assert record["efficiency"] == record["images_per_s"] / (count * one["images_per_s"])
        assert record["efficiency_low"] <= record["efficiency"] <= record["efficiency_high"]
        # Steps and windows are the trial's own.
        steps = record["steps_per_window"]
        assert record["steps"] == 1 + record["warmup_steps"] + 6 * steps
        slowest = record["batch_size"] * steps / max(record["windows_s"])
        assert slowest <= record["images_per_s_low"]
        assert record.get("replicas_equal_after_steps") is (None if count == 1 else True)
        if count > 1:
            reduced = record["collectives"]["all-reduce"]
            assert reduced["bytes"] >= record["gradient_bytes"] == 4 * run.document.parameters
    # The two meet on all devices: measured once.
    assert found["weak", 3]["windows_s"] == found["strong", 3]["windows_s"]
    devices = of_kind(result, "device")
    assert [record["device_id"] for record in devices] == list(range(3))
    assert {record["device_kind"] for record in devices} == {jax.devices()[0].device_kind}
    assert devices[0]["windows_s"] == found["weak", 1]["windows_s"]
    for record in of_kind(result, "all_reduce"):
        count, size = record["num_devices"], found["weak", 1]["gradient_bytes"]
        assert record["bytes"] == size
        moved = 2 * (count - 1) / count * size
        assert record["bus_bytes_per_s"] == pytest.approx(moved / record["all_reduce_s"])
        assert record["share_of_weak_step"] == pytest.approx(
            record["all_reduce_s"] / found["weak", count]["step_s"]
        )
    assert [record["num_devices"] for record in of_kind(result, "all_reduce")] == [3]
    # A compile record for every trial: two weak, one strong, and two devices more, alone.
    assert len(run.of_kind(CompileRecord)) == 5
    summary = run.document.summary
    assert run.document.status == "done" and summary["invalid"] == []
    assert [p["num_devices"] for p in summary["predictions"]] == [8, 64, 256, 1024]
    for prediction in summary["predictions"]:
        assert prediction["prediction"] is True and "stated" in prediction["link_source"]
        assert prediction["one_device_step_s"] == devices[0]["step_s"]
    warnings = " ".join(summary["warnings"])
    assert "share" in warnings and "simulated" in warnings
    assert "windows are too few (6) to check that they are independent" in warnings
    rows = table(tmp_path / "run" / "scaling.csv")
    assert [float(row["efficiency"]) for row in rows] == [r["efficiency"] for r in found.values()]


def test_more_than_all_is_warned_of():
    def record(count, middle, low):
        how = {"efficiency": middle, "efficiency_low": low, "efficiency_high": middle}
        return filled(ScalingRecord, scaling="strong", num_devices=count, **how)

    scaled = [record(1, 1.0, 1.0), record(2, 1.05, 0.95), record(4, 1.05, 1.015)]
    [told] = efficiency_warnings([*scaled, record(1, None, None)])
    assert told.startswith("strong, 4 device(s): an efficiency of 105.0%, 101.5% at least")


def test_a_slow_device_is_found_and_told(measure, monkeypatch, capsys):
    """Device 1 does every step eight times over, as a slower kind would take longer."""
    genuine = ScalingTrial.run

    def run(self, calls):
        genuine(self, calls)
        if [device.id for device in self.devices] == [1] and calls:
            genuine(self, 7 * calls)

    monkeypatch.setattr(ScalingTrial, "run", run)
    result = measure(console=Console(sys.stdout), scaling="weak")
    found = result.summary["devices"]
    assert found["slowest"]["device_id"] == 1 and found["fastest"]["device_id"] == 0
    assert found["slowest_over_fastest"] > 2
    one, two = of_kind(result, "device")
    assert found["even_split_images_per_s"] == pytest.approx(2 * two["images_per_s"])
    assert found["uneven_split_images_per_s"] == one["images_per_s"] + two["images_per_s"]
    told = " ".join(capsys.readouterr().out.split())
    assert "device 1 (cpu) takes" in told and "as device 0 (cpu)" in told
    assert "PREDICTED" not in told and "simulated" in told


def test_replicas_that_drift_make_a_run_invalid(measure, tmp_path, monkeypatch):
    """Gradients that nobody averages: each device goes its own way, and pmap does not notice."""
    monkeypatch.setattr(jax.lax, "pmean", lambda tree, axis: tree)
    result = measure(scaling="weak")
    weak = next(r for r in of_kind(result, "scaling") if r["num_devices"] == 2)
    assert weak["replicas_equal_after_steps"] is False
    assert any(name.startswith("params/") for name in weak["unequal"])
    document = run_json(tmp_path / "run")
    assert document["status"] == "invalid"
    assert "weak, 2 device(s): after" in document["reason"]
    assert "the replicas differ in" in document["reason"]


def test_one_bit_in_one_copy_is_seen():
    mesh = DataMesh(tuple(jax.local_devices()[:3]), "pmap")
    good = mesh.replicate(np.array([1.0, np.nan, -0.0], np.float32))
    # The same to ==, and not the same: a zero of the other sign.
    other = np.array([1.0, np.nan, 0.0], np.float32)
    copies = [shard.data for shard in good.addressable_shards[:2]]
    copies.append(jax.device_put(other, mesh.devices[2]))
    bad = jax.make_array_from_single_device_arrays(good.shape, good.sharding, copies)
    assert unequal_copies({"a": good, "b": {"c": bad}}) == ["b/c"]
    assert unequal_copies({"a": good, "step": mesh.replicate(np.int32(3))}) == []


def test_without_one_device_there_is_no_strong_efficiency(measure, tmp_path):
    result = measure(device_counts=(2,))
    found = {r["scaling"]: r for r in of_kind(result, "scaling")}
    assert "efficiency" not in found["strong"] and found["strong"]["images_per_s"] > 0
    # Weak has a base all the same: the first device, timed alone on the same share.
    assert found["weak"]["efficiency"] == pytest.approx(
        found["weak"]["images_per_s"] / (2 * of_kind(result, "device")[0]["images_per_s"])
    )


def test_what_does_not_fit_is_recorded_and_the_others_go_on(measure, tmp_path, monkeypatch):
    genuine = ScalingTrial.start

    def start(self, initial):
        if self.setup.config.batch_size == 64 * len(self.devices):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory, 3 GiB")
        return genuine(self, initial)

    monkeypatch.setattr(ScalingTrial, "start", start)
    result = measure(scaling="strong")
    lost, two = of_kind(result, "scaling")
    assert (lost["num_devices"], lost["status"], "images_per_s" in lost) == (1, "oom", False)
    assert "3 GiB" in lost["reason"]
    assert two["images_per_s"] > 0 and "efficiency" not in two
    assert run_json(tmp_path / "run")["status"] == "done"


class Pressing(Console):
    """Presses Ctrl-C after this many rounds."""

    def __init__(self, at):
        super().__init__()
        self._at = at

    def progress(self, title, done, total, status):
        if title == "measuring" and done == self._at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [1, 3])
def test_ctrl_c_keeps_what_was_measured(measure, tmp_path, rounds):
    """One window is no rate."""
    with pytest.raises(KeyboardInterrupt):
        measure(console=Pressing(at=rounds), scaling="weak")
    document = run_json(tmp_path / "run")
    assert document["status"] == "interrupted" and "Ctrl-C" in document["reason"]
    kept = records(tmp_path / "run", "scaling")
    assert [len(record["windows_s"]) for record in kept] == ([3, 3] if rounds == 3 else [])
    assert bool(records(tmp_path / "run", "device")) == bool(kept)
    if kept:
        assert not any("replicas_equal_after_steps" in record for record in kept)
        assert document["summary"]["efficiencies"][1]["efficiency"] == kept[1]["efficiency"]


def test_of_a_mix_each_device_is_still_measured_alone(measure, tmp_path, monkeypatch):
    genuine, known = ScalingTrial.run, scaling.mixed_devices

    def run(self, calls):
        if len(self.devices) > 1:
            raise jax.errors.JaxRuntimeError(REFUSAL)
        genuine(self, calls)

    def kinds(devices, error):
        return known([FakeDevice(d.id, f"kind {d.id}") for d in devices], error)

    monkeypatch.setattr(ScalingTrial, "run", run)
    monkeypatch.setattr(scaling, "mixed_devices", kinds)
    with pytest.raises(RunFailed, match="kind 0 with kind 1: the backend does not run"):
        measure(scaling="weak")
    document = run_json(tmp_path / "run")
    assert document["status"] == "failed"
    assert document["summary"]["devices"]["even_split_images_per_s"] > 0
    assert len(records(tmp_path / "run", "device")) == 2
    rows = records(tmp_path / "run", "scaling")
    assert [row["status"] for row in rows] == ["done", "failed"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"fields": {"replicas": "independent"}}, "replicas='independent'"),
        ({"device_counts": (1, 3)}, "--device_counts=1,3: must lie within 1 and 2"),
        ({"device_counts": (0,)}, "--device_counts=0: must lie within 1 and 2"),
        (
            {"fields": {"num_devices": 4}, "device_counts": (1, 3, 4)},
            "batch_size=64 does not divide over 3 devices; the nearest that do: 63 and 66",
        ),
    ],
)
def test_a_scaling_that_cannot_be_measured_is_refused(measure, tmp_path, how, told):
    refusal(measure, **how, told=told)
    assert not (tmp_path / "run").exists()


def test_the_command_scaling_and_its_flags(run_cli, refused):
    flags = ("--device_counts=1,2", "--link_gb_per_s=50", "--rounds=6", "--window_s=0.02")
    micro = (f"--experiment={MICRO}", "--experiment.batch_size=64")
    done = run_cli(*micro, "--mode=scaling", "--scaling=weak", *flags, "--workdir=run")
    assert done.returncode == 0, done.stderr
    for words in ("equal after", "PREDICTED, weak,    8 devices", "50.00 GB/s (stated"):
        assert words in done.stdout, words
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"^ *weak +2 +[\d,.]+ ", done.stdout, re.MULTILINE)
    told = "--device_counts=1,two: must be whole numbers"
    refused(*micro, "--mode=scaling", "--device_counts=1,two", told=told)
