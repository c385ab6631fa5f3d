"""Real jobs of a real Slurm: the launch script, and sweeps with --launcher=slurm."""

import os
import sys

from jaxbench.clock import wait_until
from tests.conftest import MICRO, ROOT, last_step, run_json
from tests.integration.slurm import slurm  # noqa: F401

# The training that a test ends.
LONG = "--experiment.epochs=100000"


def test_the_launch_script_goes_on_after_its_time_and_not_after_scancel(tmp_path, slurm):  # noqa: F811
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH='{os.path.dirname(sys.executable)}':$PATH\n")
    slurm.environment |= {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
    }
    job = slurm.run(
        *("sbatch", "--parsable", f"--chdir={tmp_path}", "--nodes=1", "--ntasks-per-node=2"),
        *("--gpus-per-node=2", "--cpus-per-task=2", ROOT / "launch" / "slurm.sbatch"),
        *(f"--experiment={MICRO}", "--experiment.num_devices=0", LONG, "--telemetry_s=0"),
    ).strip()
    folder = tmp_path / "runs" / f"slurm-{job}"
    wait_until(lambda: last_step(folder) > 100)
    environment = run_json(folder)["environment"]
    assert (environment["num_processes"], environment["num_devices"]) == (2, 2)
    assert "CPUs=4 Tasks=2" in slurm.run("scontrol", "-o", "show", "step", f"{job}.0")
    # As Slurm does some minutes before the job's time is up.
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait_for(job, "PENDING")["Restarts"] == "1"
    assert run_json(folder)["status"] == "preempted"
    came_to = last_step(folder)
    wait_until(lambda: last_step(folder) > came_to + 100)
    slurm.run("scancel", job)
    ended = slurm.wait_for(job, "CANCELLED", "COMPLETED", "FAILED", "PENDING")
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "1")
