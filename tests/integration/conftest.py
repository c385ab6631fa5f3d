"""Real processes: the entry points as people start them."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

_HERE = pathlib.Path(__file__).resolve().parent
# Files that take over half a minute, the longest first: with `--dist loadfile` no worker ends long
# after the others.
_LONGEST_FIRST = (
    *("main", "slurm", "processes", "ray", "benchmarks", "networks", "sanity", "resume"),
    *("report_browser", "pytorch_parity", "qualify", "microbench", "sweep", "targets", "signals"),
    *("docs", "download", "encoded", "compiled_steps", "scale"),
)


def pytest_collection_modifyitems(items):
    order = {_HERE / f"test_{name}.py": place for place, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def program(*args: str, command: str = "main") -> list[str]:
    """The command line of an entry point."""
    return [sys.executable, "-m", f"jaxbench.{command}", *args]


def wait_for(ready: Callable[[], object], process: subprocess.Popen) -> None:
    """Waits until something is so; fails if the process that brings it about ends before."""
    while not ready():
        assert process.poll() is None or ready(), f"ended before with {process.poll()}"
        time.sleep(0.1)  # to look may take longer than what is waited for


@pytest.fixture
def run_main(tmp_path):
    """Runs the entry point in an empty folder; returns the finished process."""

    def run(*args, env=None, timeout_s=240):
        return subprocess.run(
            program(*args),
            cwd=tmp_path,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run


@pytest.fixture(scope="session")
def pytorch_python():
    """A Python that has PyTorch."""
    python = os.environ.get("JAXBENCH_TEST_PYTORCH")
    if not python and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, nor named by JAXBENCH_TEST_PYTORCH")
    return python or sys.executable
