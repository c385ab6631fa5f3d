"""Write a report as one HTML file that needs nothing else."""

import base64
import hashlib
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup

import jaxbench
from jaxbench.reports.blocks import BarChart, Block, Chart, LineChart, Section
from jaxbench.reports.plot import TEMPLATES, draw, legend_mark
from jaxbench.tables.table import Cell, Table

_HERE = pathlib.Path(__file__).parent
# Longer tables are folded; the browser's search still finds what is in them.
_LONGEST_OPEN = 12
# Of charts beside one another; further ones are folded.
_CHARTS_OPEN = 2
# Only longer text is broken into lines.
_LONG_WORDS = 26


def render_html(sections: Sequence[Section], title: str) -> str:
    """Return the page. All text is escaped; the charts are the only markup that is not.

    A browser runs only the page's own script, by its hash: no text of a run can become one.
    """
    script = (_HERE / "page.js").read_text("utf-8")
    tables = [block for own in sections for block in own.blocks if isinstance(block, Table)]
    return TEMPLATES.get_template("page.html").render(
        title=title,
        version=jaxbench.__version__,
        sections=sections,
        style=Markup((_HERE / "page.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kind=_kind,
        breakable=_breakable,
        sort_key=_sort_key,
        cell_classes=_cell_classes,
        draw=lambda chart: Markup(draw(chart)),
        legend=_legend,
        longest_open=_LONGEST_OPEN,
        charts_open=_CHARTS_OPEN,
        groups=_groups,
        # A single section may lack the table of runs.
        linked={anchor for table in tables for anchor in table.anchors},
        # A table that the section shows itself is not folded into a chart again.
        shown_below=lambda section, table: any(table is block for block in section.blocks),
    )


def _kind(block: Block) -> str:
    return {Table: "table", str: "text"}.get(type(block), "chart")


def _breakable(words: str) -> str:
    """Return text whose lines break behind `/` and `,` first, not in the middle of a word."""
    if len(words) <= _LONG_WORDS:
        return words
    return Markup("<wbr>").join(re.split(r"(?<=[/,])(?=\S)", words))


def _cell_classes(cell: Cell) -> str:
    """Return the classes of a cell; measured and published are boxes around its text instead."""
    mark = f"mark-{cell.mark}" if cell.mark not in ("", "measured", "published") else ""
    is_long = cell.left and len(cell.text) > _LONG_WORDS
    return " ".join(filter(None, ["t" * cell.left, "long" * is_long, mark]))


def _sort_key(cell: Cell) -> str | None:
    """Return the number that a cell is sorted by; None if its text begins with that number."""
    # An interval is sorted by its first number. A unit, as in `3 min`, may differ between rows.
    if cell.sort is None or re.fullmatch(r"-?[\d,.]+( (\(|to ).*)?", cell.text):
        return None
    return f"{cell.sort:.6g}".replace("inf", "Infinity")


def _legend(chart: Chart) -> Iterator[tuple[str, str]]:
    if isinstance(chart, BarChart):
        for place, part in enumerate(chart.parts):
            if any(values[place] > 0 for _, values in chart.bars):
                yield Markup('<i class="box f{}"></i>').format(place), part
    if isinstance(chart, LineChart):
        place = 0
        for one in chart.series:
            yield Markup(legend_mark(min(place, 6), one.reference, one.line)), one.label
            place += not one.reference


def _groups(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return neighbouring charts together, everything else alone."""
    groups = itertools.groupby(blocks, lambda b: "chart" if _kind(b) == "chart" else id(b))
    return [list(own) for _, own in groups]
