"""What tests ask of a report: its sections, tables, charts, CSV rows, and its page as HTML."""

import collections
import csv
import html.parser
import io

from jaxbench.reports.blocks import LineChart
from jaxbench.reports.collect import collect
from jaxbench.reports.context import ReportContext
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs_table import render_csv
from jaxbench.reports.sections import make_sections
from jaxbench.reports.write import render_html

_VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}


def context_of(*folders, prices=None, target=None):
    return ReportContext(collect([str(folder) for folder in folders]), prices or Prices(), target)


def sections_of(*folders, **asked):
    return {section.name: section for section in make_sections(context_of(*folders, **asked))}


def page_of(*folders, title="a report"):
    return render_html(make_sections(context_of(*folders)), title)


def tables(section):
    found = [getattr(block, "details", block) for block in section.blocks]
    return {table.title: table for table in found if hasattr(table, "columns")}


def texts(row):
    return [cell.text for cell in row]


def shown(section, *titles):
    """A section's tables, or those of some titles, as text: cells with their runs and marks."""
    lines = []
    for title, table in tables(section).items():
        if title in titles or not titles:
            lines += [f"## {title}", " | ".join(table.columns)]
            for number, row in enumerate(table.rows):
                lines += [f"# {table.groups[number]}"] if number in table.groups else []
                lines.append(" | ".join(" ".join(_cell(cell)) for cell in row))
    return "\n".join(lines)


def _cell(cell):
    return filter(None, (cell.text, cell.run and f"[{cell.run}]", cell.mark and f"({cell.mark})"))


def rows_of(table):
    """{column: text} of each row."""
    return [dict(zip(table.columns, texts(row), strict=False)) for row in table.rows]


def column_of(table, name):
    return [row[name] for row in rows_of(table)]


def charts(section, kind=LineChart):
    return [block for block in section.blocks if isinstance(block, kind)]


def csv_rows(*folders):
    """The rows of CSV."""
    text = render_csv(collect([str(folder) for folder in folders]))
    return [*csv.DictReader(io.StringIO(text))]


class Page(html.parser.HTMLParser):
    """Fails where an element is not closed in its place; keeps text, ids and addresses."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.loads, self.words = [], [], [], [], []
        self.attributes = collections.defaultdict(list)
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        for name, value in attributes:
            self.attributes[name].append(value)
            if name == "id":
                self.ids.append(value)
            if name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "href", "srcset", "data", "xlink:href", "action"):
                self.loads.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
