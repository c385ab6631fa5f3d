"""Run trials as jobs of Slurm. All nodes must see this Python and the sweep's folder."""

import dataclasses
import os
import pathlib
import shlex
import sys
import uuid
from collections.abc import Callable, Sequence

from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import BadInput, Unreachable
from jaxbench.launchers.launcher import LOST, Ended, Limits, TrialJob, read_json, write_json
from jaxbench.launchers.run_job import read_end, write_job
from jaxbench.launchers.slurm_queue import (
    QueuedJob,
    Refused,
    call_slurm,
    hardware_options,
    list_jobs,
    submit,
)
from jaxbench.parallel.child import ProcessResult, last_line

_PAUSE_S = 0.5
# Slurm is asked more rarely while nothing happens: after a tenth of the time since something did.
_LEAST_POLL_S, _MOST_POLL_S = 1.0, 30.0
# How long shared storage may take to show here what a node has written.
_STORAGE_S = 60.0
# How often squeue may miss a job that sbatch gave no number for, before it is submitted again.
_UNSEEN_POLLS = 3
# How long sbatch may refuse while none of the sweep's jobs is in the queue.
_REFUSED_S = 600.0


@dataclasses.dataclass
class _Submission:
    """An attempt in Slurm's hands.

    Attributes:
      name: the job's, unlike any other.
      number: the job's; None where sbatch has not taken it yet.
      unseen: how often squeue has missed it since it was last submitted without a number.
      line: what is shown of it.
      ended: time since its end, where its files are not here yet.
    """

    job: TrialJob
    name: str
    number: str | None = None
    unseen: int = 0
    line: str = ""
    ended: Stopwatch | None = None

    def file(self, suffix: str) -> pathlib.Path:
        """Return the path of a file beside the log."""
        return self.job.log.with_suffix(suffix).absolute()


class SlurmLauncher:
    """See `Launcher`. The jobs outlive the sweeping process, and the next one takes them up.

    Args:
      options: for sbatch.
    """

    def __init__(
        self, options: Sequence[str], slots: int, limits: Limits, say: Callable[[str], None]
    ):
        self.slots = slots
        self.hardware = ("launcher=slurm", *hardware_options(options, os.environ))
        self._options, self._limits, self._say = options, limits, say
        self._running: dict[str, _Submission] = {}
        self._since_poll, self._since_change = Stopwatch(), Stopwatch()
        self._since_refusal: Stopwatch | None = None

    def start(self, job: TrialJob) -> None:
        one = _Submission(job, f"{job.log.parent.name}-{uuid.uuid4().hex[:8]}")
        # The next process looks for the name, if this one is killed before it has the number.
        write_json(job.note_path, {"name": one.name})
        write_job(
            one.file(".slurm.json"),
            job.arguments,
            self._limits._asdict(),
            {},
            run_path=job.run_path.absolute(),
            log=job.log.absolute(),
            end=one.file(".end.json"),
        )
        self._running[job.key] = one
        self._submit(one)

    def _submit(self, one: _Submission) -> None:
        one.unseen = 0
        # A percent sign begins a pattern of Slurm's.
        output = str(one.file(".slurm.out")).replace("%", "%%")
        options = [f"--job-name={one.name}", "--requeue", f"--output={output}"]
        # If it is submitted twice, since an answer was lost, one waits for the other.
        options += ["--dependency=singleton", "--open-mode=append", *self._options]
        command = [sys.executable, "-m", "jaxbench.launchers.slurm_job", one.file(".slurm.json")]
        try:
            number = submit(options, f"exec {shlex.join(map(str, command))}")
        except Refused as refusal:
            one.line = str(refusal)
            self._since_refusal = self._since_refusal or Stopwatch()
        else:
            self._since_refusal = None
            self._take_note(one, number)

    def _take_note(self, one: _Submission, number: str) -> None:
        one.number = number
        write_json(one.job.note_path, {"name": one.name, "number": number})
        self._since_change = Stopwatch()

    def attach(self, job: TrialJob) -> bool:
        note = read_json(job.note_path)
        if "name" not in note:
            return False
        one = _Submission(job, note["name"], note.get("number"))
        if one.number is None and not one.file(".end.json").exists():
            try:
                queued = list_jobs().get(one.name)
            except Refused as refusal:
                raise Unreachable(str(refusal)) from refusal
            if queued is None:
                return False
            self._take_note(one, queued.number)
        self._running[job.key] = one
        return True

    def wait(self) -> list[Ended]:
        pause(_PAUSE_S)
        poll_s = min(_MOST_POLL_S, max(_LEAST_POLL_S, self._since_change.elapsed_s() / 10))
        if self._since_poll.elapsed_s() < poll_s:
            return []
        try:
            jobs = list_jobs()
        except Refused as refusal:  # for a moment, it may be
            for one in self._running.values():
                one.line = str(refusal)
            return []
        finally:
            self._since_poll = Stopwatch()
        ended = []
        for key, one in [*self._running.items()]:
            queued = jobs.get(one.name)
            if queued is not None and one.number != queued.number:  # sbatch gave no answer
                self._take_note(one, queued.number)
            if (end := _end_of(one, queued)) is not None:
                del self._running[key]
                self._since_change = Stopwatch()
                ended.append(end)
            elif one.number is None:
                one.unseen += 1
                if one.unseen >= _UNSEEN_POLLS:
                    self._submit(one)
        refused = self._since_refusal and self._since_refusal.elapsed_s() > _REFUSED_S
        if self._running and refused and all(one.number is None for one in self._running.values()):
            raise Unreachable(one.line)
        return ended

    def last_line(self, key: str) -> str:
        return self._running[key].line

    def close(self) -> None:
        numbers = [one.number for one in self._running.values() if one.number]
        if numbers:
            self._say(f"jobs go on in Slurm; to end them: scancel {' '.join(numbers)}")
        self._running.clear()


