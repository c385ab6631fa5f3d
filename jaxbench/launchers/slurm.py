"""Run trials as jobs of Slurm. All nodes must see this Python and the sweep's folder.

A job runs `python -m jaxbench.launchers.slurm JOB.json`. Several tasks become the processes of one
run. How the trial ended is in a file, for whoever asks later; if the job is ended there is none.
"""

import dataclasses
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import BadInput, Terminated, Unreachable
from jaxbench.launchers.launcher import LOST, Ended, Limits, TrialJob, read_json, write_json
from jaxbench.parallel.child import ProcessResult, last_line, run_child
from jaxbench.parallel.signals import raise_on_signals
from jaxbench.terminal import warn, width

# How often Slurm is asked, and this process looks whether it is to end.
_POLL_S, _PAUSE_S = 5.0, 0.5
# How long shared storage may take to show here what a node has written.
_STORAGE_S = 60.0
# Seconds: sbatch may refuse a job this long, the pause after that, the time of a command.
_REFUSED_S, _RETRY_S, _COMMAND_S = 600.0, 10.0, 120.0
# Options of sbatch that decide no result: they are no part of a trial's key.
_NOT_DECISIVE = (
    *("account", "begin", "comment", "exclude", "mail-type", "mail-user", "nice", "qos"),
    *("reservation", "time", "time-min"),
)
# Options that the sweep sets itself, or that change what sbatch does or prints. SBATCH_ARRAY_INX is
# the variable of --array.
_REFUSED = (
    *("array", "array-inx", "chdir", "clusters", "error", "help", "job-name", "open-mode"),
    *("output", "parsable", "test-only", "usage", "version", "wait", "wrap"),
)
# A job's number, and Slurm's forms for a job of an array and a part of a heterogeneous job.
_NUMBER = re.compile(r"[0-9]+([_+][0-9]+)?")
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
_COLUMNS = ("JobID", "State", "TimeUsed", "TimeLimit", "NodeList", "Reason", "Name")
# Variables of a job around the sweep would pass for options of its jobs, and a user's habits with
# squeue would hide them.
_DROPPED = ("SLURM_", "SQUEUE_")
# These say which Slurm.
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

    def result(self, status: str, reason: str) -> ProcessResult:
        """Return the result of a trial that did not write one itself."""
        return ProcessResult(status, reason, None, seconds(self.time_used))

    def __str__(self):
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"job {self.number}: {self.state.lower()}{why}"


class _Note(msgspec.Struct):
    """What is noted of an attempt: the job's name, and its number as soon as it is known."""

    name: str
    number: Annotated[str, msgspec.Meta(pattern=f"^{_NUMBER.pattern}\\Z")] | None = None


class _End(msgspec.Struct):
    """How the trial of a job ended, see `ProcessResult`."""

    status: Literal["exited", "oom", "timeout"]
    reason: str | None
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    wall_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    host: str


class _Description(msgspec.Struct):
    """What a job runs; its paths are those beside this file."""

    arguments: tuple[str, ...]
    limits: dict[Literal["timeout_s", "memory_limit_mb"], float | None]


@dataclasses.dataclass
class _Submission:
    """An attempt in Slurm's hands."""

    job: TrialJob
    name: str  # the job's, unlike any other
    # The job's; None if the process that submitted it was killed before it had it.
    number: str | None = None
    line: str = ""  # what is shown of it
    ended: Stopwatch | None = None  # time since its end, if its files are not here yet

    def file(self, suffix: str) -> pathlib.Path:
        """Return the path of a file beside the log."""
        return self.job.log.with_suffix(suffix).absolute()


