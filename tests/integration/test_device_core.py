"""`pytest -m device`: the tests that hold on any device, here on one of a CPU."""

import collections
import re
import sys

from tests.conftest import ROOT
from tests.integration.conftest import run_program

# How many of them each file has at least.
LEAST = {
    "checkpoints/test_resume": 6,
    "data/test_augment": 20,
    "data/test_resident": 5,
    "data/test_stream": 4,
    "hardware/test_telemetry": 2,
    "microbench/test_microbench": 6,
    "microbench/test_repeat_check": 5,
    "models/test_layers": 10,
    "models/test_transformers": 10,
    "modes/test_conv2d": 10,
    "modes/test_memory": 3,
    "modes/test_throughput": 8,
    "modes/test_train": 5,
    "qualification/test_soak": 4,
    "training/test_loss_scale": 6,
    "training/test_optimizers": 30,
    "training/test_profiler": 2,
    "training/test_train_step": 10,
}


def run_device_tests(*args):
    command = [sys.executable, "-m", "pytest", "-m", "device", *args]
    done = run_program(command, ROOT, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_process_runs_them_on_one_device():
    printed = run_device_tests(
        "tests/microbench/test_repeat_check.py", "tests/modes/test_memory.py"
    )
    assert ", 1 x cpu" in printed and "workers" not in printed
    assert re.search(r"^=+ \d+ passed, \d+ deselected", printed, re.MULTILINE), printed


def test_there_are_some_of_all_that_devices_decide():
    files = [f"tests/{name}.py" for name in LEAST]
    listed = run_device_tests("--collect-only", "-q", *files)
    counts = collections.Counter(re.findall(r"^tests/(.+)\.py::", listed, re.MULTILINE))
    assert {name for name, least in LEAST.items() if counts[name] < least} == set()
