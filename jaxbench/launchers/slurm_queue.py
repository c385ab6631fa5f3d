"""Slurm's commands: what they are asked, and what their answers mean."""

import argparse
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
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
_REFUSED = (
    *(("-o", "--output"), ("-e", "--error"), ("--open-mode",), ("-J", "--job-name"), ("--wrap",)),
    *(("-a", "--array"), ("-D", "--chdir"), ("-M", "--clusters"), ("-W", "--wait")),
    *(("--parsable",), ("--test-only",), ("-h", "--help"), ("--usage",), ("-V", "--version")),
)
# Others without a value, which may stand together with those above, as in -HW.
_SWITCHES = ("-H", "-I", "-O", "-Q", "-s", "-u", "-v")
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
        """Return how Slurm itself has ended the job; None if it did not."""
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


def list_jobs() -> dict[str, QueuedJob]:
    """Return {name: job} of the user's jobs, those that ended some minutes ago included.

    Of several jobs of one name it is the first that was submitted.
    """
    form = ",".join(f"{column}:|" for column in _COLUMNS)
    options = ["--noheader", f"--user={os.getuid()}", "--states=all", "--sort=i"]
    output = call_slurm(["squeue", *options, f"--Format={form}"])
    rows = [line.split("|")[:-1] for line in output.splitlines()]
    jobs = [QueuedJob(*row) for row in rows if len(row) == len(_COLUMNS)]
    return {job.name: job for job in reversed(jobs)}


def submit(options: Sequence[str], command: str) -> str:
    """Submit a job; return its number. After no answer (Refused) Slurm may still have the job."""
    output = call_slurm(["sbatch", "--parsable", *options, f"--wrap={command}"])
    if not output.split():
        raise Refused("sbatch: gave no number")
    # On a cluster with a name this follows, after a semicolon.
    return output.split()[-1].partition(";")[0]


def call_slurm(command: Sequence[str]) -> str:
    """Run one of Slurm's commands; return its output.

    Raises:
      Refused: it fails or does not answer.
    """
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
            # A Ctrl-C in the terminal is for this process only.
            start_new_session=True,
        )
    except FileNotFoundError:
        refusal = "is not here; start the sweep where Slurm takes jobs"
        raise Refused(f"{command[0]}: {refusal}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{command[0]}: no answer in {_COMMAND_S:g} s") from None
    if done.returncode:
        lines = [_OWN_NAME.sub("", line).strip() for line in done.stderr.splitlines()]
        lines = [line for line in lines if line and not line.startswith("Try ")]
        reason = "; ".join(lines) or f"exit code {done.returncode}"
        raise Refused(f"{command[0]}: {reason}")
    return done.stdout


def seconds(text: str) -> float:
    """Return the seconds of a time as Slurm writes it: [days-][hours:]minutes:seconds.

    0 for a word, such as INVALID: clocks are apart, and the time would be negative.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return 0.0
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return 86400.0 * days + 3600 * hours + 60 * minutes + rest


class _OptionParser(argparse.ArgumentParser):
    def error(self, message: str):
        raise BadInput(f"--slurm: {message}")


def hardware_options(options: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return NAME=VALUE of the options of sbatch that name hardware, read as sbatch reads them.

    Args:
      variables: the environment, from which sbatch takes options that are not given.

    Raises:
      BadInput: an option that the sweep itself gives.
    """
    parser = _OptionParser(add_help=False)
    names = [parser.add_argument(*names).dest for names in _HARDWARE]
    names.append(parser.add_argument("--exclusive", nargs="?", const="yes").dest)
    refused = [parser.add_argument(*names, nargs="?", const="").dest for names in _REFUSED]
    for switch in _SWITCHES:
        parser.add_argument(switch, action="store_true")
    values = vars(parser.parse_known_args(options)[0])
    for name in refused:
        if values[name] is not None:
            option = name.replace("_", "-")
            raise BadInput(f"--slurm=--{option}: is no option of sbatch for a sweep's jobs")
    wanted = {name: values[name] or variables.get(f"SBATCH_{name.upper()}") for name in names}
    return [f"{name.replace('_', '-')}={value}" for name, value in sorted(wanted.items()) if value]
