"""Write a report as HTML, Markdown or CSV; it replaces an older report and nothing else."""

import base64
import hashlib
import html
import itertools
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

import jaxbench
from jaxbench.config.fields import check_fraction
from jaxbench.errors import BadInput, as_refusal, one_of
from jaxbench.files import open_regular, replace_file
from jaxbench.paths import user_path
from jaxbench.reports.blocks import Answer, Banner, Block, Section
from jaxbench.reports.collect import Collection, collect
from jaxbench.reports.context import ReportContext
from jaxbench.reports.plot import TEMPLATES, draw, legend, numbers
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs_table import is_csv_report, render_csv
from jaxbench.reports.sections import make_sections
from jaxbench.tables.columns import Cell
from jaxbench.tables.table import Table
from jaxbench.terminal import printable

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
    blocks = [block for section in sections for block in section.blocks]
    tables = [block for block in blocks if isinstance(block, Table)]
    page = TEMPLATES.get_template("page.html").render(
        title=title,
        version=jaxbench.__version__,
        sections=sections,
        style=Markup((_HERE / "page.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        breakable=_breakable,
        sort_key=_sort_key,
        cell_classes=_cell_classes,
        draw=lambda chart: Markup(draw(chart)),
        legend=legend,
        longest_open=_LONGEST_OPEN,
        charts_open=_CHARTS_OPEN,
        groups=_groups,
        # A single section may lack the table of runs.
        linked={anchor for table in tables for anchor in table.anchors},
        numbers=numbers,
    )
    # Terminals show pages, too.
    return "\n".join(map(printable, page.split("\n")))


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


def _groups(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Return neighbouring blocks of one kind together, with the kind."""
    kinds = {Table: "table", str: "text", Answer: "answer", Banner: "banner"}
    groups = itertools.groupby(blocks, lambda block: kinds.get(type(block), "chart"))
    return [(kind, [*group]) for kind, group in groups]


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
            elif isinstance(block, Banner):
                lines += [line for one in block.sentences for line in (_inline(one), "")]
                if block.details.rows:
                    lines += _table_lines(block.details, block.details.title, "")
            elif isinstance(block, Answer):
                marks = f" ({', '.join(block.marks)})" if block.marks else ""
                lines += [f"### {_inline(block.title)}{marks}", ""]
                lines += [_with_command(block.sentence), ""]
            elif table := numbers(block):
                lines += _table_lines(table, block.title, block.note)
    return "\n".join(lines)


def _table_lines(table: Table, title: str, note: str) -> list[str]:
    grouped = [""] if table.groups else []
    rules = ["---" if i in table.text_columns else "---:" for i in range(len(table.columns))]
    lines = [f"### {_inline(title)}", ""] if title else []
    lines += [_row([*grouped, *table.columns]), _row([*(["---"] if grouped else []), *rules])]
    for number, row in enumerate(table.rows):
        grouped = [table.groups.get(number, grouped[0])] if grouped else []
        cells = ["≠ " * (cell.mark == "differs") + cell.text for cell in row]
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


def _with_command(sentence: str) -> str:
    """Return a sentence whose command, between two backticks, stays as it is typed."""
    before, *rest = sentence.split("`")
    if len(rest) != 2:
        return _inline(sentence)
    command = printable(" ".join(rest[0].split()))
    return f"{_inline(before)} `{command}`{_inline(rest[1])}"


FORMATS = ("html", "md", "csv")
# What the first bytes of a report in HTML or Markdown hold, and of nothing else.
_MARKS = ('name="generator" content="jaxbench.report', MARK)


def write_report(
    paths: Sequence[str],
    out: str | None = None,
    form: str | None = None,
    *,
    title: str | None = None,
    prices: Prices | None = None,
    target_accuracy: float | None = None,
    section: str | None = None,
) -> tuple[pathlib.Path, Collection]:
    """Write a report of run directories, sweeps and folders of them; return its file and content.

    Args:
      out: the file; None for report.html, .md or .csv.
      form: html, md or csv; None for what `out` ends in, else html.
      prices: what the hardware costs, if the records do not say.
      target_accuracy: the top-1 or Dice that all runs are asked about; None for each run's own.
    """
    if out == "":
        raise BadInput("--out=: must name a file")
    form = _form(out, form)
    if section is not None and form == "csv":
        raise BadInput("--section: CSV has no sections")
    prices = prices or Prices()
    if form == "csv" and (target_accuracy is not None or any(vars(prices).values())):
        raise BadInput(
            "CSV has what runs recorded: leave out prices and --target_accuracy, or write HTML or "
            "Markdown"
        )
    path = user_path(out or f"report.{form}")
    _check_out(path)
    check_fraction("target_accuracy", target_accuracy)
    collection = collect(paths)
    if form == "csv" and collection.cards and not collection.all_runs:
        raise BadInput("--format=csv: is of runs; the figures of a card are in its card.json")
    prices.check(collection.runs)
    names = [user_path(path).resolve().name for path in paths]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    title = title or f"jaxbench: {', '.join(names[:3])}{more}"
    _write_text(path, render(collection, form, title, prices, target_accuracy, section=section))
    return path, collection


def render(
    collection: Collection, form: str, title: str, *asked: Any, section: str | None = None
) -> str:
    """Return the report of a collection; `asked` is as in `ReportContext`."""
    if form == "csv":
        return render_csv(collection)
    context = ReportContext(collection, *asked)
    sections = {one.name: one for one in make_sections(context)}
    if section is not None and section not in sections:
        raise BadInput(f"--section={section}: {one_of(section, sections)}")
    shown = [one for one in sections.values() if section in (None, one.name)]
    return (render_html if form == "html" else render_markdown)(shown, title)


def _form(out: str | None, form: str | None) -> str:
    """Return the format that is asked for, or that the file's name ends in."""
    suffix = pathlib.Path(out or "").suffix.removeprefix(".")
    if suffix in FORMATS and form not in (None, suffix):
        raise BadInput(f"--format={form} --out={out}: are two formats")
    if suffix and suffix not in FORMATS and form is None:
        raise BadInput(f"--out={out}: ends in none of .html, .md, .csv; give --format too")
    return form or suffix or "html"


def _check_out(out: pathlib.Path) -> None:
    """Raise BadInput if nothing can be written, or something else would be overwritten."""
    folder = out.absolute().parent
    if not folder.is_dir():
        raise BadInput(f"--out={out}: no such folder {out.parent}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"--out={out}: cannot write in {folder}")
    try:
        with open_regular(out, "rb", most_bytes=math.inf) as file:
            head = file.read(2000).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}") from error
    if head and not (any(mark in head for mark in _MARKS) or is_csv_report(head)):
        raise BadInput(f"--out={out}: is no report; it is not overwritten, name another file")


def _write_text(out: pathlib.Path, text: str) -> None:
    """Replace the file whole; of a link, the file that it leads to."""
    with as_refusal(f"--out={out}"):
        # What a record holds need not be text that can be written (lone surrogates).
        replace_file(pathlib.Path(os.path.realpath(out)), text, errors="replace")
