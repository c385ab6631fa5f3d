"""Writes a report as one HTML file that needs nothing else."""

import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

import jaxbench
from jaxbench.report.blocks import BarChart, Chart, LineChart, Section, Table, Text
from jaxbench.report.plot import TEMPLATES, draw, legend_mark

_HERE = pathlib.Path(__file__).parent
# Longer tables are folded; what is in them is found by the browser's search all the same.
_LONGEST_OPEN = 60
# Only longer text is broken into lines.
_LONG_WORDS = 26


def render_html(sections: Sequence[Section], title: str) -> str:
    """Return the page. All text is escaped; the charts are the only markup that is not."""
    return TEMPLATES.get_template("page.html").render(
        title=title,
        version=jaxbench.__version__,
        sections=sections,
        style=Markup((_HERE / "page.css").read_text("utf-8")),
        kind=_kind,
        breakable=_breakable,
        long_words=_LONG_WORDS,
        draw=lambda chart: Markup(draw(chart)),
        legend=_legend,
        is_long=lambda table: len(table.rows) > _LONGEST_OPEN,
        groups=_groups,
        # A table that stands in the section by itself is not folded into a chart again.
        shown_below=lambda section, table: any(table is block for block in section.blocks),
    )


def _kind(block: Any) -> str:
    return {Table: "table", Text: "text"}.get(type(block), "chart")


def _breakable(words: str) -> str:
    """Return text whose lines break behind `/` and `,` first, not in the middle of a word."""
    if len(words) <= _LONG_WORDS:
        return words
    return Markup("<wbr>").join(re.split(r"(?<=[/,])(?=\S)", words))


def _legend(chart: Chart) -> Iterator[tuple[str, str]]:
    """Yield each colour, dash and marker with what it stands for."""
    if isinstance(chart, BarChart):
        for place, part in enumerate(chart.parts):
            if any(values[place] > 0 for _, values in chart.bars):
                yield Markup('<i class="box f{}"></i>').format(place), part
    if isinstance(chart, LineChart):
        place = 0
        for one in chart.series:
            yield Markup(legend_mark(min(place, 6), one.reference, one.line)), one.label
            place += not one.reference


def _groups(blocks: Sequence[Any]) -> list[list[Any]]:
    """Return neighbouring charts together, everything else alone."""
    groups = itertools.groupby(blocks, lambda b: "chart" if _kind(b) == "chart" else id(b))
    return [list(own) for _, own in groups]
