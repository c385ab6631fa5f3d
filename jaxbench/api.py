"""The Python API: `import jaxbench; run = jaxbench.train("cnn10", batch_size=512)`.

Each function does what the command of its name does, with the same checks and messages, and leaves
the same records. Ctrl-C ends a run as it ends the command, with a checkpoint, and raises
KeyboardInterrupt; afterwards it is Python's own again.
"""

import inspect
import os
import pathlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxbench.cli import registry
from jaxbench.cli.overrides import create_experiment
from jaxbench.config import Experiment
from jaxbench.modes import find_mode, import_mode
from jaxbench.modes.options import mode_keywords, options_of
from jaxbench.parallel.processes import check_single_host
from jaxbench.parallel.signals import handle_ctrl_c
from jaxbench.reports.write import write_report
from jaxbench.results.answers import Comparison, Description, SweepResult, paths_of
from jaxbench.results.run import Run
from jaxbench.results.tables import runs_table

_AnyExperiment = str | os.PathLike | Experiment
_Paths = str | os.PathLike | Sequence[str | os.PathLike]


def _function(mode: str, summary: str) -> Callable[..., Run]:
    """Return the function that runs a mode, with a keyword for each of its options."""

    def run(experiment="quickstart", *, workdir=None, quiet=False, **fields) -> Run:
        return _measure(mode, experiment, workdir, quiet, fields)

    options, lines = options_of(mode), []
    for name, option in options.items():
        lines += textwrap.wrap(f"  {name}: {option.help}", 96, subsequent_indent="    ")
    run.__name__ = run.__qualname__ = mode
    run.__doc__ = inspect.cleandoc(summary) + _DETAILS.format(options="\n".join(lines))
    signature = inspect.signature(run)
    first, workdir, quiet, fields = signature.parameters.values()
    keywords = [quiet.replace(name=name, default=one.default) for name, one in options.items()]
    run.__signature__ = signature.replace(parameters=[first, workdir, *keywords, quiet, fields])
    return run


_DETAILS = """

Args:
  experiment: a name (`cnn10`, or `cnn10:tiny` for the small variant), the path of an experiment
    file, or a `jaxbench.config.Config`.
  workdir: a new or empty folder for the records; None makes `runs/EXPERIMENT/TIME`.
{options}
  quiet: whether no progress is shown.
  **fields: fields of the experiment: `batch_size=512`, `optimizer={{"learning_rate": 0.1}}` or
    `**{{"data.path": "x"}}`.

Returns:
  The run, read back from its directory. Its status is `invalid` if a value fails a sanity check.

Raises:
  BadInput: a name or value that is not allowed; nothing has been written.
  KeyboardInterrupt: Ctrl-C; the run is recorded as interrupted.
  Exception: whatever else ended the run; status and reason are in its run.json.
"""

train = _function(
    "train",
    """Train an experiment, evaluate it after every epoch, and return its run.

    After Ctrl-C the run can be resumed from the checkpoint that it has written. Of a final state
    that was written, `Run.restore_state` returns the arrays.
    """,
)
throughput = _function(
    "throughput",
    """Measure how fast the devices train an experiment and evaluate it.

    `run.images_per_s` is the rate of the training step, `run.table("throughput")` has a row for
    each stage.
    """,
)
scaling = _function(
    "scaling",
    """Measure an experiment's training step on 1 to all devices.

    `run.table("scaling")` has a row for each number of devices, with its efficiency.
    """,
)


