"""Write a report as Markdown."""

import html
from collections.abc import Sequence

from jaxbench.reports.blocks import Section
from jaxbench.tables.table import Table
from jaxbench.terminal import printable

MARK = "<!-- jaxbench.report -->"


def render_markdown(sections: Sequence[Section], title: str) -> str:
    """Return headings, paragraphs and tables; of a chart, the table behind it."""
    lines = [MARK, f"# {_inline(title)}", ""]
    for section in sections:
        lines += [f"## {_inline(section.title)}", "", _inline(section.lead), ""]
        for block in section.blocks:
            if isinstance(block, str):
                lines += [_inline(block), ""]
            elif isinstance(block, Table):
                lines += _table_lines(block, block.title, block.note)
            elif not any(block.table is other for other in section.blocks):
                lines += _table_lines(block.table, block.title, block.note)
    return "\n".join(lines)


def _table_lines(table: Table, title: str, note: str) -> list[str]:
    grouped = [""] if table.groups else []
    rules = ["---" if i in table.text_columns else "---:" for i in range(len(table.columns))]
    lines = [f"### {_inline(title)}", ""] if title else []
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
    return [*lines, _inline(note), ""] if note else lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_inline, cells))} |"


def _inline(words: str) -> str:
    """Return text that stays text: no markup, second line or new column, nothing for a terminal."""
    escaped = html.escape(printable(" ".join(words.split())), quote=False)
    for character in "\\`*_[]|":
        escaped = escaped.replace(character, "\\" + character)
    return escaped
