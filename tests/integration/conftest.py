"""Real processes: the entry points as people start them."""

import importlib.util
import os
import subprocess
import sys

import pytest


def program(*args: str, command: str = "main") -> list[str]:
    """The command line of an entry point."""
    return [sys.executable, "-m", f"jaxbench.{command}", *args]


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
