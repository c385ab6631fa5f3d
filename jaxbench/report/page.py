"""Writes a report as one HTML file that needs nothing else."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

import jaxbench
from jaxbench.report.blocks import BarChart, Cell, Chart, DotChart, LineChart, Section, Table, Text
from jaxbench.report.plot import draw, legend_mark

_HERE = pathlib.Path(__file__).parent
# Longer tables are folded; what is in them is found by the browser's search all the same.
_LONGEST_OPEN = 60
# Only longer text is broken into lines.
_LONG_WORDS = 26


def render_html(sections: Sequence[Section], title: str) -> str:
    """Returns the page. All text is escaped; the charts are the only markup that is not.

    Args:
      sections: in order.
      title: of the page.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title,
        version=jaxbench.__version__,
        sections=sections,
        style=Markup((_HERE / "page.css").read_text("utf-8")),
        kind=_kind,
        cells=_cells,
        draw=lambda chart: Markup(draw(chart)),
        legend=_legend,
        is_long=lambda table: len(table.rows) > _LONGEST_OPEN,
        groups=_groups,
        # A table that stands in the section by itself is not folded into a chart again.
        shown_below=lambda section, table: any(table is block for block in section.blocks),
    )


def _kind(block: Any) -> str:
    for kind in (Table, Text):
        if isinstance(block, kind):
            return kind.__name__.lower()
    return "chart"


def _cells(table: Table, row: Sequence[Cell | str]) -> list[dict[str, Any]]:
    """Every cell with its place's alignment."""
    found, at = [], 0
    text_columns = set(table.text_columns)
    for entry in row:
        cell = entry if isinstance(entry, Cell) else Cell(entry)
        found.append(
            {
                "cell": cell,
                "text": _breakable(cell.text),
                "words": at in text_columns or cell.span > 1,
                "long": at in text_columns and len(cell.text) > _LONG_WORDS,
            }
        )
        at += cell.span
    return found


def _breakable(words: str) -> str:
    """A path or `a=1,b=2` breaks behind its marks first, and not in the middle of a word."""
    if len(words) <= _LONG_WORDS:
        return words
    return Markup("<wbr>").join(re.split(r"(?<=[/,])(?=\S)", words))


def _legend(chart: Chart) -> list[dict[str, Any]]:
    """What each colour, dash and marker stands for."""
    if isinstance(chart, DotChart):
        return []
    if isinstance(chart, BarChart):
        return [
            {"mark": Markup('<i class="box f{}"></i>').format(place), "label": part}
            for place, part in enumerate(chart.parts)
            if any(values[place] > 0 for _, values in chart.bars)
        ]
    assert isinstance(chart, LineChart)
    entries, place = [], 0
    for one in chart.series:
        mark = Markup(legend_mark(min(place, 6), one.reference, one.line))
        entries.append({"mark": mark, "label": one.label})
        place += not one.reference
    return entries


def _groups(blocks: Sequence[Any]) -> list[list[Any]]:
    """Neighbouring charts go side by side, everything else alone."""
    groups: list[list[Any]] = []
    for block in blocks:
        if _kind(block) == "chart" and groups and _kind(groups[-1][0]) == "chart":
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups
