"""Tables and paragraphs as Markdown."""

import html
from collections.abc import Sequence

from jaxbench.tables.table import Table
from jaxbench.terminal import printable


def markdown_table(table: Table, title: str, note: str) -> list[str]:
    """Return the lines of a table below its title and above its note."""
    grouped = [""] if table.groups else []
    rules = ["---" if i in table.text_columns else "---:" for i in range(len(table.columns))]
    lines = [f"### {inline(title)}", ""] if title else []
    lines += [_row([*grouped, *table.columns]), _row([*(["---"] if grouped else []), *rules])]
    for number, row in enumerate(table.rows):
        grouped = [table.groups.get(number, *grouped)] if grouped else []
        cells = [
            text
            for cell in row
            for text in ("≠ " * (cell.mark == "differs") + cell.text, *[""] * (cell.span - 1))
        ]
        lines.append(_row([*grouped, *cells]))
    lines.append("")
    return [*lines, inline(note), ""] if note else lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(inline, cells))} |"


def inline(words: str) -> str:
    """Return text that stays text: no markup, second line or new column, nothing for a terminal."""
    escaped = html.escape(printable(" ".join(words.split())), quote=False)
    for character in "\\`*_[]|":
        escaped = escaped.replace(character, "\\" + character)
    return escaped
