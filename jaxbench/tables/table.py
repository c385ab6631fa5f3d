"""Tables made of columns and rows, whatever they are written as."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.metrics import UNKNOWN
from jaxbench.tables.columns import Cell, Column


class Table(NamedTuple):
    """Values in rows of cells.

    Attributes:
      note: what a reader must know of it.
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

    A column in which no row has anything is left out.

    Args:
      group: returns the heading above a row; a new one begins a group.
      anchor: returns the id of a row that links lead to.
    """
    rows = list(rows)
    headings = [group(row) for row in rows] if group else []
    shown = [(column, [column.cell(row) for row in rows]) for column in columns]
    kept = [(c, cells) for c, cells in shown if any(cell.text != UNKNOWN for cell in cells)]
    return Table(
        [column.title for column, _ in kept],
        [*zip(*(cells for _, cells in kept), strict=True)],
        title,
        note,
        [index for index, (column, _) in enumerate(kept) if column.is_left],
        [anchor(row) for row in rows] if anchor else (),
        {n: one for n, one in enumerate(headings) if n == 0 or one != headings[n - 1]},
    )
