"""Tables made of columns and rows."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxbench.report.blocks import Cell, Table
from jaxbench.report.fields import find
from jaxbench.report.formats import UNKNOWN, count, interval, words

_MARKS = {"done": "good", "running": "running"}


@dataclasses.dataclass(frozen=True)
class Column:
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
    """Return a table.

    Args:
      columns: in order.
      rows: what the columns take their values from.
      title, note: as in `Table`.
      group: returns the heading above a row; it is there where it changes.
      anchor: returns the id of a row that links lead to.
    """
    rows = list(rows)
    groups = {}
    for number, row in enumerate(rows if group else ()):
        if number == 0 or group(row) != group(rows[number - 1]):
            groups[number] = group(row)
    return Table(
        [column.title for column in columns],
        [_cells(columns, row) for row in rows],
        title,
        note,
        [
            place
            for place, c in enumerate(columns)
            if c.left or (c.left is None and c.show is words)
        ],
        [anchor(row) for row in rows] if anchor else (),
        groups,
    )


def _cells(columns: Sequence[Column], row: Any) -> list[Cell | str]:
    cells: list[Cell | str] = []
    left = 0
    for column in columns:
        left -= 1
        if left <= 0:
            value = column.of(row)
            cells.append(value if isinstance(value, Cell) else column.show(value))
            left = cells[-1].span if isinstance(cells[-1], Cell) else 1
    return cells


def estimate_columns(
    title: str, path: str, show: Callable[[Any], str], interval_title: str = "95 % interval"
) -> list[Column]:
    """Return the columns of an `Estimate`: its median, its interval and its n."""
    return [
        Column(title, f"{path}.value", show),
        Column(interval_title, path, interval(show)),
        Column("n", f"{path}.n", count),
    ]


def status_cell(status: str | None) -> Cell:
    """Show how a run or a sweep's trial ended."""
    shown = {"oom": "OOM"}.get(status or "", status or "?")
    return Cell(shown, _MARKS.get(shown, "bad"))


def run_cell(run: str | None) -> Cell:
    """Show a link to a run."""
    return Cell(run or UNKNOWN, run=run)


def run_ids(runs: Iterable[str | None]) -> str:
    """Name runs, many of them by the first and the last."""
    ids = list(dict.fromkeys(run for run in runs if run))
    if len(ids) > 8:
        return f"{', '.join(ids[:6])} … {ids[-1]} ({len(ids)} runs)"
    return ", ".join(ids)


# Of rows that have a run.
RUN = Column("run", "run.id", run_cell, left=True)
STATUS = Column("status", "run.status", status_cell, left=True)
EXPERIMENT = Column("experiment", "run.experiment")
MODE = Column("mode", "run.mode")
PRECISION = Column("precision", "run.precision")
FEED = Column("feed", "run.feed")
BATCH = Column("batch", "run.batch_size", count)
DEVICES = Column("devices", "run.hardware")
