"""Slurm's commands: what they are asked, and what their answers mean."""

import argparse
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxbench.errors import BadInput
from jaxbench.launchers.launcher import LOST
from jaxbench.parallel.child import ProcessResult

# Options of sbatch that say on what a trial runs: they are part of its key.
_HARDWARE = (
    *(("-p", "--partition"), ("-C", "--constraint"), ("-w", "--nodelist"), ("--gres",)),
    *(("-G", "--gpus"), ("--gpus-per-node",), ("--gpus-per-socket",), ("--gpus-per-task",)),
    *(("--gpu-freq",), ("--cpu-freq",), ("--mem",), ("--mem-per-cpu",), ("--mem-per-gpu",)),
    *(("-N", "--nodes"), ("-n", "--ntasks"), ("--ntasks-per-node",), ("--ntasks-per-gpu",)),
    *(("-c", "--cpus-per-task"), ("--cpus-per-gpu",), ("--threads-per-core",)),
)
# Those that the sweep gives itself, or with which sbatch answers otherwise or does something else.
_OWN = (
    *(("-o", "--output"), ("-e", "--error"), ("--open-mode",), ("-J", "--job-name"), ("--wrap",)),
    *(("-a", "--array"), ("-D", "--chdir"), ("-M", "--clusters"), ("-W", "--wait")),
    *(("--parsable",), ("--test-only",), ("-h", "--help"), ("--usage",), ("-V", "--version")),
)
# Short options of sbatch that take no value: several stand together, as in -HW.
_WITHOUT_VALUE = "hHIOQsuvVW"
# {a state of a job that Slurm itself has ended: (the trial's status, reason)}
_ENDED_BY_SLURM = {
    "BOOT_FAIL": (LOST, "the node did not start"),
    "CANCELLED": ("failed", "cancelled in Slurm"),
    "DEADLINE": ("failed", "the job's deadline in Slurm has passed"),
    "NODE_FAIL": (LOST, "the node failed"),
    "OUT_OF_MEMORY": ("oom", "used more memory than Slurm gave it"),
    "PREEMPTED": (LOST, "preempted"),
    "TIMEOUT": ("timeout", "took longer than Slurm's time limit, {limit}"),
}
_ENDED_BY_ITSELF = ("COMPLETED", "FAILED")
_COLUMNS = ("JobID", "State", "TimeUsed", "TimeLimit", "NodeList", "Reason", "Name")
_COMMAND_S = 120.0
_OWN_NAME = re.compile(r"^(sbatch: |squeue: )?(error: )?")
# Variables of a job around the sweep would pass for options of its jobs. These say which Slurm.
_KEPT = ("SLURM_CONF", "SLURM_JWT")

# Runs a command; returns its exit code, output and errors.
Call = Callable[[Sequence[str]], tuple[int, str, str]]


class QueuedJob(NamedTuple):
    """A job as squeue shows it; all are Slurm's texts."""

    number: str
    state: str
    time_used: str
    time_limit: str
    nodes: str
    reason: str
    name: str

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED_BY_ITSELF or self.state in _ENDED_BY_SLURM

    def ended_by_slurm(self) -> ProcessResult | None:
        """Return how Slurm itself has ended the job; None where it did not."""
        if self.state not in _ENDED_BY_SLURM:
            return None
        status, reason = _ENDED_BY_SLURM[self.state]
        return self.result(status, reason.format(limit=self.time_limit))

    def result(self, status: str, reason: str) -> ProcessResult:
        """Return the result of a trial that did not write one itself."""
        return ProcessResult(status, reason, None, seconds(self.time_used))

    def __str__(self):
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"job {self.number}: {self.state.lower()}{why}"


class Refused(Exception):
    """One of Slurm's commands did not do it; the message says why, in one line."""


