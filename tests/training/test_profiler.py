"""--profile=START:STOP: a trace that can be read, of steps that are in no figure of time."""

import gzip
import json
import math
import os
import signal
import warnings

import jax
import pytest

from jaxbench.training.profiler import parse_steps
from jaxbench.training.run import MetricsQueue
from tests.conftest import LOOP, MICRO, records, refusal, run_json, table


def traces(folder):
    """The sessions under a run's profile/, as TensorBoard's plugin looks for them."""
    return sorted((folder / "profile" / "plugins" / "profile").iterdir())


def traced_steps(session):
    """The numbers of the steps in a trace, as JAX's own reader finds them."""
    [path] = session.glob("*.xplane.pb")
    with warnings.catch_warnings():
        # JAX 0.12's types lack a module's name; as an error in C that ends the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        return [
            dict(event.stats)["step_num"]
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            for line in plane.lines
            for event in line.events
            if event.name == "train"
        ]


SLEEP_S = 0.02
# Batches that may have been made ready before an epoch's timed steps.
AHEAD = 5


def check_times(folder, profiled):
    """Phases add up, and an epoch's time is within that of its own phases: none is the profile's.

    `profiled` holds the number of profiled steps of each epoch.
    """
    summary = run_json(folder)["summary"]
    phases_s, epochs = summary["phases_s"], records(folder, "epoch")
    assert sum(phases_s.values()) == pytest.approx(summary["wall_s"], abs=0.05)
    assert phases_s["profile"] > 0
    own_s = sum(phases_s[name] for name in ("train", "data_wait", "eval", "records"))
    assert sum(epoch["epoch_time_s"] for epoch in epochs) <= own_s
    assert [epoch["profiled_steps"] for epoch in epochs] == profiled
    for epoch in epochs:
        # The stream's pauses are in it; an evaluation's batches are not made ready before.
        timed_steps = 11 - epoch["profiled_steps"]
        assert epoch["train_time_s"] >= SLEEP_S * (timed_steps - AHEAD)
        assert epoch["eval_time_s"] >= SLEEP_S * math.ceil(360 / 128)
        assert epoch["images"] == timed_steps * 128
        assert epoch["complete"] == (epoch["profiled_steps"] == 0)
    timed_s = sum(epoch["train_time_s"] for epoch in epochs)
    images = sum(epoch["images"] for epoch in epochs)
    assert summary["images_per_s_whole_run"] == pytest.approx(images / timed_s)


@pytest.fixture
def slow_host(slow_feed):
    """A stream of 50 batches a second."""
    return slow_feed(SLEEP_S)


