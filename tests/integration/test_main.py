"""The entry point as a process of its own, and every experiment once."""

import subprocess

import pytest

from jaxbench.cli import registry
from tests.conftest import MICRO, OPTIMIZED, run_json
from tests.integration.conftest import program
from tests.test_main import QUICK, check_runs_tiny

# On one device the largest jobs are slow: what they differ in is tried on eight. Once a week: other
# recipes for a network that is here.
_ON_ONE = ("quickstart",)
_WEEKLY = ("resnet50", "gpt124m_synthetic", "wrn28_10_2019", "cifar10_speedrun94_2025", "vit_s16")


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param(
            name,
            devices,
            marks=[pytest.mark.slow]
            if name in _WEEKLY or (devices == 1 and name not in _ON_ONE)
            else [],
        )
        for name in registry.available()
        for devices in (1, 8)
        if name not in QUICK
    ],
)
def test_every_experiment_runs_tiny(run_cli, tmp_path, name, devices):
    """In this process: what a process of its own adds is asked below."""
    check_runs_tiny(run_cli, tmp_path, name, devices)


def test_quickstart_reaches_97_percent(run_main, tmp_path):
    done = run_main("--experiment=quickstart", env=OPTIMIZED)
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "runs" / "quickstart").iterdir()
    summary = run_json(folder)["summary"]
    assert summary["eval_count"] == 360
    assert summary["eval_top1"] >= 0.97


def test_real_cifar10_is_learned(run_main, tmp_path, test_data):
    done = run_main(
        "--experiment=cnn10",
        f"--experiment.data.path={test_data / 'tfds'}",
        "--experiment.model.channels=(8,16,32)",
        "--experiment.data.train_examples=5000",
        "--experiment.batch_size=32",
        "--experiment.epochs=1",
        "--experiment.optimizer.schedule=constant",
        "--workdir=run",
        env=OPTIMIZED,
    )
    assert done.returncode == 0, done.stderr
    summary = run_json(tmp_path / "run")["summary"]
    assert summary["eval_count"] == 10_000
    assert summary["eval_top1"] > 0.25


def test_a_backend_that_is_not_there_is_told(run_main):
    done = run_main("--experiment=quickstart", env={"JAX_PLATFORMS": "cuda"})
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("jaxbench: JAX_PLATFORMS=cuda: ") and "pip install" in line


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
    command = program(f"--experiment={MICRO}", "--workdir=run")
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert run_json(tmp_path / "run")["status"] == "done", errors
