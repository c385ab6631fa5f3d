"""Write a report as Markdown."""

from collections.abc import Sequence

from jaxbench.reports.blocks import Section
from jaxbench.tables.markdown import inline, markdown_table
from jaxbench.tables.table import Table

MARK = "<!-- jaxbench.report -->"


def render_markdown(sections: Sequence[Section], title: str) -> str:
    """Return headings, paragraphs and tables; of a chart, the table behind it."""
    lines = [MARK, f"# {inline(title)}", ""]
    for section in sections:
        lines += [f"## {inline(section.title)}", "", inline(section.lead), ""]
        for block in section.blocks:
            if isinstance(block, str):
                lines += [inline(block), ""]
            elif isinstance(block, Table):
                lines += markdown_table(block, block.title, block.note)
            elif not any(block.table is other for other in section.blocks):
                lines += markdown_table(block.table, block.title, block.note)
    return "\n".join(lines)
