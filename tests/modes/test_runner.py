"""What all modes share: run.json, records, every way to end, the summary."""

import jax
import pytest

from jaxbench.clock import Clock
from jaxbench.config import Experiment
from jaxbench.errors import Diverged, RunFailed, Terminated
from jaxbench.modes.runner import RunContext, record_run
from jaxbench.parallel.mesh import DataMesh, create_mesh
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, Conv2dRecord, Summary
from tests.conftest import records, run_json, table
from tests.modes.mixed_devices import REFUSAL, FakeDevice
from tests.recorded import filled

COMPILED = filled(CompileRecord, function="step", lower_s=1.0, compile_s=2.0)
CONVOLVED = filled(Conv2dRecord, compute_s=0.5)


@pytest.fixture
def run(tmp_path):
    """Records a mode that writes two records and then does something."""

    def run(act=lambda: None, devices=None, **fields):
        def summarize(status, records):
            assert [type(record) for record in records] == [CompileRecord, Conv2dRecord]
            return Summary(status=status, **fields)

        mesh = DataMesh(tuple(devices or jax.local_devices()[:1]), "pmap")
        with record_run(
            RunContext(Experiment(name="x"), Clock(), Console(), mesh, []),
            "memory",
            str(tmp_path / "run"),
            summarize=summarize,
            document={"rounds": 7},
            csv_record=Conv2dRecord,
            telemetry_s=0.0,
        ) as recorder:
            recorder.write(COMPILED)
            recorder.write(CONVOLVED)
            act()
        return recorder

    return run


def test_a_mode_only_measures_and_sums_up(run, tmp_path):
    result = run(warnings=["beware"])
    assert result.records == [COMPILED, CONVOLVED]
    assert result.of_kind(CompileRecord) == [COMPILED]
    document = run_json(tmp_path / "run")
    assert (document["mode"], document["rounds"], document["experiment"]) == ("memory", 7, "x")
    assert document["config"]["seed"] == 0 and document["status"] == "done"
    summary = document["summary"]
    assert summary == result.summary == records(tmp_path / "run")[-1]
    assert summary["compile_s"] == 3.0 and summary["warnings"] == ["beware"]
    assert summary["phases_s"]["other"] == pytest.approx(summary["wall_s"], abs=0.05)
    assert [record["kind"] for record in records(tmp_path / "run")][:2] == ["compile", "conv2d"]
    [row] = table(tmp_path / "run" / "conv2d.csv")
    assert row["compute_s"] == "0.5" and row["speedup"] == ""


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (KeyboardInterrupt(), "interrupted", "interrupted (Ctrl-C)"),
        (Terminated(), "preempted", "terminated (SIGTERM)"),
        (Terminated("SIGHUP"), "preempted", "terminated (SIGHUP)"),
        (Diverged("nan"), "diverged", "nan"),
        (ValueError("RESOURCE_EXHAUSTED: 3 GiB"), "oom", "ValueError: RESOURCE_EXHAUSTED: 3 GiB"),
        (MemoryError(), "oom", "MemoryError: "),
        (ValueError("no"), "failed", "ValueError: no"),
    ],
)
def test_every_end_is_recorded_and_raised(run, tmp_path, error, status, reason):
    def act():
        raise error

    with pytest.raises(type(error)) as raised:
        run(act)
    assert raised.value is error
    document = run_json(tmp_path / "run")
    assert (document["status"], document["reason"]) == (status, reason)
    # What was measured until then is there, and summed up.
    assert document["summary"]["status"] == status and document["summary"]["compile_s"] == 3.0
    assert records(tmp_path / "run", "conv2d") and records(tmp_path / "run", "summary")


def test_clocks_that_disagree_are_told(run, monkeypatch):
    apart_s = {"run": 10.0, "date": 40.0, "uptime": 40.0}
    monkeypatch.setattr(Clock, "elapsed_s", lambda self: apart_s)
    clocks, told = run(warnings=["beware"]).summary["warnings"]
    assert clocks.startswith("the run's clock counted 10.0 s") and told == "beware"


def test_a_summary_that_cannot_be_made_hides_no_end(run, tmp_path):
    run(no_such_field=1)
    document = run_json(tmp_path / "run")
    assert document["status"] == "done"
    [warning] = document["summary"]["warnings"]
    assert warning.startswith("the summary could not be made: TypeError")


@pytest.mark.parametrize("kinds", [("RTX 2080 Ti", "GTX 1080"), ("GTX 1080", "GTX 1080")])
def test_a_mix_that_does_not_run_is_said_in_one_line(run, tmp_path, kinds):
    def refuse():
        raise jax.errors.JaxRuntimeError(REFUSAL)

    mixed = len(set(kinds)) > 1
    expected = RunFailed if mixed else jax.errors.JaxRuntimeError
    with pytest.raises(expected, match="cannot run it") as told:
        run(refuse, [FakeDevice(*named) for named in enumerate(kinds)])
    document = run_json(tmp_path / "run")
    assert document["status"] == "failed" and REFUSAL in document["reason"]
    if mixed:
        assert "RTX 2080 Ti with GTX 1080: the backend does not run" in str(told.value)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(("peak_bytes", "of_the_run"), [(500, None), (501, 501)])
def test_a_peak_of_what_the_process_did_before_is_not_the_runs(
    run, monkeypatch, peak_bytes, of_the_run
):
    gpu = FakeDevice(0, "GPU")
    gpu.memory_stats = lambda: {"peak_bytes_in_use": 500}
    with monkeypatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda **_: [gpu])
        mesh = create_mesh(Experiment())
        gpu.memory_stats = lambda: {"peak_bytes_in_use": peak_bytes}
        assert mesh.peak_memory_bytes == of_the_run
    monkeypatch.setattr(DataMesh, "peak_memory_bytes", of_the_run)
    assert run().summary.get("peak_memory_bytes") == of_the_run
