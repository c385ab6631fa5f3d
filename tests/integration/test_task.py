"""Real images are segmented."""

import pytest

from tests.conftest import run_json


@pytest.mark.slow
def test_real_nuclei_are_found(run_main, tmp_path, test_data):
    """334 real images at an eighth of the width; three epochs of 33 steps on the CPU."""
    done = run_main(
        "--experiment=unet256",
        "--experiment.data.source=npz",
        f"--experiment.data.path={test_data / 'dsb2018_256.npz'}",
        "--experiment.num_devices=1",
        "--experiment.model.width=8",
        "--experiment.optimizer.learning_rate=0.002",
        "--experiment.epochs=3",
        "--workdir=run",
        env={"XLA_FLAGS": ""},
        timeout_s=1200,
    )
    assert done.returncode == 0, done.stderr
    summary = run_json(tmp_path / "run")["summary"]
    assert summary["eval_count"] == 66
    assert summary["eval_dice"] >= 0.80
