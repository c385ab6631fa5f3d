"""The Python API: `import jaxbench; run = jaxbench.train("cnn10", batch_size=512)`.

Each function does what the command of its name does, with the same checks and messages, and leaves
the same records. Ctrl-C ends a run as it ends the command, with a checkpoint, and raises
KeyboardInterrupt; afterwards it is Python's own again.
"""

import inspect
import os
import pathlib
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.cli import registry
from jaxbench.cli.overrides import create_experiment
from jaxbench.config import Experiment
from jaxbench.errors import BadInput  # noqa: F401 (jaxbench.BadInput)
from jaxbench.modes import MODES, find_mode, import_mode
from jaxbench.modes.options import check_path, mode_keywords, options_of
from jaxbench.parallel.processes import check_single_host
from jaxbench.parallel.signals import handle_ctrl_c
from jaxbench.paths import check_working_folder
from jaxbench.reports.write import write_report
from jaxbench.results.answers import Comparison, Description, paths_of
from jaxbench.results.run import Run
from jaxbench.results.tables import runs_table
from jaxbench.sweeps.run_grid import sweep  # noqa: F401 (jaxbench.sweep)

_Paths = str | os.PathLike | Sequence[str | os.PathLike]


def _function(mode: str) -> Callable[..., Run]:
    """Return the function that runs a mode, with a keyword for each of its options."""
    default = "quickstart" if mode != "conv2d" else "conv2d"

    def run(experiment=default, *, workdir=None, quiet=False, **fields) -> Run:
        check_working_folder()
        values = {name: fields.pop(name, None) for name in options}
        config = create_experiment(experiment, fields)
        find_mode(config, mode)
        check_single_host()
        measure = import_mode(mode)
        from jaxbench.hardware.backend_flags import start_backend
        from jaxbench.records.writers.console import create_console

        keywords, console = mode_keywords(mode, config, values), create_console(quiet)
        start_backend(console.say, profile=keywords.get("profile"))
        if workdir is not None:
            workdir = check_path("workdir", workdir)
        with handle_ctrl_c():
            result = measure(config, workdir, console, **keywords)
        return Run(result.run_dir.path)

    options, lines = options_of(mode), []
    for name, option in options.items():
        lines += textwrap.wrap(f"  {name}: {option.help}", 96, subsequent_indent="    ")
    run.__name__ = run.__qualname__ = mode
    summary = f"{MODES[mode].help.capitalize()}; return the run."
    run.__doc__ = summary + _DETAILS.format(options="\n".join(lines))
    signature = inspect.signature(run)
    first, workdir, quiet, fields = signature.parameters.values()
    keywords = [quiet.replace(name=name, default=one.default) for name, one in options.items()]
    run.__signature__ = signature.replace(parameters=[first, workdir, *keywords, quiet, fields])  # type: ignore[attr-defined]
    return run


_DETAILS = """

`run.table(KIND)` has a row for each record of a kind, such as `epoch`, `throughput` or `scaling`.

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

# `train`, `throughput` and all others.
globals().update({mode: _function(mode) for mode in MODES})


def describe(experiment: str | os.PathLike | Experiment = "quickstart", **fields) -> Description:
    """Describe an experiment, see `train`: layers, arithmetic, estimated memory; train nothing.

    Returns what `--mode=describe` shows. It prints as tables; `rows` and `table` are its layers,
    `description["parameters"]` one of its values.

    Raises:
      BadInput: a name or value that is not allowed.
    """
    from jaxbench.hardware.backend_flags import start_backend
    from jaxbench.modes import describe as mode

    config = create_experiment(experiment, fields)
    start_backend(print)
    description = mode.describe(config)
    return Description(
        description, lambda console: mode.print_description(description, config, console)
    )


def compare(base: _Paths, other: _Paths) -> Comparison:
    """Return the ratio of two rates, other over base, with its 95 % interval and a verdict.

    Args:
      base, other: a `Run`, a run directory, a folder of repeats, a sweep, or a list of repeats.

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
    """Write a report of runs, sweeps and folders of them; return the file's path.

    Args:
      runs: a `Run`, a folder, or a list of them.
      out: the file, .html, .md or .csv; it replaces an older report, and nothing else.
      title, target_accuracy: as the flags of `jaxbench report`.

    Raises:
      BadInput: there is no run, or the file cannot be written.
    """
    path, _ = write_report(
        paths_of(runs), os.fspath(out), title=title, target_accuracy=target_accuracy
    )
    return path


def load_runs(*folders: str | os.PathLike) -> Any:
    """Load all runs in and below some folders (none: `runs`) as a table, a row for each run.

    Returns:
      A pandas DataFrame; if pandas is not installed, a list of dictionaries with the same
      columns, `jaxbench.reports.runs_table.COLUMNS`. What a run has not recorded is missing.

    Raises:
      BadInput: a folder does not exist, or holds no run.
    """
    return runs_table([os.fspath(folder) for folder in folders] or ["runs"])


def experiments() -> dict[str, str]:
    """Return the shipped experiments: {name: what it is for}."""
    return registry.available()