def describe(experiment: _AnyExperiment = "quickstart", **fields: Any) -> Description:
    """Describe an experiment: layers, parameters, arithmetic, estimated memory; train nothing.

    Args:
      experiment, fields: see `train`.

    Returns:
      What `--mode=describe` shows. It prints as tables; `rows` and `table` are its layers,
      `description["parameters"]` one of its values.

    Raises:
      BadInput: a name or value that is not allowed.
    """
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.modes import describe as mode

    config = create_experiment(experiment, fields)
    prepare_backend()
    description = mode.describe(config)
    return Description(
        description, lambda console: mode.print_description(description, config, console)
    )


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
      mode: `train`, `throughput`, `scaling`, `input` or `memory`; None takes the experiment's own.
      sweepdir: a new folder, or that of a sweep to resume; None makes
        `runs/EXPERIMENT/sweep-TIME`.
      options: options of the mode by name, such as `{"target_accuracy": 0.9}`.
      timeout_s: a trial that takes longer is ended.
      retry: run trials that ended with one of these statuses once more: `oom`, `timeout`, `failed`,
        `invalid`.
      launcher: where the trials run: `local`, this machine, `ssh` or `slurm`.
      launcher_options: the launcher's flags by name, such as `{"hosts": "hosts.txt"}`.
      quiet: whether no progress is shown.
      **fields: fields of all trials, see `train`.

    Returns:
      The trials' runs, and their table.

    Raises:
      BadInput: a name or value that is not allowed; nothing has been written.
      KeyboardInterrupt: Ctrl-C; `sweepdir` resumes the sweep.
    """
    from jaxbench.sweeps.run_grid import run_grid

    return run_grid(
        experiment,
        fields,
        grid or {},
        mode=mode,
        sweepdir=sweepdir,
        options=options or {},
        timeout_s=timeout_s,
        retry=retry,
        launcher=launcher,
        launcher_options=launcher_options or {},
        console=_console(quiet),
    )


def compare(base: _Paths, other: _Paths) -> Comparison:
    """Compare two runs, two lists of repeats, or two sweeps.

    Args:
      base, other: a `Run`, a run directory, a folder of repeats, a sweep, or a list of repeats.

    Returns:
      The ratio of their rates, other over base, with its 95 % interval and a verdict.

    Raises:
      BadInput: they cannot be compared; the message says why.
    """
    return Comparison(paths_of(base), paths_of(other))


def report(
    runs: _Paths,
    out: str | os.PathLike = "report.html",
    *,
    title: str | None = None,
    target_accuracy: float | None = None,
) -> pathlib.Path:
    """Write a report of runs, sweeps and folders of them.

    Args:
      runs: a `Run`, a folder, or a list of them.
      out: the file, .html, .md or .csv; it replaces an older report, and nothing else.
      title: the heading; None takes the folders' names.
      target_accuracy: ask all runs how they got to this top-1 or Dice, as a fraction.

    Returns:
      The file's path.

    Raises:
      BadInput: there is no run, or the file cannot be written.
    """
    path, _ = write_report(
        paths_of(runs), os.fspath(out), title=title, target_accuracy=target_accuracy
    )
    return path


def load_runs(*folders: str | os.PathLike) -> Any:
    """Load all runs in and below some folders as a table, a row for each run.

    Args:
      *folders: run directories, sweeps, and folders of them; none takes `runs`.

    Returns:
      A pandas DataFrame; if pandas is not installed, a list of dictionaries with the same
      columns: experiment, mode, status, device_kind, num_devices, batch_size, precision,
      images_per_s with images_per_s_low and images_per_s_high, top1, dice, mfu, compile_s, wall_s,
      usd, seed, feed, started_at, reason, path, target (what a run was compiled for, where that is
      not here). What a run has not recorded is missing.

    Raises:
      BadInput: a folder does not exist, or holds no run.
    """
    return runs_table([os.fspath(folder) for folder in folders] or ["runs"])


def experiments() -> dict[str, str]:
    """Return the shipped experiments: {name: what it is for}."""
    return registry.available()


def _measure(
    mode: str,
    experiment: _AnyExperiment,
    workdir: str | os.PathLike | None,
    quiet: bool,
    values: Mapping[str, Any],
) -> Run:
    """Run a mode in this process, with options and fields; return what it recorded."""
    options = {name: values.get(name) for name in options_of(mode)}
    config = create_experiment(
        experiment, {name: value for name, value in values.items() if name not in options}
    )
    find_mode(config, mode)
    check_single_host()
    run = import_mode(mode)
    from jaxbench.hardware.accelerators import check_platforms
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.xla.compile_cache import use_compile_cache

    check_platforms()
    keywords = mode_keywords(mode, config, options)
    use_compile_cache(by_names=keywords.get("profile") is not None)
    prepare_backend()
    workdir = None if workdir is None else os.fspath(workdir)
    with handle_ctrl_c():
        result = run(config, workdir, _console(quiet), **keywords)
    return Run(result.run_dir.path)


def _console(quiet: bool) -> Any:
    from jaxbench.records.writers.console import PlainConsole, create_console

    return PlainConsole(None) if quiet else create_console()