def list_jobs(call: Call) -> dict[str, QueuedJob]:
    """Return {name: job} of the user's jobs, those that ended some minutes ago included.

    Of several jobs of one name it is the first that was submitted.

    Raises:
      Refused: Slurm does not answer.
    """
    form = ",".join(f"{column}:|" for column in _COLUMNS)
    options = ["--noheader", f"--user={os.getuid()}", "--states=all", "--sort=i"]
    output = _run(call, ["squeue", *options, f"--Format={form}"])
    rows = [line.split("|")[:-1] for line in output.splitlines()]
    jobs = [QueuedJob(*row) for row in rows if len(row) == len(_COLUMNS)]
    return {job.name: job for job in reversed(jobs)}


def submit(call: Call, options: Sequence[str], command: str) -> str:
    """Submit a job; return its number.

    Raises:
      Refused: sbatch does not take it. After no answer Slurm may have it all the same.
    """
    words = _run(call, ["sbatch", "--parsable", *options, f"--wrap={command}"]).split()
    if not words:
        raise Refused("sbatch: gave no number")
    # On a cluster with a name this follows, after a semicolon.
    return words[-1].partition(";")[0]


def check_options(call: Call, options: Sequence[str]) -> None:
    """Raise Refused where Slurm would not take a job with these options; submit none."""
    _run(call, ["sbatch", "--test-only", *options, "--wrap=true"])


def _run(call: Call, command: Sequence[str]) -> str:
    code, output, errors = call(command)
    if code:
        lines = [_OWN_NAME.sub("", line).strip() for line in errors.splitlines()]
        said = [line for line in lines if line and not line.startswith("Try ")]
        raise Refused(f"{command[0]}: {'; '.join(said) or f'exit code {code}'}")
    return output


def call_slurm(command: Sequence[str]) -> tuple[int, str, str]:
    """Run one of Slurm's commands; return its exit code, output and errors."""
    variables = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("SLURM_") or name in _KEPT
    }
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=variables,
            timeout=_COMMAND_S,
            # A Ctrl-C in the terminal is for this process alone.
            start_new_session=True,
        )
    except FileNotFoundError:
        return 127, "", "is not here; start the sweep where Slurm takes jobs"
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer in {_COMMAND_S:g} s"
    return done.returncode, done.stdout, done.stderr


def seconds(text: str) -> float:
    """Return the seconds of a time as Slurm writes it: [days-][hours:]minutes:seconds.

    0 for a word, such as INVALID: clocks are apart, and the time would be negative.
    """
    days, _, clock = text.rpartition("-")
    try:
        parts = [int(part) for part in clock.split(":")]
        return 86400.0 * int(days or 0) + sum(60**i * n for i, n in enumerate(reversed(parts)))
    except ValueError:
        return 0.0


class _OptionParser(argparse.ArgumentParser):
    """Reads those of sbatch's options that matter here, as sbatch does; leaves the others alone."""

    def __init__(self):
        super().__init__(add_help=False)
        for names in _HARDWARE:
            self.add_argument(*names)
        self.add_argument("--exclusive", nargs="?", const="yes")
        for names in _OWN:
            self.add_argument(*names, nargs="?", dest="own", action=_Refuse)

    def error(self, message: str):
        raise BadInput(f"--slurm: {message}")


class _Refuse(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        raise BadInput(f"--slurm={option_string}: is no option of sbatch for a sweep's jobs")


def _split_cluster(option: str) -> list[str]:
    """Return short options that stand together as one word each: -HWpa is -H, -W and -pa."""
    cluster = re.match(f"-[{_WITHOUT_VALUE}]+", option)
    if cluster is None:
        return [option]
    rest = option[cluster.end() :]
    return [f"-{letter}" for letter in cluster[0][1:]] + [f"-{rest}"] * bool(rest)


def hardware_options(options: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return NAME=VALUE of the options that say on what a trial runs.

    Args:
      options: for sbatch.
      variables: the environment, from which sbatch takes options that are not given.

    Raises:
      BadInput: an option that the sweep itself gives.
    """
    words = [word for option in options for word in _split_cluster(option)]
    given, _ = _OptionParser().parse_known_args(words)
    wanted = {
        name: value or variables.get(f"SBATCH_{name.upper()}")
        for name, value in vars(given).items()
    }
    return [f"{name.replace('_', '-')}={value}" for name, value in sorted(wanted.items()) if value]
