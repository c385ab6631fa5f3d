"""Run the trials of a sweep, each in a process of its own, and keep their results."""

import pathlib
import statistics
import sys
from collections.abc import Callable, Collection, Sequence

from jaxbench.clock import duration, now
from jaxbench.distributed.child import ProcessResult
from jaxbench.errors import BadInput
from jaxbench.records.reader import load_run
from jaxbench.records.run_dir import close_abandoned
from jaxbench.records.schema.sweep import TrialFigures, TrialResult
from jaxbench.records.writers.console import Console
from jaxbench.sweeps.grid import Trial
from jaxbench.sweeps.sweep_dir import SweepDir
from jaxbench.sweeps.tables import differences, exit_code, figures_of, seed_statistics, trial_table

# How a run's own status reads in a sweep; any other is a failure.
_STATUSES = {"done": "done", "oom": "oom", "invalid": "invalid"}


class TrialRunner:
    """Runs trials and keeps their results.

    Attributes:
      folder: where results are kept.
      console: where progress is shown.

    Args:
      launch: (command, log file, watch=function of its last line) -> how the process ended.
      retry: statuses with which a trial of an earlier process is run once more.
    """

    def __init__(
        self,
        folder: SweepDir,
        console: Console,
        launch: Callable[..., ProcessResult],
        retry: Collection[str] = (),
    ):
        self.folder = folder
        self.console = console
        self._launch = launch
        self._retry = retry
        # Trials that ended in this process, which runs them only once: {key: seconds}.
        self._wall_s: dict[str, float] = {}

    def result(self, trial: Trial) -> TrialResult | None:
        """Return a trial's result, None where it is still to run."""
        result = self.folder.results.get(trial.key)
        if result and trial.key not in self._wall_s and result.status in self._retry:
            return None
        return result

    def run(self, trial: Trial, place: str, left: int = 1) -> TrialResult:
        """Run a trial and keep its result.

        Args:
          trial: the trial.
          place: where it stands in the sweep, such as [2/9].
          left: trials that are still to run, this one included.
        """
        run_path, log = self.folder.new_attempt(trial.folder)
        self.console.say(f"{place} {trial.title} ...")
        ended = len(self._wall_s)
        process = self._launch(
            [sys.executable, "-m", "jaxbench.main", *trial.arguments, f"--workdir={run_path}"],
            log,
            watch=lambda line: self.console.progress(
                f"{place} {trial.title}", ended, ended + left, line
            ),
        )
        result = self._result(trial, process, run_path, log)
        self.folder.add(result)
        self._wall_s[trial.key] = result.wall_s
        outcome = f"{place} {trial.title}: {describe_outcome(result)}"
        if left > 1:
            left_s = (left - 1) * statistics.mean(self._wall_s.values())
            outcome += f"; about {duration(left_s)} left"
        self.console.say(outcome)
        return result

    def _result(
        self, trial: Trial, process: ProcessResult, run_path: pathlib.Path, log: pathlib.Path
    ) -> TrialResult:
        status, reason, run = process.status, process.reason, None
        if run_path.exists():
            abandoned = "oom" if status == "oom" else "failed"
            close_abandoned(run_path, abandoned, reason or "ended without a record of why")
            try:
                run = load_run(str(run_path))
            except BadInput as error:
                reason = reason or str(error)
        if status == "exited":
            ended = run.document["status"] if run else "failed"
            status = _STATUSES.get(ended, "failed")
            if run is not None and ended != "done":
                reason = run.document.get("reason") or reason
        environment = run.document.get("environment", {}) if run else {}
        return TrialResult(
            place=trial.place,
            status=status,
            figures=figures_of(run) if run else TrialFigures(),
            reason=None if status == "done" else reason,
            wall_s=process.wall_s,
            run=str(run_path.relative_to(self.folder.path)) if run else None,
            log=str(log.relative_to(self.folder.path)),
            key=trial.key,
            experiment=trial.spec,
            exit_code=process.exit_code,
            finished_at=now().isoformat(),
            commit=(environment.get("git") or {}).get("commit"),
            **{
                name: environment.get(name)
                for name in ("num_devices", "device_kind", "backend", "hostname", "versions")
            },
        )


def run_trials(runner: TrialRunner, trials: Sequence[Trial]) -> int:
    """Run the trials that have no result yet; print and write the tables; return the exit code."""
    folder, console = runner.folder, runner.console
    left = sum(runner.result(trial) is None for trial in trials)
    if left < len(trials):
        console.say(f"{len(trials) - left} of them are done already")
    for number, trial in enumerate(trials, 1):
        if runner.result(trial) is None:
            runner.run(trial, f"[{number}/{len(trials)}]", left)
            left -= 1
            known = [folder.results[one.key] for one in trials if one.key in folder.results]
            folder.write_table("sweep.csv", [result.row() for result in known])
    results = [folder.results[trial.key] for trial in trials]
    folder.write_table("sweep.csv", [result.row() for result in results])
    console.close()  # a bar below a table would be drawn again below each line
    lines = [*trial_table(trials, results), *differences(results)]
    rows, seed_lines = seed_statistics(results)
    lines += seed_lines
    if rows:
        folder.write_table("seeds.csv", rows)
        lines.append(f"table: {folder.path / 'seeds.csv'}")
    for line in (*lines, f"table: {folder.path / 'sweep.csv'}"):
        console.say(line)
    return exit_code(result.status for result in results)


def describe_outcome(result: TrialResult) -> str:
    """Return how a trial ended, for people."""
    reason = f" ({result.reason})" if result.reason else ""
    return f"{result.status}{reason} after {duration(result.wall_s)}"
