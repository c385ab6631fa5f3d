"""`pytest -m device`: the tests that hold on any device, here on one of a CPU."""

import re
import sys

from tests.conftest import ROOT
from tests.integration.conftest import run_program


def test_one_process_runs_them_on_one_device():
    files = ("tests/microbench/test_repeat_check.py", "tests/modes/test_memory.py")
    command = [sys.executable, "-m", "pytest", "-m", "device", *files]
    done = run_program(command, ROOT, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 1 x cpu" in done.stdout and "workers" not in done.stdout
    assert re.search(r"^=+ \d+ passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout
