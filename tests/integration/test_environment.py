"""What a run ran on: figures of this process, not of those round it."""

import os
import pathlib
import subprocess
import sys

import pytest

from jaxbench.parallel.child import LAUNCHER

_CHILD = """
from jaxbench.hardware.environment import host_peak_memory_bytes, process_memory_bytes

before_bytes = host_peak_memory_bytes()
held = b"x" * 2**26
del held
print(before_bytes, host_peak_memory_bytes(), process_memory_bytes())
"""
_PARENT = """
import os, subprocess, sys

held = b"x" * (3 * 2**28)
launcher = sys.argv[1:-1]
subprocess.run([*launcher, str(os.getpid()), "0", sys.executable, "-c", sys.argv[-1]], check=True)
"""


def test_peak_memory_is_not_that_of_the_process_that_started_it():
    status = pathlib.Path("/proc/self/status")
    if not status.exists() or "VmHWM" not in status.read_text():
        pytest.skip("this system does not tell a program's own peak")
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, *LAUNCHER, _CHILD],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    before_bytes, peak_bytes, now_bytes = map(int, done.stdout.split())
    # The parent held 768 MiB.
    assert 2**24 < before_bytes < 2**29
    assert peak_bytes >= now_bytes + 2**25
