"""Real jobs of a real Slurm: the launch script, and sweeps with --launcher=slurm."""

import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

import pytest

from jaxbench.launchers.launcher import read_json
from tests.conftest import MICRO, ROOT, last_step, run_json, table
from tests.integration.conftest import wait_for
from tests.integration.slurm import cluster  # noqa: F401
from tests.integration.test_sweep import results, sweep, write_experiments

# A training that a test ends.
LONG = "--experiment.epochs=1000000"


@pytest.fixture(scope="module")
def slurm(cluster):  # noqa: F811
    # Each task, and each trial, has one device.
    cluster.environment |= {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
    }
    return cluster


@pytest.fixture(scope="module", autouse=True)
def killed_sweep(tmp_path_factory, slurm):
    """A sweep of six trials, killed when Slurm has them, and the last job cancelled.

    Returns its folder and command. Its jobs run while the other tests do, for Slurm's shortest
    time limit is a minute.
    """
    folder = tmp_path_factory.mktemp("sweep")
    write_experiments(folder, large="model.hidden = (10**6, 10**6)", long="epochs = 10**6")
    command = sweep(
        *("--launcher=slurm", "--slurm=--cpus-per-task=1 --time=1", "--sweepdir=s"),
        *(f"--grid=experiment={MICRO},large.py,long.py", "--grid=seed=0,1"),
        *("--experiment.num_devices=1", "--telemetry_s=0"),
    )

    def submitted():
        texts = [read_json(path, dict) or {} for path in notes(folder)]
        return {text["number"] for text in texts if "number" in text}

    process = subprocess.Popen(command, cwd=folder, env=slurm.environment)
    try:
        wait_for(lambda: len(submitted()) == 6, process)
    finally:
        process.kill()
        process.wait()
    [cancelled] = [path for path in notes(folder) if "long.py,seed=1" in str(path)]
    slurm.run("scancel", read_json(cancelled, dict)["number"])
    return folder, command


def notes(folder):
    return [*(folder / "s").rglob("*.job.json")]


def wait_for_steps(slurm, job, folder, restarts):
    """Waits until a job has been started so often again, and its run has done some steps since."""
    there = ("CONFIGURING", "PENDING", "RUNNING")
    while (now := slurm.job(job))["Restarts"] != restarts or now["JobState"] not in there:
        time.sleep(0.2)
    begun = last_step(folder)
    while last_step(folder) <= begun + 100:
        assert slurm.job(job)["JobState"] in there
        time.sleep(0.2)


def test_runs_go_on_when_their_jobs_are_requeued_and_not_after_scancel(tmp_path, slurm):
    """That of the launch script and a sweep's trial, both of two tasks; at once, for both wait."""
    activate = tmp_path / "script" / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH='{os.path.dirname(sys.executable)}':$PATH\n")
    training = (f"--experiment={MICRO}", "--experiment.num_devices=0", LONG, "--telemetry_s=0")
    script = slurm.run(
        *("sbatch", "--parsable", f"--chdir={tmp_path / 'script'}"),
        *("--nodes=1", "--gpus-per-node=2"),
        *("--ntasks-per-node=2", "--cpus-per-task=2", ROOT / "launch" / "slurm.sbatch", *training),
    ).strip()
    command = sweep(
        *("--launcher=slurm", "--slurm=--ntasks=2 --gpus=2", "--sweepdir=s", "--grid=seed=0"),
        *training,
    )
    with subprocess.Popen(
        command, cwd=tmp_path, env=slurm.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        job = only_job(slurm, tmp_path, process)
        [trial] = (tmp_path / "s" / "trials").iterdir()
        runs = {script: tmp_path / "script" / "runs" / f"slurm-{script}", job: trial / "run1"}
        for number, run in runs.items():
            wait_for_steps(slurm, number, run, "0")
            environment = run_json(run)["environment"]
            assert (environment["num_processes"], environment["num_devices"]) == (2, 2)
        # As Slurm does some minutes before the job's time is up, and after a preemption.
        slurm.run("scancel", "--batch", "--signal=USR1", script)
        slurm.run("scontrol", "requeue", job)
        for number, run in runs.items():
            wait_for_steps(slurm, number, run, "1")
            assert [each["status"] for each in run_json(run)["attempts"][:-1]] == ["preempted"]
        # The jobs do not end with the sweep.
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "to end them:" in output and f"scancel {job}\n" in output and "resume: " in output
    assert slurm.job(job)["JobState"] == "RUNNING"
    slurm.run("scancel", script, job)
    ended = slurm.wait_for(script, "CANCELLED", "COMPLETED", "FAILED", "PENDING")
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "1")
    assert sorted(path.name for path in trial.glob("*.log")) == ["run1.before-1.log", "run1.log"]
    again = subprocess.run(
        command, cwd=tmp_path, env=slurm.environment, capture_output=True, text=True, timeout=120
    )
    [result] = results(tmp_path / "s")
    assert again.returncode == 1, again.stdout + again.stderr
    assert (result["status"], result["reason"]) == ("failed", "cancelled in Slurm")
    assert run_json(tmp_path / "s" / result["run"])["status"] == "preempted"


def only_job(slurm, folder, process):
    """Returns the number of a sweep's only job as soon as it runs."""

    def number():
        return slurm.run("squeue", "-h", "--states=R", "-o%i %Z").splitlines()

    wait_for(lambda: any(line.endswith(f" {folder}") for line in number()), process)
    return next(line.split()[0] for line in number() if line.endswith(f" {folder}"))


def test_a_killed_sweep_takes_up_its_jobs(slurm, killed_sweep):
    """Two end well, two run out of memory, one out of time, and one is cancelled."""
    folder, command = killed_sweep
    before = {path: path.read_text() for path in notes(folder)}
    done = subprocess.run(
        command, cwd=folder, env=slurm.environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    rows = table(folder / "s" / "sweep.csv")
    assert [(pathlib.Path(r["experiment"]).stem, r["seed"], r["status"]) for r in rows] == [
        *(("micro", "0", "done"), ("micro", "1", "done")),
        *(("large", "0", "oom"), ("large", "1", "oom")),
        *(("long", "0", "timeout"), ("long", "1", "failed")),
    ], done.stdout
    assert "GiB on each device" in rows[2]["reason"]
    assert rows[4]["reason"] == "took longer than Slurm's time limit, 1:00"
    assert rows[5]["reason"] == "cancelled in Slurm"
    # None was started twice.
    assert {path: path.read_text() for path in notes(folder)} == before
    assert len(results(folder / "s")) == 6
    # The cancelled one may have waited still.
    hosts = {result["hostname"] for result in results(folder / "s")} - {None}
    assert hosts == {platform.node()}
