"""Run the trials of a sweep, each in a process of its own, and keep their results."""

import contextlib
import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxbench.clock import Stopwatch, now, rough_duration
from jaxbench.errors import BadInput, Unreachable
from jaxbench.launchers.launcher import LOST, Ended, Launcher, TrialJob
from jaxbench.paths import user_path
from jaxbench.records.next_steps import say_command, say_resume
from jaxbench.records.reader import load_run
from jaxbench.records.run_dir import close_abandoned, folder_name
from jaxbench.records.writers.console import Console
from jaxbench.schema import TrialFigures, TrialResult
from jaxbench.sweeps.grid import Trial
from jaxbench.sweeps.live_table import LiveTable
from jaxbench.sweeps.sweep_dir import SweepDir, open_sweepdir
from jaxbench.sweeps.tables import (
    differences,
    exit_code,
    figures_of,
    repeated_warnings,
    seed_statistics,
    trial_table,
)

# A run's own statuses that a sweep takes over; any other is a failure.
_STATUSES = ("done", "oom", "invalid")
# A trial that loses its machine more often is `lost`: it may be the reason.
_MOST_LOSSES = 2


@dataclasses.dataclass
class _Attempt:
    """A trial that waits or runs."""

    position: str  # in the sweep, such as [2/9]
    trial: Trial
    losses: int = 0
    line: str = ""
    watch: Stopwatch = dataclasses.field(default_factory=Stopwatch)

    @property
    def what(self) -> str:
        return f"{self.position} {self.trial.title}"


class TrialRunner:
    """Runs trials and keeps their results.

    Args:
      retry: statuses with which a trial of an earlier process is run once more.
    """

    def __init__(
        self, folder: SweepDir, console: Console, launcher: Launcher, retry: Collection[str] = ()
    ):
        self.folder, self.console = folder, console
        self.launcher, self._retry = launcher, retry
        # Trials that ended in this process, which runs them only once: {key: seconds}.
        self._wall_s: dict[str, float] = {}
        self._running: dict[str, _Attempt] = {}
        # Their run directories, not made yet, and logs.
        self._jobs: dict[str, TrialJob] = {}
        # Those of the table on a terminal.
        self._trials: dict[str, Trial] = {}
        self._live = LiveTable(self._trials, self._running, self.result)

    def show(self, trials: Sequence[Trial]) -> None:
        """Have the table on a terminal hold all trials, also those whose turn is to come."""
        self._trials |= {trial.key: trial for trial in trials}

    def result(self, key: str) -> TrialResult | None:
        """Return the result of a trial's key, None if it is still to run."""
        result = self.folder.results.get(key)
        retried = result and key not in self._wall_s and result.status in self._retry
        return None if retried else result

    def run(self, trials: Mapping[str, Trial]) -> Iterator[TrialResult]:
        """Run trials; keep and yield their results as they end; raise Unreachable without slots."""
        attempts = [_Attempt(position, trial) for position, trial in trials.items()]
        # What an earlier process has started comes first, for it has taken slots.
        waiting = [attempt for attempt in attempts if not self._attach(attempt)]
        while waiting or self._running:
            while waiting and len(self._running) < self.launcher.slots:
                attempt = waiting.pop(0)
                job = self.folder.new_attempt(attempt.trial)
                self.launcher.start(job)
                self._begin(attempt, job)
            if not self._running:
                raise Unreachable(f"nothing is left to run trials on; {len(waiting)} are to run")
            for ended in self.launcher.wait():
                attempt = self._running[ended.key]
                if ended.process.status == LOST and attempt.losses < _MOST_LOSSES:
                    attempt.losses += 1
                    waiting.insert(0, self._running.pop(ended.key))
                    lost = f"lost with {ended.host or 'its machine'} ({ended.process.reason})"
                    self.console.say(f"{attempt.what}: {lost}; it runs again")
                else:
                    yield self._keep(attempt, ended, len(waiting))
            self._draw(len(waiting))

    def say_results(self, lines: Sequence[str], table: str) -> None:
        """Print the last lines of a sweep: what it found, and where its table is."""
        self.console.close()  # a bar below a table would be drawn again below each line
        for line in (*lines, f"table: {self.folder.path / table}"):
            self.console.say(line)
        say_command(self.console, "report", "jaxbench", "report", str(self.folder.path))

    def _attach(self, attempt: _Attempt) -> bool:
        job = self.folder.open_attempt(attempt.trial)
        if job is None or not self.launcher.attach(job):
            return False
        self._begin(attempt, job)
        return True

    def _begin(self, attempt: _Attempt, job: TrialJob) -> None:
        key = attempt.trial.key
        self._jobs[key] = job
        attempt.watch, attempt.line = Stopwatch(), ""
        self._trials[key], self._running[key] = attempt.trial, attempt
        if not self.console.show(lambda: self._live):
            self.console.say(f"{attempt.what} ...")

    def _draw(self, waiting: int) -> None:
        for key, attempt in self._running.items():
            attempt.line = " ".join(self.launcher.last_line(key).split())
            if not self.console.show(lambda: self._live):
                ended = len(self._wall_s)
                total = ended + len(self._running) + waiting
                self.console.progress(attempt.what, ended, total, attempt.line)

    def _keep(self, attempt: _Attempt, ended: Ended, waiting: int) -> TrialResult:
        result = self._result(attempt, ended)
        self.folder.add(result)
        self._wall_s[result.key] = result.wall_s
        del self._running[result.key]
        left = waiting + len(self._running)
        at_once = max(1, min(left, self.launcher.slots))
        left_s = left * statistics.fmean(self._wall_s.values()) / at_once
        self._live.left = left_for = f"about {rough_duration(left_s)} left" if left else ""
        if not self.console.show(lambda: self._live):
            on = f" on {ended.host}" if self.launcher.hardware and ended.host else ""
            outcome = f"{attempt.what}: {describe_outcome(result)}{on}"
            self.console.say("; ".join(filter(None, [outcome, left_for])))
        return result

    def _result(self, attempt: _Attempt, ended: Ended) -> TrialResult:
        trial, process, job = attempt.trial, ended.process, self._jobs[ended.key]
        run_path = job.run_path
        status, reason, run = process.status, process.reason, None
        if run_path.exists():
            abandoned = "oom" if status == "oom" else "failed"
            close_abandoned(run_path, abandoned, reason or "ended without a record of why")
            try:
                run = load_run(str(run_path))
            except BadInput as error:
                reason = reason or str(error)
        if status == "exited":
            recorded = run.document.status if run else "failed"
            status = recorded if recorded in _STATUSES else "failed"
            if run is not None and recorded != "done":
                reason = run.document.reason or reason
        environment = run.document.environment if run else {}
        ended_as = "timeout" if status == "timeout" else None
        return TrialResult(
            place=trial.place,
            status=status,
            figures=figures_of(run, ended_as) if run else TrialFigures(),
            reason=None if status == "done" else reason,
            warnings=[*((run and run.document.summary) or {}).get("warnings", ())],
            wall_s=process.wall_s,
            run=str(run_path.relative_to(self.folder.path)) if run else None,
            log=str(job.log.relative_to(self.folder.path)),
            key=trial.key,
            experiment=trial.spec,
            exit_code=process.exit_code,
            finished_at=now().isoformat(),
            commit=(environment.get("git") or {}).get("commit"),
            hostname=environment.get("hostname") or ended.host,
            num_devices=environment.get("num_devices"),
            device_kind=environment.get("device_kind"),
            backend=environment.get("backend"),
            versions=environment.get("versions"),
        )


