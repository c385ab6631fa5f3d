"""Write a report as Markdown."""

import html
from collections.abc import Sequence

from jaxbench.reports.blocks import Section, Table
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
                lines += _table(block, block.title, block.note)
            elif not any(block.table is other for other in section.blocks):
                lines += _table(block.table, block.title, block.note)
    return "\n".join(lines)


def _table(table: Table, title: str, note: str) -> list[str]:
    columns = [*table.columns]
    lines = [f"### {_inline(title)}", ""] if title else []
    if table.groups:
        columns = ["", *columns]
    rules = ["---" if i in table.text_columns else "---:" for i in range(len(table.columns))]
    lines += [_row(columns), _row(["---"] * bool(table.groups) + rules)]
    group = ""
    for number, row in enumerate(table.rows):
        group = table.groups.get(number, group)
        cells = [group] if table.groups else []
        for cell in row:
            mark = "≠ " if cell.mark == "differs" else ""
            cells += [mark + cell.text, *[""] * (cell.span - 1)]
        lines.append(_row(cells))
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
