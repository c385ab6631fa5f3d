"""Tables on the console."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jaxbench import terminal

_GAP = "  "


class TextCell(NamedTuple):
    """A cell of a table that grows row by row.

    Attributes:
      width: the least number of characters of the column.
      spare: if rows are too wide, the columns with the highest number are left out; 0 stays.
      align: > or <, as in a format.
    """

    title: str
    text: str
    width: int = 0
    spare: int = 0
    align: str = ">"


class GrowingTable:
    """A table whose rows are printed as they come, below a line with their titles."""

    def __init__(self):
        self._columns: dict[str, str] = {}  # {title: format} of those that are shown
        self._known: set[str] = set()

    def lines(self, cells: Sequence[TextCell]) -> list[str]:
        """Return a row, below the titles if a column is new; none without cells."""
        if not cells:
            return []
        heading = []
        if not self._known or not self._known >= {cell.title for cell in cells}:
            self._begin(cells)
            heading = [self._line({title: title for title in self._columns})]
        return [*heading, self._line({cell.title: cell.text for cell in cells})]

    def _begin(self, cells: Sequence[TextCell]) -> None:
        self._known = {cell.title for cell in cells}
        widths = {cell: max(cell.width, len(cell.title), len(cell.text)) for cell in cells}
        for cell in sorted(cells, key=lambda cell: -cell.spare):
            if not cell.spare or _total(widths.values()) <= terminal.width():
                break
            del widths[cell]
        self._columns = {cell.title: f"{cell.align}{width}" for cell, width in widths.items()}

    def _line(self, texts: dict[str, str]) -> str:
        return _GAP.join(
            format(texts.get(title, ""), form) for title, form in self._columns.items()
        ).rstrip()


def _total(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()
) -> list[str]:
    """Return a table's lines of plain text, all columns aligned to the right.

    Args:
      spare: headings of columns to leave out if the table is too wide, in this order; a line
        below the table names them.
    """
    # Imported late: most runs print no table.
    from rich.cells import cell_len

    table = {heading: [heading, *column] for heading, *column in zip(headings, *rows, strict=True)}
    widths = {heading: max(map(cell_len, cells)) for heading, cells in table.items()}
    left_out = []
    for heading in spare:
        if _total(widths.values()) <= terminal.width():
            break
        if widths.pop(heading, None) is not None:
            left_out.append(heading)
    lines = [
        _GAP.join(
            " " * (width - cell_len(cell)) + cell
            for cell, width in zip(row, widths.values(), strict=True)
        ).rstrip()
        for row in zip(*(table[heading] for heading in widths), strict=True)
    ]
    if left_out:
        lines.append(f"(left out to fit the width: {', '.join(left_out)})")
    return lines
