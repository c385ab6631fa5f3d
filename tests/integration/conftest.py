"""Real processes: the entry points as people start them."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.conftest import ROOT
from tests.integration.browser import browse, chromium  # noqa: F401 (fixtures)

_HERE = pathlib.Path(__file__).resolve().parent
# Files that take over half a minute, the longest first: with `--dist loadfile` no worker ends long
# after the others.
_LONGEST_FIRST = (
    *("processes", "benchmarks", "ray", "slurm", "main", "networks", "resume"),
    *("qualify", "texts", "sanity", "sweep", "pytorch_parity", "docs", "encoded", "signals"),
    *("targets", "compiled_steps", "download", "scale"),
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


def run_program(command, cwd=None, env=None, timeout_s=300):
    """Runs a program to its end, with this checkout's modules; `env` adds to the environment."""
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture
def run_main(tmp_path):
    """Runs the entry point in an empty folder; returns the finished process."""
    return lambda *args, **how: run_program(program(*args), tmp_path, **how)


@pytest.fixture(scope="session")
def pytorch_python():
    """A Python that has PyTorch."""
    python = os.environ.get("JAXBENCH_TEST_PYTORCH")
    if not python and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, nor named by JAXBENCH_TEST_PYTORCH")
    return python or sys.executable
