"""Runs that are stopped from outside leave their records; a network learns real images."""

import csv
import os
import signal
import subprocess

import pytest

from jaxbench.clock import wait_until
from tests.conftest import MICRO, records, run_json
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
