"""The package as users install it: a wheel, and the program `jaxbench` in it."""

import os
import subprocess
import sys

import pytest

from tests.conftest import MICRO, ROOT, records, run_json
from tests.integration.conftest import run_program


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a wheel installed without the checkout; dependencies are this environment's."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, tracked.stdout.split("\0")):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "-q"]
    options = ["--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, "wheel", *options, str(folder / "source")], check=True)
    [wheel] = folder.glob("jaxbench-*.whl")
    options = ["--no-deps", "--target", str(folder / "installed")]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    return folder / "installed"


@pytest.fixture
def run(installed, tmp_path):
    def run(*command, **env):
        return run_program(command, tmp_path, {"PYTHONPATH": str(installed)} | env, timeout_s=200)

    return run


def test_the_program_runs_an_experiment_and_records_its_command_line(installed, run, tmp_path):
    program = installed / "bin" / "jaxbench"
    done = run(program, "main", "--experiment=quickstart:tiny", "--workdir=run")
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    assert document["status"] == "done" and document["environment"]["git"] is None
    _, *command = document["command_line"]
    assert command == [str(program), "main", "--experiment=quickstart:tiny", "--workdir=run"]


def test_the_program_starts_local_processes(installed, run, tmp_path):
    """Windows are as long in all of them, or they would wait for one another for ever."""
    program = installed / "bin" / "jaxbench"
    flags = (f"--experiment={MICRO}", "--experiment.num_devices=0", "--mode=throughput")
    flags += ("--rounds=6", "--window_s=0.05", "--local_processes=2", "--workdir=run")
    devices = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    done = run(program, "main", *flags, XLA_FLAGS=devices)
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path / "run")["environment"]["num_processes"] == 2
    [step, forward] = records(tmp_path / "run", "throughput")
    assert step["num_devices"] == 4
    assert step["images_counted"] == step["images_per_step"] == 128
    assert forward["images_per_s"] > step["images_per_s"]


@pytest.mark.parametrize("command", ["--help", "--version", "report x", "cost x", "compare x y"])
def test_what_needs_no_jax_does_not_import_it(run, command):
    """Importing it fails here."""
    code = (
        "import runpy, sys; sys.modules['jax'] = sys.modules['flax'] = None; "
        f"sys.argv[1:] = {command.split()}; runpy.run_module('jaxbench', run_name='__main__')"
    )
    done = run(sys.executable, "-c", code)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if command.startswith("--") else 2)