@contextlib.contextmanager
def running_sweep(
    trials: Sequence[Trial],
    sweepdir: str | None,
    console: Console,
    launcher: Launcher,
    retry: Collection[str],
) -> Iterator[TrialRunner]:
    """Open the folder of a sweep of these trials for the `with`; say how to resume it.

    Args:
      sweepdir: a new or empty folder, or that of a sweep to resume; None makes
        `runs/EXPERIMENT/sweep-TIME`.
      console, launcher: are closed at the end.
      retry: see `TrialRunner`.
    """
    path = user_path(sweepdir or _default_path(trials))
    with open_sweepdir(path) as folder:
        console.say(f"{len(trials)} trials, results in {folder.path}")
        try:
            with contextlib.closing(console), contextlib.closing(launcher):
                yield TrialRunner(folder, console, launcher, retry)
        except BaseException:
            say_resume(console, sweepdir=str(folder.path))
            raise


def _default_path(trials: Sequence[Trial]) -> pathlib.Path:
    names = {trial.config.name for trial in trials}
    parent = folder_name(names.pop()) if len(names) == 1 else "several"
    path = pathlib.Path("runs", parent, now().strftime("sweep-%Y%m%d-%H%M%S"))
    # Of sweeps that are started in the same second.
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], numbered) if not one.exists())


def run_trials(runner: TrialRunner, trials: Sequence[Trial]) -> int:
    """Run the trials that have no result yet; print and write the tables; return the exit code."""
    folder, console = runner.folder, runner.console
    runner.show(trials)
    left = {
        f"[{number}/{len(trials)}]": trial
        for number, trial in enumerate(trials, 1)
        if runner.result(trial.key) is None
    }
    if len(left) < len(trials):
        console.say(f"{len(trials) - len(left)} of them are done already")
    # While trials run, in the order of their ends.
    if done := [result for trial in trials if (result := runner.result(trial.key))]:
        folder.write_table("sweep.csv", [result.row() for result in done])
    for result in runner.run(left):
        folder.add_rows("sweep.csv", [result.row()])
    results = [folder.results[trial.key] for trial in trials]
    folder.write_table("sweep.csv", [result.row() for result in results])
    rows, seed_lines = seed_statistics(results)
    if rows:
        folder.write_table("seeds.csv", rows)
        seed_lines.append(f"statistics over seeds: {folder.path / 'seeds.csv'}")
    warnings = [*differences(results, runner.launcher.hardware), *repeated_warnings(results)]
    lines = [*trial_table(trials, results), *warnings, *seed_lines]
    if any(result.status == "failed" for result in results):
        lines.append(f"logs of the trials: {folder.path / 'trials'}")
    runner.say_results(lines, "sweep.csv")
    return exit_code(result.status for result in results)


def describe_outcome(result: TrialResult) -> str:
    """Return how a trial ended, for people."""
    reason = f" ({result.reason})" if result.reason else ""
    return f"{result.status}{reason} after {rough_duration(result.wall_s)}"
