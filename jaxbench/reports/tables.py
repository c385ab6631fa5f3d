"""Tables made of columns and rows."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jaxbench.metrics import UNKNOWN, count, plain, words
from jaxbench.reports.blocks import Cell, Table
from jaxbench.reports.fields import Estimate, find
from jaxbench.reports.formats import Format, interval

_MARKS = {"done": "good", "running": "running"}


class Column(NamedTuple):
    """One heading, and what each row has below it.

    Attributes:
      title: the heading, with its unit.
      value: of a row: a path of attributes and keys (`run.config.seed`), or a function. A `Cell`
        is shown as it is, over as many columns as it spans.
      show: how a value is shown.
      left: aligned left; None: where `show` is `words`.
    """

    title: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], Cell | str] = words
    left: bool | None = None

    is_left = property(lambda self: self.show is words if self.left is None else self.left)

    def of(self, row: Any) -> Any:
        """Return the row's value."""
        return find(row, *self.value.split(".")) if isinstance(self.value, str) else self.value(row)


def make_table(
    columns: Sequence[Column],
    rows: Iterable[Any],
    title: str = "",
    note: str = "",
    group: Callable[[Any], str] | None = None,
    anchor: Callable[[Any], str] | None = None,
) -> Table:
    """Return a table of rows that the columns take their values from.

    Args:
      group: returns the heading above a row; it is there where it changes.
      anchor: returns the id of a row that links lead to.
    """
    rows = list(rows)
    headings = [group(row) for row in rows] if group else []
    groups = {n: own for n, own in enumerate(headings) if n == 0 or own != headings[n - 1]}
    return Table(
        [column.title for column in columns],
        [_cells(columns, row) for row in rows],
        title,
        note,
        [place for place, column in enumerate(columns) if column.is_left],
        [anchor(row) for row in rows] if anchor else (),
        groups,
    )


def _cells(columns: Sequence[Column], row: Any) -> list[Cell]:
    cells: list[Cell] = []
    covered = 0
    for column in columns:
        if covered:
            covered -= 1
            continue
        value = column.of(row)
        shown = value if isinstance(value, Cell) else column.show(value)
        cell = shown if isinstance(shown, Cell) else Cell(shown)
        if cell.sort is None:
            amount = value.value if isinstance(value, Estimate) else value
            cell = cell._replace(
                sort=math.inf
                if amount == math.inf
                else amount
                if isinstance(amount, (int, float))
                else None
            )
        covered = cell.span - 1
        cells.append(cell._replace(left=column.is_left or cell.span > 1))
    return cells


def with_figures(columns: Iterable[Column], rows: Sequence[Any]) -> list[Column]:
    """Return the columns in which a row has something."""

    def is_known(column: Column) -> bool:
        return any(cell.text != UNKNOWN for row in rows for cell in _cells([column], row))

    return list(filter(is_known, columns))


def estimate_columns(title: str, path: str, show: Format = plain) -> list[Column]:
    """Return the columns of an `Estimate`: its median, its interval and its n."""
    return [
        Column(title, f"{path}.value", show),
        Column("95 % interval", path, interval(show)),
        Column("n", f"{path}.n", count),
    ]


def status_cell(status: str | None) -> Cell:
    """Show how a run or a sweep's trial ended."""
    shown = {"oom": "OOM"}.get(status or "", status or "?")
    return Cell(shown, _MARKS.get(shown, "bad"))


def run_cell(run: str | None) -> Cell:
    return Cell(run or UNKNOWN, run=run)


def run_ids(rows: Iterable[Any]) -> str:
    """Name runs, or those of rows; many of them by the first and the last."""
    # A trial that left no run has no id.
    ids = {getattr(row, "run", row).id or UNKNOWN for row in rows}
    # R10 comes after R9.
    ids = sorted(ids, key=lambda own: (own == UNKNOWN, len(own), own))
    if len(ids) > 8:
        return f"{', '.join(ids[:6])} … {ids[-1]} ({len(ids)} runs)"
    return ", ".join(ids)


# Of rows that have a run.
_SHARED = {
    "run": Column("run", "run.id", run_cell, left=True),
    "status": Column("status", "run.status", status_cell, left=True),
    "experiment": Column("experiment", "run.experiment"),
    "mode": Column("mode", "run.mode"),
    "precision": Column("precision", "run.precision"),
    "feed": Column("feed", "run.feed"),
    "batch": Column("batch", "run.batch_size", count),
    "devices": Column("devices", "run.hardware"),
    "seed": Column("seed", "run.seed", count),
    "wall [s]": Column("wall [s]", "run.summary.wall_s", plain),
}


def shared(*titles: str) -> list[Column]:
    """Return columns that several tables have."""
    return [_SHARED[title] for title in titles]
