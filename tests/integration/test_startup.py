"""Start-up: what is imported and when, and what the record says of the time."""

import pathlib
import sys

import pytest

from jaxbench.hardware.backend_flags import cpu_flags
from jaxbench.parallel.child import LAUNCHER
from tests.conftest import MICRO, records, run_json
from tests.integration.conftest import run_program

# What a run on resident data has no use for.
_UNUSED = (
    *("grain", "tensorflow_datasets", "array_record", "tensorstore", "orbax"),
    *("IPython", "treescope"),  # with flax.nnx
    *("sklearn", "scipy", "simplejpeg", "matplotlib", "pandas", "wandb"),
)
# Before the flags have been looked at.
_LATER = ("jax", "flax", "optax", "numpy", "ml_collections", "psutil", "rich", "cv2")
# What a step is built and run with must do without these.
_ON_THE_SIDE = (
    *("grain", "tensorflow_datasets", "array_record", "simplejpeg"),
    *("ml_collections", "tensorboardX"),
)
_SCRIPT = f"""
import importlib, sys
from jaxbench import main
from jaxbench.cli import entry_point

def check(when, unwanted):
    found = {{name.split(".")[0] for name in sys.modules}} & set(unwanted)
    assert not found, f"{{when}}: {{sorted(found)}}"

check("importing jaxbench.main", {_UNUSED + _LATER})
without = {_ON_THE_SIDE}
sys.modules |= dict.fromkeys(without)  # importing them fails
rooms = ("config", "training.program", "modes.windows", "data.feeds.feed")
for name in (*rooms, "models.wide_resnet"):
    importlib.import_module("jaxbench." + name)
for name in without:
    del sys.modules[name]
flags = ["--experiment={MICRO}", "--experiment.epochs=1", "--workdir=run", "--checkpoint_minutes=0"]
try:
    entry_point.run_with_experiment(main.main, ["main", *flags])
finally:
    check("a run on resident data", {_UNUSED})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run that looks at what it has imported, before and after; and its folder."""
    folder = tmp_path_factory.mktemp("startup")
    done = run_program([sys.executable, "-c", _SCRIPT], cwd=folder)
    return done, folder / "run"


def test_nothing_is_imported_that_is_not_used(run):
    done, _ = run
    assert done.returncode == 0, done.stderr


def test_the_measured_flags_are_on_and_recorded(run):
    used = run_json(run[1])["environment"]["variables"]["XLA_FLAGS"].split()
    assert {*cpu_flags()} <= {*used}


def test_the_summary_tells_the_start_up_apart(run):
    done, folder = run
    summary = run_json(folder)["summary"]
    if summary.get("startup_s") is None:
        pytest.skip("this system does not tell when a process was started")
    first_epoch = records(folder, "epoch")[0]
    # The process comes before the clock, the rest of the first epoch after the first step.
    assert 0 < summary["import_s"] < summary["startup_s"]
    assert summary["startup_s"] < summary["import_s"] + first_epoch["elapsed_s"]
    phases_s = summary["phases_s"]
    prepared = ("devices", "build", "init", "lower", "compile")
    assert summary["startup_s"] > summary["import_s"] + sum(phases_s[name] for name in prepared)
    assert sum(phases_s.values()) == pytest.approx(summary["wall_s"], rel=0.01)
    assert "starting up" in done.stdout


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
    done = run_program([sys.executable, "-c", _PARENT, *LAUNCHER, _CHILD])
    assert done.returncode == 0, done.stderr
    before_bytes, peak_bytes, now_bytes = map(int, done.stdout.split())
    # The parent held 768 MiB.
    assert 2**24 < before_bytes < 2**29
    assert peak_bytes >= now_bytes + 2**25