def test_steps_of_two_epochs_are_traced_and_left_out_of_the_figures(
    run_cli, train, tmp_path, slow_host
):
    """And the run trains as one without a trace."""
    fields = {"data.feed": "stream", "data.num_threads": 1, "data.prefetch_batches": 1}
    flags = [
        f"--experiment.{k}={v}" for k, v in (fields | {"epochs": 3, "step_log": "true"}).items()
    ]
    done = run_cli(f"--experiment={MICRO}", "--profile=10:14", *flags, "--workdir=run")
    assert done.returncode == 0, done.stderr
    assert "profiling steps 10 to 11" in done.stdout and "12 to 13 ..." in done.stdout
    folder = tmp_path / "run"

    # Evaluating does not wait for the profiler, nor is it traced: a trace for each epoch.
    first, second = traces(folder)
    assert (first.name, second.name) == ("steps-10-to-11", "steps-12-to-13")
    assert traced_steps(first) == [10, 11] and traced_steps(second) == [12, 13]
    [path] = second.glob("*.xplane.pb")
    text = path.read_bytes()
    for scope in (
        *("/data/", "/jvp(forward)/Micro/", "/transpose(jvp(forward))/Micro/", "/jvp(loss)/"),
        *("/jvp(metrics)/", "/gradient_reduction/", "/optimizer/"),
    ):
        assert scope.encode() in text
    with gzip.open(second / "perfetto_trace.json.gz") as file:
        trace = json.load(file)
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"train", "data_wait"} <= names
    size = sum(path.stat().st_size for path in (folder / "profile").rglob("*") if path.is_file())
    summary = run_json(folder)["summary"]
    assert summary["profile"] == {
        "first_step": 10,
        "last_step": 13,
        "folder": "profile",
        "bytes": size,
    }

    check_times(folder, [2, 2, 0])
    assert "first_epoch_s" not in summary and summary["first_step_s"] > 0
    epochs = records(folder, "epoch")
    assert summary["median_epoch_s"] == epochs[2]["epoch_time_s"]
    assert [row["profiled_steps"] for row in table(folder / "epochs.csv")] == ["2", "2", "0"]
    steps = records(folder, "step")
    assert [step["step"] for step in steps] == [9, 11, 13, 20, 22, 30, 33]
    assert [step["step"] for step in steps if step.get("profiled")] == [11, 13]
    for step in steps:
        assert ("step_time_s" in step) != step.get("profiled", False)
    spent_s = 7 * steps[3]["step_time_s"] + 2 * steps[4]["step_time_s"]
    assert SLEEP_S * (9 - AHEAD) <= spent_s <= epochs[1]["train_time_s"]
    plain = records(train(MICRO, epochs=3).run_dir.path, "epoch")
    for epoch, other in zip(epochs, plain, strict=True):
        assert epoch["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
        assert epoch["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-5)
        assert epoch["learning_rate"] == other["learning_rate"]


@pytest.mark.device
def test_a_whole_epoch_can_be_traced(train, slow_host):
    result = train(MICRO, profile="1:12", **slow_host)
    check_times(result.run_dir.path, [11, 0])
    first = records(result.run_dir.path, "epoch")[0]
    assert "images_per_s" not in first and first["train_loss"] > 0
    assert "first_step_s" not in result.summary and result.summary["images_per_s"] > 0


@pytest.mark.device
def test_an_error_in_the_middle_stops_the_trace(tmp_path, train, monkeypatch):
    def fall_over(run, state, step):
        if step == 4:
            raise RuntimeError("the second step fell over")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="fell over"):
        patch.setattr(LOOP, "save_before_step", fall_over)
        train(MICRO, profile="3:5")
    document = run_json(tmp_path / "run1")
    assert document["status"] == "failed" and "profile" not in document["summary"]
    assert document["summary"]["steps"] in (2, 3)  # the last one's sums may not have arrived
    # Only one trace can be taken at a time: the next one can.
    assert train(MICRO, profile="3:5").summary["profile"]["last_step"] == 4


@pytest.mark.parametrize("where", ["start_trace", "push", "stop_trace"])
def test_ctrl_c_in_the_middle_of_a_trace(run_cli, tmp_path, monkeypatch, where):
    """Sent for real, while JAX's profiler starts, after a step and while it stops: it is ended."""
    holder = MetricsQueue if where == "push" else jax.profiler
    genuine, sent = getattr(holder, where), []

    def interrupted(*args, **how):
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return genuine(*args, **how)

    monkeypatch.setattr(holder, where, interrupted)
    try:
        done = run_cli(f"--experiment={MICRO}", "--profile=3:6", "--workdir=run")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert done.returncode == 130 and "Traceback" not in done.stdout + done.stderr
    document = run_json(tmp_path / "run")
    assert (document["status"], document["reason"]) == ("interrupted", "interrupted (Ctrl-C)")
    # The steps' queue is used before the trace, too: there the run ends before it. A trace that has
    # begun ends after the step under way.
    last_step = {"start_trace": 3, "stop_trace": 5}.get(where)
    assert document["summary"].get("profile", {}).get("last_step") == last_step


@pytest.mark.parametrize("steps", ["", "7", "1:2:3", "-1:3", "0:3", "5:5", "1:32"])
def test_steps_of_a_profile_that_cannot_be_are_refused(steps):
    too_many = "at most 30 steps from step 1 on"
    refusal(parse_steps, steps, told=too_many if steps == "1:32" else "must be START:STOP")
    assert list(parse_steps("3:6")) == [3, 4, 5] and len(parse_steps("1:31")) == 30
