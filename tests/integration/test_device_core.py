"""`pytest -m device`: the core of the suite, on the devices of the machine: here one of a CPU."""

import collections
import re
import sys

from tests.conftest import ROOT
from tests.integration.conftest import run_program

# What the core tests, and how many tests of it there are at least.
LEAST = {
    "training/test_train_step": 11,
    "training/test_loss_scale": 6,
    "training/test_optimizers": 40,
    "training/test_profiler": 2,
    "models/test_layers": 14,
    "models/test_transformers": 15,
    "data/test_augment": 30,
    "data/test_resident": 9,
    "data/test_stream": 5,
    "checkpoints/test_resume": 7,
    "hardware/test_telemetry": 2,
    "microbench/test_microbench": 7,
    "microbench/test_repeat_check": 6,
    "modes/test_throughput": 9,
    "modes/test_memory": 3,
    "modes/test_conv2d": 17,
    "modes/test_train": 6,
    "qualification/test_soak": 5,
}


def run_core(*args):
    command = [sys.executable, "-m", "pytest", "-m", "device", *args]
    done = run_program(command, ROOT, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_process_runs_it_on_one_device():
    printed = run_core("tests/microbench/test_repeat_check.py", "tests/modes/test_memory.py")
    assert ", 1 x cpu" in printed and "workers" not in printed
    assert re.search(r"^=+ \d+ passed, \d+ deselected", printed, re.MULTILINE), printed


def test_it_has_tests_of_all_that_devices_decide():
    listed = re.findall(r"^tests/(.+)\.py::", run_core("--collect-only", "-q"), re.MULTILINE)
    counts = collections.Counter(listed)
    assert {room for room, least in LEAST.items() if counts[room] < least} == set()
