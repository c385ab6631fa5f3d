"""Processes of their own: signals, whose end never hangs, and a second one in a run directory."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jaxbench.checkpoints.checkpoint import list_checkpoints
from tests.conftest import MICRO, records, run_json, table
from tests.integration.conftest import program, wait_for


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
    wait_for(lambda: table.exists() and len(table.read_text().splitlines()) >= 3, process)
    return process


def run_python(code):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_end_that_hangs_is_cut_short():
    """SIGINT is in test_wandb.py."""
    process = run_python(
        "import threading, time\n"
        "from jaxbench.parallel import signals\n"
        "signals.set_grace_period(0.3)\n"
        "signals.raise_on_signals()\n"
        "lock = threading.Lock()\n"
        "lock.acquire()\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    lock.acquire()\n"
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    told = "jaxbench: did not end in 0.3 s, forced to exit\n"
    assert (process.returncode, errors) == (143, told)


@pytest.mark.parametrize(("grace_period_s", "is_kept"), [(2, False), (60, True)])
def test_a_slow_checkpoint_is_finished_within_the_grace_period(tmp_path, grace_period_s, is_kept):
    flags = [f"--experiment={MICRO}", "--experiment.epochs=100000", "--telemetry_s=0"]
    flags += [f"--workdir={tmp_path / 'run'}", f"--grace_period_s={grace_period_s}"]
    process = run_python(
        "import time\n"
        "from jaxbench import main\n"
        "import orbax.checkpoint as ocp\n"
        "from jaxbench.cli import entry_point\n"
        "genuine = ocp.Checkpointer.save\n"
        "ocp.Checkpointer.save = lambda *args: (time.sleep(4), genuine(*args))\n"
        f"entry_point.run_with_experiment(main.main, ['main', *{flags}])\n"
    )
    for line in process.stdout:
        if line.lstrip().startswith("4/100000"):
            break
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert ("forced to exit" in errors) != is_kept
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == is_kept
    assert run_json(tmp_path / "run")["status"] == "preempted"


def test_a_run_that_stood_still_and_is_stopped_says_so(tmp_path):
    process = start_long_run(tmp_path)
    process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    time.sleep(1.5)  # for the next reading of telemetry
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in output, output
    document = run_json(tmp_path / "run")
    assert (document["status"], document["reason"]) == ("interrupted", "interrupted (Ctrl-C)")
    summary = document["summary"]
    stood_still = "the process stood still, as if stopped: for"
    assert any(stood_still in line for line in summary["warnings"])
    assert summary["epochs_done"] >= 2 and records(tmp_path / "run")[-1]["kind"] == "summary"
    # The threads were ended first: what is summed up is what the file holds, whole rows.
    rows = table(tmp_path / "run" / "telemetry.csv")
    samples = summary["telemetry"]["devices"]["host"]["samples"]
    assert len(rows) == samples >= 2 and None not in rows[-1].values()
