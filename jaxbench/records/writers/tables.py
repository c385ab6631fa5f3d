"""Tables on the console."""

import io
from collections.abc import Sequence

# Wider than any table: a log file has no width, and a row is one line.
_WIDTH = 10_000


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines of plain text, all columns aligned to the right."""
    # Imported late: most runs print no table.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(Text(heading), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=_WIDTH, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
