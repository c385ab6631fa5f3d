"""Tables as CSV."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxbench.terminal import printable


def render_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV. A value that is None or no finite number is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    is_number = not isinstance(value, float) or math.isfinite(value)
    return inert_cell(value) if is_number else None


def inert_cell(value: Any) -> Any:
    """Return a cell of a CSV file; text in it is one line and never a formula.

    Text that a spreadsheet would take for a formula gets an apostrophe before it. Line breaks are
    replaced, because Python 3.11 leaves a lone carriage return unquoted: what follows it would be
    a row.
    """
    if not isinstance(value, str):
        return value
    words = printable(value)
    return f"'{words}" if words.lstrip().startswith(("=", "+", "-", "@")) else words
