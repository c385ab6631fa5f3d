"""Results of several runs, or of none: sweeps, comparisons, descriptions."""

import dataclasses
import io
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxbench.analysis.rate import MAIN_STAGES
from jaxbench.errors import BadInput
from jaxbench.reports.sides import describe_comparison, judge, match_trials, read_sides
from jaxbench.results.run import Run
from jaxbench.results.tables import as_table


class SweepResult(Sequence[Run]):
    """The runs of a sweep, in the order of its trials; prints as the sweep's table.

    Attributes:
      path: the sweep's folder.
      rows: a dictionary for each trial, as in sweep.csv: the grid's fields, status and metrics.
        A trial that left no run directory has a row, and no run.
    """

    def __init__(self, path: pathlib.Path, rows: Sequence[Mapping[str, Any]], lines: Sequence[str]):
        self.path = path
        self.rows = [dict(row) for row in rows]
        self._lines = list(lines)
        self._runs = [Run(path / row["run"]) for row in rows if row["run"]]

    def __fspath__(self) -> str:
        return str(self.path)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    @property
    def table(self) -> Any:
        """The rows as a table, without the columns that no trial has a value in.

        A pandas DataFrame; a list of dictionaries if pandas is not installed.
        """
        columns = {
            name: None for row in self.rows for name, value in row.items() if value is not None
        }
        return as_table(self.rows, [*columns])

    def __repr__(self) -> str:
        return "\n".join([f"{self.path}: {len(self.rows)} trials", *self._lines])


def _of_primary_stage(name: str, doc: str) -> property:
    return property(lambda comparison: comparison._primary_stage()[name], doc=doc)


class Comparison:
    """What two sides differ in, and how much faster the second is; prints as the command does.

    `ratio`, `low`, `high` and `verdict` are of the stage that matters most: the training step of
    `throughput`, or the training. `rows` has every stage, and every trial of a sweep.

    Attributes:
      comparisons: as `jaxbench compare --json` prints them.
      not_compared: why a trial of a sweep is missing in them.
    """

    def __init__(self, base: Sequence[str], other: Sequence[str]):
        matches = match_trials(read_sides(*base), read_sides(*other))
        self.comparisons = judge([one for one in matches if not isinstance(one, str)])
        self.not_compared = [one for one in matches if isinstance(one, str)]
        if not self.comparisons:
            raise BadInput("; ".join(self.not_compared))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each stage of each comparison."""
        return [
            {"base": one["base"], "other": one["other"], "stage": stage, **ratio}
            for one in self.comparisons
            for stage, ratio in one["stages"].items()
        ]

    ratio = _of_primary_stage("ratio", "The second side's images/s over the first's.")
    low = _of_primary_stage("ratio_low", "The lower end of its 95 % interval.")
    high = _of_primary_stage("ratio_high", "The upper end of its 95 % interval.")
    verdict = _of_primary_stage(
        "verdict", "`faster`, `slower`, `no significant difference`, or `inconclusive`."
    )

    reasons = _of_primary_stage("reasons", "Why the verdict is inconclusive.")

    def _primary_stage(self) -> dict[str, Any]:
        if len(self.comparisons) > 1:
            raise BadInput(f"{len(self.comparisons)} trials are compared: their ratios are in rows")
        stages = self.comparisons[0]["stages"]
        return next(stages[name] for name in (*MAIN_STAGES, *stages) if name in stages)

    def __repr__(self) -> str:
        lines = [line for one in self.comparisons for line in describe_comparison(one)]
        return "\n".join([*lines, *self.not_compared])


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """An experiment as `--mode=describe` shows it; prints as its tables.

    Attributes:
      values: what `--mode=describe --json` prints.
      print_on: prints the tables on a rich console.
    """

    values: dict[str, Any]
    print_on: Callable[[Any], None]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each layer (for each convolution of a `conv2d` experiment)."""
        return self.values["layers"] if "layers" in self.values else self.values["problems"]

    @property
    def table(self) -> Any:
        """The rows as a pandas DataFrame; a list of dictionaries if pandas is missing."""
        return as_table(self.rows, [*self.rows[0]])

    def __repr__(self) -> str:
        from rich.console import Console

        written = io.StringIO()
        # In a notebook rich would show the tables, or write them in colours.
        plain: dict[str, Any] = {"force_jupyter": False, "force_terminal": False}
        console = Console(file=written, width=100, highlight=False, markup=False, **plain)
        self.print_on(console)
        return written.getvalue().rstrip()


def paths_of(runs: Any) -> list[str]:
    """Return the folders of a run, a sweep, a path or a list; raise BadInput if it is empty."""
    each = [runs] if isinstance(runs, (str, os.PathLike)) else runs
    paths = [os.fspath(one) for one in each]
    if not paths:
        raise BadInput("the list of runs is empty: give at least one")
    return paths
