"""Runs that are stopped from outside leave their records; a network learns real images."""

import csv
import os
import signal
import subprocess

import pytest

from jaxbench.cli import registry
from jaxbench.clock import wait_until
from jaxbench.modes.train import run_training
from tests.conftest import MICRO, records, run_json, step_losses
from tests.integration.conftest import program


def start_long_run(tmp_path):
    """Starts the entry point on a run of many epochs; returns once it has trained some."""
    process = subprocess.Popen(
        program(f"--experiment={MICRO}", "--experiment.epochs=5000", "--workdir=run"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    table = tmp_path / "run" / "epochs.csv"

    def trained():
        assert process.poll() is None, process.stdout.read()
        return table.exists() and len(table.read_text().splitlines()) >= 3

    wait_until(trained)
    return process


@pytest.mark.parametrize(
    ("sent", "code", "status", "reason"),
    [
        (signal.SIGINT, 130, "interrupted", "interrupted (Ctrl-C)"),
        # SIGTERM to a process is in test_signals.py too.
        *(
            pytest.param(
                *(number, 143, "preempted", f"terminated ({number.name})"), marks=pytest.mark.slow
            )
            for number in (signal.SIGTERM, signal.SIGHUP)
        ),
    ],
)
def test_a_run_that_is_stopped_says_so(tmp_path, sent, code, status, reason):
    if signal.getsignal(sent) == signal.SIG_IGN:
        pytest.skip(f"{sent.name} is ignored here, and by what is started: nohup")
    process = start_long_run(tmp_path)
    process.send_signal(sent)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == code, output
    assert "Traceback" not in output
    document = run_json(tmp_path / "run")
    assert (document["status"], document["reason"]) == (status, reason)
    assert document["summary"]["epochs_done"] >= 2
    # The threads were ended first: what is summed up is what the file holds, whole rows.
    with open(tmp_path / "run" / "telemetry.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    samples = document["summary"]["telemetry"]["devices"]["host"]["samples"]
    assert len(rows) == samples >= 2 and None not in rows[-1].values()
    assert records(tmp_path / "run")[-1]["kind"] == "summary"


@pytest.mark.slow
def test_real_mnist_reaches_98_5_percent_in_4_epochs(tmp_path, test_data):
    config = registry.load("mnist_cnn")
    config.data.path = str(test_data / "tfds")
    config.max_steps = 4 * 117
    config.num_devices = 1
    result = run_training(config, str(tmp_path / "run"))
    assert result.summary["eval_count"] == 10_000
    assert result.summary["eval_top1"] >= 0.985


@pytest.mark.slow
def test_real_nuclei_are_found(run_main, tmp_path, test_data):
    """334 real images at an eighth of the width; three epochs of 33 steps on the CPU."""
    done = run_main(
        "--experiment=unet256",
        "--experiment.data.source=npz",
        f"--experiment.data.path={test_data / 'dsb2018_256.npz'}",
        "--experiment.num_devices=1",
        "--experiment.model.width=8",
        "--experiment.optimizer.learning_rate=0.002",
        "--experiment.epochs=3",
        "--workdir=run",
        env={"XLA_FLAGS": ""},
        timeout_s=1200,
    )
    assert done.returncode == 0, done.stderr
    summary = run_json(tmp_path / "run")["summary"]
    assert summary["eval_count"] == 66
    assert summary["eval_dice"] >= 0.80


@pytest.mark.slow
def test_quickstart_learns_as_in_fp32_in_fp16(train):
    result = train("quickstart", precision="fp16", num_devices=1)
    assert result.summary["eval_top1"] >= 0.97
    assert step_losses(result)[-1] < 0.1


@pytest.mark.slow
def test_a_profile_does_not_show_the_names_of_older_code(run_main, tmp_path):
    """Its programs are kept apart: one that lacks today's names would do for any other run."""
    one = ("--experiment=quickstart:tiny", "--compile_cache=kept", "--experiment.epochs=1")
    for run, flags in (("plain", ()), ("profiled", ("--profile=2:3",))):
        done = run_main(*one, f"--workdir={run}", *flags)
        assert done.returncode == 0, done.stderr
        outcomes = {r["function"]: r["compile_cache"] for r in records(tmp_path / run, "compile")}
        assert outcomes["train_step"] == "miss"
