"""Run a trial inside a job of Slurm: `python -m jaxbench.launchers.slurm_job JOB.json`.

Several tasks become the processes of one run. A job that Slurm has queued again goes on where its
trial can, and begins anew where it cannot.
"""

import os
import pathlib
import shutil
import sys
from collections.abc import Mapping

from jaxbench.errors import Terminated
from jaxbench.launchers.launcher import read_json
from jaxbench.launchers.run_job import run_job
from jaxbench.parallel.signals import raise_on_signals


def srun_prefix(variables: Mapping[str, str]) -> list[str]:
    """Return what starts a program in all tasks of the job; nothing where it has one task.

    Args:
      variables: the environment that Slurm gives the job.
    """
    # Without a number of tasks each node has one.
    tasks = variables.get("SLURM_NTASKS") or variables["SLURM_JOB_NUM_NODES"]
    if tasks == "1":
        return []
    # JAX takes the GPU of each task's number on its node, so that each has to see all of them.
    srun = [shutil.which("srun") or "srun", "--kill-on-bad-exit=0", "--gpu-bind=none"]
    cpus = variables.get("SLURM_CPUS_PER_TASK")
    return srun + ([f"--cpus-per-task={cpus}"] if cpus else [])


def take_up(run_path: pathlib.Path, log: pathlib.Path, restart: str) -> list[str]:
    """Prepare what an earlier start of this job has left; return the arguments that resume it.

    Args:
      run_path, log: the trial's run directory and output.
      restart: a name for what is put aside.
    """
    if log.exists():
        log.rename(log.with_suffix(f".before-{restart}.log"))
    if read_json(run_path / "run.json").get("mode") == "train":
        return ["--resume=auto"]
    if run_path.exists():
        run_path.rename(run_path.with_suffix(f".before-{restart}"))
    return []


def claim(path: pathlib.Path, number: str) -> str:
    """Return the number of the first job that claimed a trial, which may have been submitted twice.

    Args:
      path: a file for the number.
      number: this job's.
    """
    try:
        with open(path, "x") as file:
            file.write(number)
    except FileExistsError:
        return path.read_text()
    return number


def main(path: pathlib.Path) -> None:
    """Run the trial of a job file to its end, and write how it ended."""
    job = read_json(path)
    number = os.environ["SLURM_JOB_ID"]
    if (owner := claim(path.with_suffix(".claim"), number)) != number:
        print(f"job {number}: job {owner} has run this trial")
        return
    prefix = srun_prefix(os.environ)
    more = ["--distributed=auto"] if prefix else []
    if restart := os.environ.get("SLURM_RESTART_COUNT"):
        more += take_up(pathlib.Path(job["run_path"]), pathlib.Path(job["log"]), restart)
    run_job(path, prefix, more)


if __name__ == "__main__":
    raise_on_signals()
    try:
        main(pathlib.Path(sys.argv[1]))
    except (KeyboardInterrupt, Terminated):
        sys.exit(143)
