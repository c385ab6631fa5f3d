"""Real processes: the entry points as people start them."""

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
