"""The entry point as a process of its own, and every experiment once."""

import pytest

from jaxbench.cli import registry
from tests.conftest import OPTIMIZED, records, run_json

# Once a week: other recipes for a network that is here.
_WEEKLY = ("resnet50", "gpt124m_synthetic", "wrn28_10_2019", "cifar10_speedrun94_2025")
_WEEKLY += ("vit_s16", "vit_s16_synthetic")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in _WEEKLY else ())
        for name in registry.available()
        if name != "conv2d"
    ],
)
def test_every_experiment_runs_tiny(run_cli, tmp_path, name):
    experiment = (f"--experiment={name}:tiny", "--experiment.num_devices=8")
    done = run_cli(*experiment, "--workdir=run")
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    assert document["status"] == "done" and document["experiment"] == f"{name}:tiny"
    assert document["environment"]["num_devices"] == 8
    epochs = records(tmp_path / "run", "epoch")
    assert epochs[-1]["eval_count"] == document["data"]["eval_examples"]
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    # The line of the last epoch has the rate that is recorded.
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    [cells] = [cells for cells in lines if cells[0].startswith(f"{len(epochs)}/")]
    numbers = [float(cell.replace(",", "")) for cell in cells[1:]]
    assert epochs[-1]["images_per_s"] in [pytest.approx(number, rel=1e-3) for number in numbers]
    assert ("Dice" if document["task"] == "segmentation" else "top-1") in done.stdout


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
