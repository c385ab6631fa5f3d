"""Write a report into a file, which replaces an older report and nothing else."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxbench.errors import BadInput, nearest
from jaxbench.fields import check_fraction
from jaxbench.paths import user_path
from jaxbench.reports import csv_rows, markdown
from jaxbench.reports.blocks import Section
from jaxbench.reports.collect import Collection, collect
from jaxbench.reports.context import ReportContext
from jaxbench.reports.page import render_html
from jaxbench.reports.prices import Prices
from jaxbench.reports.sections import make_sections

FORMATS = ("html", "md", "csv")
# What the first bytes of a report hold, and of nothing else.
_MARKS = ('name="generator" content="jaxbench.report', markdown.MARK, csv_rows.MARK)


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
    """Write a report of run directories, sweeps and folders of them.

    Args:
      paths: the folders.
      out: the file; None for report.html, .md or .csv.
      form: html, md or csv; None for what `out` ends in, else html.
      title: the heading; None for the folders' names.
      prices: what the hardware costs, where the records do not say.
      target_accuracy: the top-1 or Dice that all runs are asked about; None for each run's own.
      section: the name of the only section to write; None for all.

    Returns:
      The file, and what it is about.
    """
    if out == "":
        raise BadInput("--out=: must name a file")
    form = _form(out, form)
    if section is not None and form == "csv":
        raise BadInput("--section: CSV has no sections")
    path = user_path(out or f"report.{form}")
    check_out(path)
    if target_accuracy is not None:
        check_fraction("target_accuracy", target_accuracy)
    prices = prices or Prices()
    collection = collect(paths)
    if form == "csv" and collection.cards and not collection.runs:
        raise BadInput("--format=csv: is of runs; the figures of a card are in its card.json")
    prices.check(collection.runs, [offer.name for offer in collection.offers])
    names = [user_path(path).resolve().name for path in paths]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    title = title or f"jaxbench: {', '.join(names[:3])}{more}"
    write_text(path, render(collection, form, title, prices, target_accuracy, section=section))
    return path, collection


def render(
    collection: Collection, form: str, title: str, *asked: Any, section: str | None = None
) -> str:
    """Return the report of a collection; `asked` is as in `ReportContext`."""
    context = ReportContext(collection, *asked)
    if form == "csv":
        return csv_rows.render_csv(context)
    sections = make_sections(context)
    names = [own.name for own in sections]
    if section not in (None, *names):
        raise BadInput(
            f"--section={section}: this report has no such section; it has {', '.join(names)}"
            + nearest(section, names)
        )
    return render_sections([own for own in sections if section in (None, own.name)], form, title)


def render_sections(sections: Sequence[Section], form: str, title: str) -> str:
    """Return sections as html or md."""
    return (render_html if form == "html" else markdown.render_markdown)(sections, title)


def _form(out: str | None, form: str | None) -> str:
    """Return the format that is asked for, or that the file's name ends in."""
    suffix = pathlib.Path(out or "").suffix.removeprefix(".")
    if suffix in FORMATS:
        if form not in (None, suffix):
            raise BadInput(f"--format={form} --out={out}: are two formats")
        return suffix
    if suffix and form is None:
        raise BadInput(f"--out={out}: ends in none of .html, .md, .csv; give --format too")
    return form or "html"


def check_out(out: pathlib.Path) -> None:
    """Raise BadInput where nothing can be written, or something else would be overwritten."""
    folder = out.absolute().parent
    refused = {
        "is a folder; name a file": out.is_dir(),
        "is no regular file; name another one": out.exists() and not out.is_file(),
        "is a link to nothing; name a file": out.is_symlink() and not out.exists(),
        f"no such folder {out.parent}": not folder.is_dir(),
        f"cannot write in {folder}": not os.access(folder, os.W_OK | os.X_OK),
    }
    for why in (why for why, is_so in refused.items() if is_so):
        raise BadInput(f"--out={out}: {why}")
    try:
        with open(out, "rb") as file:
            head = file.read(2000).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}") from error
    if head and not any(mark in head for mark in _MARKS):
        raise BadInput(f"--out={out}: is no report; it is not overwritten, name another file")


def write_text(out: pathlib.Path, text: str) -> None:
    """Replace the file whole; of a link, the file that it leads to."""
    out = pathlib.Path(os.path.realpath(out))
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        # What a record holds need not be text that can be written (lone surrogates).
        # x: it is new, and no link that somebody has laid here.
        with open(partial, "x", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(partial, out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BadInput(f"--out={out}: {error.strerror}") from error