class SlurmLauncher:
    """See `Launcher`; the options are flags of `jaxbench sweep`.

    The jobs outlive the sweeping process, and the next one takes them up.

    Raises:
      BadInput: there is no Slurm here, or it would not take the jobs.
    """

    def __init__(
        self, limits: Limits, say: Callable[[str], None], slurm: str = "", slots: int = 100
    ):
        self.slots, self._limits, self._say = slots, limits, say
        try:
            self._options = shlex.split(slurm)
            for option in self._options:
                if not option.startswith("--") or _is_one_of(option[2:], _REFUSED):
                    raise ValueError(f"{option}: give --NAME=VALUE, for a job's resources")
            call_slurm(["sbatch", "--test-only", *self._options, "--wrap=true"])
        except (Unreachable, ValueError) as error:
            flag = f"--slurm={slurm}" if slurm else "--launcher=slurm"
            raise BadInput(f"{flag}: {error}") from error
        for name in filter(_is_refused_variable, sorted(os.environ)):
            say(f"{name}={os.environ[name]} is not used: a sweep sets this option of sbatch itself")
        decisive = [one for one in self._options if not _is_one_of(one[2:], _NOT_DECISIVE)]
        self.hardware = ("launcher=slurm", *sorted(decisive))
        self._running: dict[str, _Submission] = {}
        self._since_poll = Stopwatch()

    def start(self, job: TrialJob) -> None:
        one = _Submission(job, f"{job.log.parent.name}-{uuid.uuid4().hex[:8]}")
        # The next process looks for the name, if this one is killed before it has the number.
        write_json(job.note_path, {"name": one.name})
        described = {"arguments": job.arguments, "limits": self._limits._asdict()}
        write_json(one.file(".slurm.json"), described)
        # A percent sign begins a pattern of Slurm's.
        output = str(one.file(".slurm.out")).replace("%", "%%")
        # If it is submitted twice, since an answer was lost, one waits for the other.
        options = ["--requeue", "--dependency=singleton", *self._options]
        options += [f"--job-name={one.name}", f"--output={output}", "--open-mode=append"]
        command = [sys.executable, "-m", "jaxbench.launchers.slurm", one.file(".slurm.json")]
        wrapped = f"--wrap=exec {shlex.join(map(str, command))}"
        watch = Stopwatch()
        answer = None
        while answer is None:
            try:
                answer = call_slurm(["sbatch", "--parsable", *options, wrapped])
            except Unreachable:
                if watch.elapsed_s() > _REFUSED_S:
                    raise
                pause(_RETRY_S)
        # On a cluster with a name this follows, after a semicolon.
        number = (answer.split() or [""])[-1].partition(";")[0]
        one.number = number if _NUMBER.fullmatch(number) else None
        write_json(job.note_path, {"name": one.name, "number": one.number})
        self._running[job.key] = one

    def attach(self, job: TrialJob) -> bool:
        note = read_json(job.note_path, _Note)
        # The name of another job would have that one's end taken for this trial's.
        if note and re.fullmatch(f"{re.escape(job.log.parent.name)}-[0-9a-f]{{8}}", note.name):
            self._running[job.key] = _Submission(job, note.name, note.number)
            return True
        if job.note_path.exists():
            self._say(f"{job.note_path}: names no job of this trial, which starts anew")
        return False

    def wait(self) -> list[Ended]:
        pause(_PAUSE_S)
        if self._since_poll.elapsed_s() < _POLL_S:
            return []
        self._since_poll = Stopwatch()
        try:
            jobs = list_jobs()
        except Unreachable as refusal:  # for a moment, it may be
            for one in self._running.values():
                one.line = str(refusal)
            return []
        ends = [_end_of(one, jobs.get(one.name)) for one in self._running.values()]
        ended = [end for end in ends if end is not None]
        for end in ended:
            del self._running[end.key]
        return ended

    def last_line(self, key: str) -> str:
        return self._running[key].line

    def close(self) -> None:
        numbers = " ".join(one.number for one in self._running.values() if one.number)
        # Commands to copy, each in a line.
        for place, line in enumerate(textwrap.wrap(numbers, width() - len("scancel "))):
            if not place:
                self._say("jobs go on in Slurm; to end them:")
            self._say(f"scancel {line}")
        self._running.clear()


def _end_of(one: _Submission, queued: QueuedJob | None) -> Ended | None:
    """Return how an attempt ended; None if it goes on, or its files are not here yet."""
    key = one.job.key
    one.number = queued.number if queued is not None else one.number
    if queued is not None and queued.state not in ("COMPLETED", "FAILED", *_ENDED_BY_SLURM):
        line = queued.state == "RUNNING" and one.job.log.exists() and last_line(one.job.log)
        one.line = line or str(queued)
        return None
    if queued is not None and queued.state in _ENDED_BY_SLURM:
        status, reason = _ENDED_BY_SLURM[queued.state]
        result = queued.result(status, reason.format(limit=queued.time_limit))
        return Ended(key, result, queued.nodes or None)
    # To open the folder makes network storage look for files that have come since.
    os.listdir(one.job.log.parent)
    if end := read_json(one.file(".end.json"), _End):
        result = ProcessResult(end.status, end.reason, end.exit_code, end.wall_s)
        return Ended(key, result, end.host)
    if queued is None:
        reason = f"Slurm does not know job {one.number or one.name}"
        return Ended(key, ProcessResult(LOST, reason, None, 0.0), None)
    one.ended = one.ended or Stopwatch()
    if one.ended.elapsed_s() < _STORAGE_S:
        return None
    output = one.file(".slurm.out")
    line = output.exists() and last_line(output)
    how = "is damaged" if one.file(".end.json").exists() else "is missing"
    reason = line or f"{queued}; its file {one.file('.end.json')} {how}"
    return Ended(key, queued.result("failed", reason), queued.nodes or None)


