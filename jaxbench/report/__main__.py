"""Makes a report of run directories and sweeps: `python -m jaxbench.report DIR [DIR ...]`.

DIR is a run directory, a sweep's folder, or a folder with some of them below it. Nothing is
measured, and nothing is changed in them.
"""

import os
import pathlib

from absl import flags

from jaxbench.analysis.pricing import read_prices
from jaxbench.cli import entry_point, price_flags
from jaxbench.errors import BadInput
from jaxbench.report import csv_rows, markdown
from jaxbench.report.collect import Collection, collect
from jaxbench.report.context import ReportContext
from jaxbench.report.page import render_html
from jaxbench.report.prices import Prices
from jaxbench.report.sections import make_sections

_FORMATS = ("html", "md", "csv")
# What the first bytes of a report hold, and of nothing else.
_MARKS = ('name="generator" content="jaxbench.report', markdown.MARK, csv_rows.MARK)

_OUT = flags.DEFINE_string("out", None, "The file to write; default report.html, .md or .csv.")
_FORMAT = flags.DEFINE_enum(
    "format",
    None,
    _FORMATS,
    "html: one page with charts. md: its tables. csv: a row for each measurement. Default: what "
    "--out ends in, else html.",
)
_TARGET = flags.DEFINE_float(
    "target",
    None,
    "Ask all runs how they got to this top-1 (or Dice), as a share: 0.94. Default: what each was "
    "to stop at (--target_accuracy).",
)
_USD_PER_KWH = flags.DEFINE_float("usd_per_kwh", None, "What a kWh of electricity costs.")
_TITLE = flags.DEFINE_string("title", None, "The heading; default: the folders' names.")


def main(paths: list[str]) -> int:
    """Write the report; return the exit code."""
    if not paths:
        raise BadInput("give at least one DIR: a run directory, a sweep, or a folder of them")
    if _OUT.value == "":
        raise BadInput("--out=: must name a file")
    form = _form()
    out = pathlib.Path(_OUT.value or f"report.{form}").expanduser()
    _check_out(out)
    prices = _prices()
    price_flags.check_target("target")
    collection = collect(paths)
    prices.check(collection.runs)
    names = [pathlib.Path(path).expanduser().resolve().name for path in paths]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    title = _TITLE.value or f"jaxbench: {', '.join(names[:3])}{more}"
    text = render(collection, form, title, prices, _TARGET.value)
    _write(out, text)
    sweeps = f", {len(collection.sweeps)} sweep(s)" if collection.sweeps else ""
    print(f"{len(collection.runs)} run(s){sweeps}: {out}")
    return 0


def render(
    collection: Collection,
    form: str,
    title: str,
    prices: Prices | None = None,
    target: float | None = None,
) -> str:
    """Return the report of a collection as html, md or csv."""
    context = ReportContext(collection, prices or Prices(), target)
    if form == "csv":
        return csv_rows.render_csv(context)
    write = render_html if form == "html" else markdown.render_markdown
    return write(make_sections(context), title)


def _form() -> str:
    """Return the format: --format, else the file's suffix."""
    suffix = pathlib.Path(_OUT.value or "").suffix.removeprefix(".")
    if suffix in _FORMATS:
        if _FORMAT.value not in (None, suffix):
            raise BadInput(f"--format={_FORMAT.value} --out={_OUT.value}: say two things")
        return suffix
    if suffix and _FORMAT.value is None:
        raise BadInput(f"--out={_OUT.value}: ends in none of .html, .md, .csv; give --format too")
    return _FORMAT.value or "html"


def _prices() -> Prices:
    price_flags.check_positive("usd_per_kwh")
    listed = []
    if price_flags.PRICES.value and price_flags.OFFER.value is None:
        listed = read_prices(price_flags.PRICES.value)
        if price_flags.USD_PER_HOUR.value is not None:
            raise BadInput("--prices and --usd_per_hour: give one of them")
    return Prices(None if listed else price_flags.stated_price(), listed, _USD_PER_KWH.value)


def _check_out(out: pathlib.Path) -> None:
    """Raise BadInput where nothing can be written, or something else would be overwritten."""
    folder = out.absolute().parent
    for refused, why in (
        (out.is_dir(), "is a folder; name a file"),
        (out.exists() and not out.is_file(), "is no regular file; name another one"),
        (out.is_symlink() and not out.exists(), "is a link to nothing; name a file"),
        (not folder.is_dir(), f"no such folder {out.parent}"),
        (not os.access(folder, os.W_OK | os.X_OK), f"cannot write in {folder}"),
    ):
        if refused:
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


def _write(out: pathlib.Path, text: str) -> None:
    """Replace the file whole; of a link, the file that it leads to."""
    out = pathlib.Path(os.path.realpath(out))
    partial = out.with_name(f"{out.name}.partial")
    try:
        # What a record holds need not be text that can be written (lone surrogates).
        partial.write_text(text, encoding="utf-8", errors="replace")
        os.replace(partial, out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BadInput(f"--out={out}: {error.strerror}") from error


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
