"""Processes that JAX's profiler traces."""

import os
import signal
import subprocess

import pytest

from tests.conftest import records, run_json
from tests.integration.conftest import program

QUICKSTART = ("--experiment=quickstart", "--experiment.num_devices=2")


def test_ctrl_c_in_the_middle_of_a_trace(tmp_path):
    process = subprocess.Popen(
        # On a busy machine the trace takes long to write.
        program(*QUICKSTART, "--profile=3:33", "--workdir=run", "--grace_period_s=200"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert any("profiling steps" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 130 and "Traceback" not in output
    document = run_json(tmp_path / "run")
    assert document["status"] == "interrupted", output
    assert document["reason"] == "interrupted (Ctrl-C)"
    # The steps of the epoch that was being traced are, whichever it was.
    assert document["summary"]["profile"]["last_step"] in (11, 22, 32)


@pytest.mark.slow
def test_a_profile_does_not_show_the_names_of_older_code(run_main, tmp_path):
    """Its programs are kept apart: one that lacks today's names would do for any other run."""
    one = ("--experiment=quickstart:tiny", "--compile_cache=kept", "--experiment.epochs=1")
    for run, flags in (("plain", ()), ("profiled", ("--profile=2:3",))):
        done = run_main(*one, f"--workdir={run}", *flags)
        assert done.returncode == 0, done.stderr
        outcomes = {r["function"]: r["compile_cache"] for r in records(tmp_path / run, "compile")}
        assert outcomes["train_step"] == "miss"