def _end_of(one: _Submission, queued: QueuedJob | None) -> Ended | None:
    """Return how an attempt ended; None if it goes on, or its files are not here yet."""
    if queued is not None and not queued.has_ended:
        line = queued.state == "RUNNING" and one.job.log.exists() and last_line(one.job.log)
        one.line = line or str(queued)
        return None
    result, nodes = None, None
    if queued is not None:
        result, nodes = queued.ended_by_slurm(), queued.nodes or None
    # To open the folder makes network storage look for files that have come since.
    os.listdir(one.job.log.parent)
    if not result and (end := read_end(one.file(".end.json"))):
        result, nodes = end
    elif queued is None and one.number is not None:
        # It ended long ago, and not by itself.
        reason = f"Slurm does not know job {one.number} any more"
        result = ProcessResult(LOST, reason, None, 0.0)
    elif queued is not None and not result:
        one.ended = one.ended or Stopwatch()
        if one.ended.elapsed_s() >= _STORAGE_S:
            output = one.file(".slurm.out")
            line = output.exists() and last_line(output)
            reason = line or f"{queued}; it wrote nothing to {output.parent}"
            result = queued.result("failed", reason)
    return Ended(one.job.key, result, nodes) if result else None


def create(
    limits: Limits, say: Callable[[str], None], slurm: str = "", slots: int = 100
) -> SlurmLauncher:
    """Make the launcher, after asking Slurm whether it would take such jobs.

    Args:
      slurm: options for sbatch, as in a shell.
      slots: how many jobs are in the queue at once.

    Raises:
      BadInput: there is no Slurm here, or it would not take the jobs.
    """
    flag = f"--slurm={slurm}" if slurm else "--launcher=slurm"
    try:
        options = shlex.split(slurm)
        launcher = SlurmLauncher(options, slots, limits, say)
        call_slurm(["sbatch", "--test-only", *options, "--wrap=true"])
    except (Refused, ValueError) as error:
        raise BadInput(f"{flag}: {error}") from error
    return launcher
