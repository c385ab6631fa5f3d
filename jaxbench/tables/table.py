"""Tables made of columns and rows, whatever they are written as."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.statistics import Estimate
from jaxbench.metrics import UNKNOWN
from jaxbench.tables.columns import Cell, Column


class Table(NamedTuple):
    """Values in rows of cells; a row may be shorter by what its cells span.

    Attributes:
      note: what a reader must know of it.
      text_columns: indices of the columns that are words.
      anchors: of each row, the id that links lead to.
      groups: {row number: heading above that row}.
      folded: whether only the title is seen at first; None: if the table is long.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    text_columns: Sequence[int] = (0,)
    anchors: Sequence[str] = ()
    groups: Mapping[int, str] = {}
    folded: bool | None = None


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
      group: returns the heading above a row; a new one begins a group.
      anchor: returns the id of a row that links lead to.
    """
    rows = list(rows)
    headings = [group(row) for row in rows] if group else []
    return Table(
        [column.title for column in columns],
        [_cells(columns, row) for row in rows],
        title,
        note,
        [index for index, column in enumerate(columns) if column.is_left],
        [anchor(row) for row in rows] if anchor else (),
        {n: one for n, one in enumerate(headings) if n == 0 or one != headings[n - 1]},
    )


def _cells(columns: Sequence[Column], row: Any) -> list[Cell]:
    cells: list[Cell] = []
    shown_columns = iter(columns)
    for column in shown_columns:
        value = column.of(row)
        shown = value if isinstance(value, Cell) else column.show(value)
        cell = shown if isinstance(shown, Cell) else Cell(shown)
        amount = value.value if isinstance(value, Estimate) else value
        if cell.sort is None and isinstance(amount, (int, float)):
            cell = cell._replace(sort=amount)
        cells.append(cell._replace(left=column.is_left or cell.span > 1))
        # A cell covers the columns that it spans.
        for _ in itertools.islice(shown_columns, cell.span - 1):
            pass
    return cells


def with_figures(columns: Iterable[Column], rows: Sequence[Any]) -> list[Column]:
    """Return the columns in which a row has something."""
    return [
        column
        for column in columns
        if any(cell.text != UNKNOWN for row in rows for cell in _cells([column], row))
    ]
