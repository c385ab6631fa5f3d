"""Run the trials of a sweep, each in a process of its own, and keep their results."""

import contextlib
import pathlib
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from jaxbench.clock import duration, now
from jaxbench.distributed.child import ProcessResult
from jaxbench.errors import BadInput
from jaxbench.paths import user_path
from jaxbench.records.next_steps import say_command, say_resume
from jaxbench.records.reader import load_run
from jaxbench.records.run_dir import close_abandoned, folder_name
from jaxbench.records.schema.sweep import TrialFigures, TrialResult
from jaxbench.records.writers.console import Console
from jaxbench.sweeps.grid import Trial
from jaxbench.sweeps.live_table import LiveTable
from jaxbench.sweeps.sweep_dir import SweepDir, check_sweepdir, open_sweepdir
from jaxbench.sweeps.tables import differences, exit_code, figures_of, seed_statistics, trial_table

# A run's own statuses that a sweep takes over; any other is a failure.
_STATUSES = ("done", "oom", "invalid")


class TrialRunner:
    """Runs trials and keeps their results.

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
        self.folder, self.console = folder, console
        self._launch, self._retry = launch, retry
        # Trials that ended in this process, which runs them only once: {key: seconds}.
        self._wall_s: dict[str, float] = {}
        self._live = LiveTable()

    def show(self, trials: Sequence[Trial]) -> None:
        """Have the table on a terminal hold all trials, also those whose turn is to come."""
        for trial in trials:
            self._live.add(trial, self.result(trial))

    def result(self, trial: Trial) -> TrialResult | None:
        """Return a trial's result, None where it is still to run."""
        result = self.folder.results.get(trial.key)
        if result and trial.key not in self._wall_s and result.status in self._retry:
            return None
        return result

    def run(self, trial: Trial, place: str, left: int = 1) -> TrialResult:
        """Run a trial and keep its result.

        Args:
          place: where it stands in the sweep, such as [2/9].
          left: trials that are still to run, this one included.
        """
        run_path, log = self.folder.new_attempt(trial.folder)
        what, ended = f"{place} {trial.title}", len(self._wall_s)
        self._live.start(trial)
        is_live = self.console.show(lambda: self._live)
        if not is_live:
            self.console.say(f"{what} ...")

        def watch(line: str) -> None:
            self._live.output = line
            if not self.console.show(lambda: self._live):
                self.console.progress(what, ended, ended + left, line)

        process = self._launch(
            [sys.executable, "-m", "jaxbench.main", *trial.arguments, f"--workdir={run_path}"],
            log,
            watch=watch,
        )
        result = self._result(trial, process, run_path, log)
        self.folder.add(result)
        self._wall_s[trial.key] = result.wall_s
        left_s = (left - 1) * statistics.mean(self._wall_s.values())
        left_for = f"about {duration(left_s)} left" if left > 1 else ""
        self._live.end(trial, result, left_for)
        if not is_live:
            self.console.say(
                "; ".join(filter(None, [f"{what}: {describe_outcome(result)}", left_for]))
            )
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
            status = ended if ended in _STATUSES else "failed"
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


@contextlib.contextmanager
def running_sweep(
    trials: Sequence[Trial], sweepdir: str | None, console: Console
) -> Iterator[SweepDir]:
    """Open the folder of a sweep of these trials for the `with`; say how to resume it.

    Args:
      trials: all of them.
      sweepdir: a new or empty folder, or that of a sweep to resume; None makes
        `runs/EXPERIMENT/sweep-TIME`.
      console: is closed at the end.
    """
    path = user_path(sweepdir or _default_path(trials))
    with open_sweepdir(path) as folder:
        console.say(f"{len(trials)} trials, results in {folder.path}")
        try:
            yield folder
        except BaseException:
            console.close()
            say_resume(console, "sweep", {"sweepdir": str(folder.path)})
            raise
        finally:
            console.close()


def _default_path(trials: Sequence[Trial]) -> pathlib.Path:
    names = {trial.config.name for trial in trials}
    parent = pathlib.Path("runs", folder_name(names.pop()) if len(names) == 1 else "several")
    stamp = now().strftime("%Y%m%d-%H%M%S")
    numbers = ("", *(f"-{number}" for number in range(2, 1000)))
    path = next(p for n in numbers if not (p := parent / f"sweep-{stamp}{n}").exists())
    check_sweepdir(path)
    return path


def run_trials(runner: TrialRunner, trials: Sequence[Trial]) -> int:
    """Run the trials that have no result yet; print and write the tables; return the exit code."""
    folder, console = runner.folder, runner.console
    runner.show(trials)
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
    rows, seed_lines = seed_statistics(results)
    if rows:
        folder.write_table("seeds.csv", rows)
        seed_lines.append(f"statistics over seeds: {folder.path / 'seeds.csv'}")
    lines = [*trial_table(trials, results), *differences(results), *seed_lines]
    if any(result.status == "failed" for result in results):
        lines.append(f"logs of the trials: {folder.path / 'trials'}")
    for line in (*lines, f"table: {folder.path / 'sweep.csv'}"):
        console.say(line)
    say_command(console, "report", "jaxbench", "report", str(folder.path))
    return exit_code(result.status for result in results)


def describe_outcome(result: TrialResult) -> str:
    """Return how a trial ended, for people."""
    reason = f" ({result.reason})" if result.reason else ""
    return f"{result.status}{reason} after {duration(result.wall_s)}"