def list_jobs() -> dict[str, QueuedJob]:
    """Return {name: job} of the user's jobs, those that ended some minutes ago included.

    Of several jobs of one name it is the first that was submitted.
    """
    form = ",".join(f"{column}:|" for column in _COLUMNS)
    options = ["--noheader", f"--user={os.getuid()}", "--states=all", "--sort=i"]
    output = call_slurm(["squeue", *options, f"--Format={form}"])
    rows = [line.split("|")[:-1] for line in output.splitlines()]
    jobs = [QueuedJob(*r) for r in rows if len(r) == len(_COLUMNS) and _NUMBER.fullmatch(r[0])]
    return {job.name: job for job in reversed(jobs)}


def _is_one_of(option: str, names: Sequence[str]) -> bool:
    """Return whether sbatch may take an option, NAME or NAME=VALUE, for one of these.

    It takes the beginning of a name for the name.
    """
    return any(name.startswith(option.partition("=")[0]) for name in names)


def _is_refused_variable(name: str) -> bool:
    """Return whether sbatch would read an option from a variable that the sweep sets itself."""
    option = name.removeprefix("SBATCH_").lower().replace("_", "-")
    return name.startswith("SBATCH_") and option in _REFUSED


def call_slurm(command: Sequence[str]) -> str:
    """Run one of Slurm's commands; return its output, or raise Unreachable."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith(_DROPPED) or _is_refused_variable(name)) or name in _KEPT
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
        raise Unreachable(f"{command[0]}: is not here; sweep where Slurm takes jobs") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]}: no answer in {_COMMAND_S:g} s") from None
    if done.returncode:
        errors = re.sub("^(sbatch: |squeue: )?(error: )?", "", done.stderr, flags=re.MULTILINE)
        lines = [line.strip() for line in errors.splitlines() if not line.startswith("Try ")]
        reason = "; ".join(filter(None, lines)) or f"exit code {done.returncode}"
        raise Unreachable(f"{command[0]}: {reason}")
    return done.stdout


def seconds(text: str) -> float:
    """Return the seconds of a time as Slurm writes it: [days-][hours:]minutes:seconds.

    0 for a word, such as INVALID: clocks are apart, and the time would be negative.
    """
    numbers = map(float, reversed(re.findall(r"\d+", text)))
    return sum(number * unit for number, unit in zip(numbers, (1, 60, 3600, 86400), strict=False))


# ----------------------------------------------------------------------- what runs inside of a job


def srun_prefix(variables: Mapping[str, str]) -> list[str]:
    """Return what starts a program in all tasks of the job; nothing if it has one task."""
    # Without a number of tasks each node has one.
    tasks = variables.get("SLURM_NTASKS") or variables["SLURM_JOB_NUM_NODES"]
    if tasks == "1":
        return []
    # JAX takes the GPU of each task's number on its node, so that each has to see all of them.
    srun = [shutil.which("srun") or "srun", "--kill-on-bad-exit=0", "--gpu-bind=none"]
    cpus = variables.get("SLURM_CPUS_PER_TASK")
    return srun + ([f"--cpus-per-task={cpus}"] if cpus else [])


def take_up(run_path: pathlib.Path, log: pathlib.Path, restart: str) -> list[str]:
    """Prepare what earlier starts of this job have left; return the arguments that resume it.

    What is put aside has the name of this `restart`.
    """
    if log.exists():
        log.rename(log.with_suffix(f".before-{restart}.log"))
    if (read_json(run_path / "run.json", dict) or {}).get("mode") == "train":
        return ["--resume=auto"]
    if run_path.exists():
        run_path.rename(run_path.with_suffix(f".before-{restart}"))
    return []


def main(path: pathlib.Path) -> None:
    """Run the trial of a job file to its end, and write how it ended."""
    described = read_json(path, _Description)
    if described is None:
        raise BadInput(f"{path}: is missing, or describes no job of a sweep")
    run_path = path.with_name(path.name.removesuffix(".slurm.json"))
    log, end = run_path.with_suffix(".log"), run_path.with_suffix(".end.json")
    if read_json(end, _End):  # it was submitted twice
        return
    prefix = srun_prefix(os.environ)
    more = ["--distributed=auto"] if prefix else []
    if restart := os.environ.get("SLURM_RESTART_COUNT"):
        more += take_up(run_path, log, restart)
    command = TrialJob("", described.arguments, run_path, log).command
    result = run_child([*prefix, *command, *more], log, **described.limits)
    write_json(end, result._asdict() | {"host": platform.node()})


if __name__ == "__main__":
    raise_on_signals()
    try:
        main(pathlib.Path(sys.argv[1]))
    except (KeyboardInterrupt, Terminated):
        sys.exit(143)
    except BadInput as error:
        warn(f"jaxbench: {error}")
        sys.exit(2)
