"""Run a grid that is given as Python values."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxbench.cli.overrides import field_text
from jaxbench.config import Experiment
from jaxbench.errors import BadInput, one_of
from jaxbench.launchers.launcher import Limits, create_launcher
from jaxbench.modes import find_mode
from jaxbench.modes.options import COORDINATOR_FLAGS, OPTIONS, check_choice, mode_keywords
from jaxbench.records.reader import flat
from jaxbench.records.writers.console import create_console
from jaxbench.results.answers import SweepResult
from jaxbench.schema import TRIAL_STATUSES
from jaxbench.sweeps.grid import Trial, make_trials
from jaxbench.sweeps.tables import trial_table
from jaxbench.sweeps.trials import run_trials, running_sweep

# Options of jaxbench.main that cannot be for the trials of a sweep.
_OF_ONE_RUN = {"resume", *COORDINATOR_FLAGS}


def sweep(
    experiment: str | os.PathLike | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    mode: str | None = None,
    sweepdir: str | os.PathLike | None = None,
    options: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    retry: Sequence[str] = (),
    launcher: str = "local",
    launcher_options: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **fields: Any,
) -> SweepResult:
    """Run an experiment for every combination of a grid, each in a separate process.

    A trial that runs out of memory, takes too long or fails is a result too.

    Args:
      experiment: a name or the path of an experiment file; None if the grid has `experiment`.
      grid: `{"batch_size": [128, 256], "precision": ["fp32", "bf16"]}`: fields, as dotted paths.
      mode, sweepdir, timeout_s, retry, launcher: as the flags of `jaxbench sweep`.
      options: options of the mode by name, such as `{"target_accuracy": 0.9}`.
      launcher_options: the launcher's flags by name, such as `{"ray_address": "auto"}`.
      quiet: whether no progress is shown.
      **fields: fields of all trials, see `jaxbench.train`.

    Returns:
      The trials' runs, and their table.

    Raises:
      BadInput: a name or value that is not allowed; nothing has been written.
      KeyboardInterrupt: Ctrl-C; `sweepdir` resumes the sweep.
    """
    console, options = create_console(quiet), options or {}
    if isinstance(experiment, Experiment):
        raise BadInput("a sweep's trials are processes: give a name or the path of a .py file")
    if not grid:
        raise BadInput("give a grid, such as {'batch_size': [128, 256]}")
    for name, values in grid.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise BadInput(f"{name}={values!r} in the grid: must be a list, such as [{values!r}]")
    grid = {name: [field_text(value) for value in values] for name, values in grid.items()}
    for name, values in grid.items():
        if not values or "" in values:
            raise BadInput(f"{name}={values!r} in the grid: a value is missing")
    if timeout_s is not None and not timeout_s > 0:  # nan, too
        raise BadInput(f"timeout_s={timeout_s}: must be more than 0")
    for status in retry:
        check_choice("retry", status, TRIAL_STATUSES[1:])
    trials = make_trials(
        None if experiment is None else os.fspath(experiment),
        [f"--experiment.{name}={field_text(value)}" for name, value in flat(fields)],
        grid,
        [f"--{name}={value}" for name, value in options.items()] + [f"--mode={mode}"] * bool(mode),
    )
    for trial in trials:
        _check_options(trial, mode, options)
    made = create_launcher(launcher, Limits(timeout_s), console.say, launcher_options or {})
    trials = [trial.on(made.hardware) for trial in trials]
    path = os.fspath(sweepdir) if sweepdir else None
    with running_sweep(trials, path, console, made, retry) as runner:
        run_trials(runner, trials)
        results = [runner.folder.results[trial.key] for trial in trials]
    rows = [result.row() | trial.values for trial, result in zip(trials, results, strict=True)]
    return SweepResult(runner.folder.path, rows, trial_table(trials, results))


def _check_options(trial: Trial, mode: str | None, options: Mapping[str, Any]) -> None:
    mode = find_mode(trial.config, mode)
    if mode == "describe":
        raise BadInput("mode='describe' runs nothing; a sweep is for the other modes")
    flags = {name for name, one in OPTIONS.items() if one.kind != "main" and mode in one.modes}
    allowed = sorted(flags - _OF_ONE_RUN)
    for name in options:
        if name not in allowed:
            raise BadInput(f"options: --mode={mode} has no {name!r}; {one_of(name, allowed)}")
    mode_keywords(mode, trial.config, options)
