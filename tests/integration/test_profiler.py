"""A process that Ctrl-C ends while JAX's profiler traces it."""

import os
import signal
import subprocess

from tests.conftest import run_json
from tests.integration.conftest import program


def test_ctrl_c_in_the_middle_of_a_trace(tmp_path):
    process = subprocess.Popen(
        program("--experiment=quickstart", "--profile=3:33", "--workdir=run"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert any("profiling steps" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in output
    document = run_json(tmp_path / "run")
    assert (document["status"], document["reason"]) == ("interrupted", "interrupted (Ctrl-C)")
    # The steps of the epoch that was being traced are, whichever it was.
    assert document["summary"]["profile"]["last_step"] in (11, 22, 32)
