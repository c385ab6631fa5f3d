"""The table of many cards, with what others published of the same networks beside them."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from jaxbench.analysis.statistics import Estimate
from jaxbench.cards.card import Figure
from jaxbench.errors import BadInput
from jaxbench.metrics import UNKNOWN, count, percent, plain
from jaxbench.reports import published
from jaxbench.reports.blocks import Section
from jaxbench.reports.collect import Collection, collect
from jaxbench.reports.sections.cards import CARD, CARD_COLUMNS, CardRow, status_cell
from jaxbench.reports.write import check_out, render_sections, write_text
from jaxbench.tables.table import (
    Cell,
    Column,
    Table,
    make_table,
    metric_column,
    metric_columns,
    with_figures,
    with_interval,
)
from jaxbench.terminal import printable

FORMATS = ("md", "html")
# What a machine is first asked about; all else is in its card.
_FIGURES = (
    *("matmul_bf16_tflops", "matmul_fp16_tflops", "matmul_fp32_tflops", "triad_gb_per_s"),
    *("h2d_gb_per_s", "bus_gb_per_s", "drift_percent", "checkpoint_write_gb_per_s"),
)


def write_results(folder: str, form: str, out: pathlib.Path) -> Collection:
    """Write the table of all cards in or below a folder; return what was found.

    Args:
      form: one of `FORMATS`.
      out: the file; it replaces an older report and nothing else.

    Raises:
      BadInput: there is no card, or the file cannot be written.
    """
    check_out(out)
    collection = collect([folder])
    if not collection.cards:
        why = collection.notes[-1] if collection.notes else "holds no card"
        raise BadInput(f"{folder}: {why}")
    write_text(out, render_results(collection, form))
    return collection


def render_results(collection: Collection, form: str) -> str:
    """Return the tables of machines and networks as Markdown or HTML."""
    rows = [CardRow(own) for own in collection.cards]
    wrong = [f"{own.id}: {printable(line)}." for own in collection.cards for line in own.problems]
    folder = Column("folder", lambda row: printable(row.of.name))
    columns = [CARD, folder, *CARD_COLUMNS[1:], *map(_figure_column, _FIGURES)]
    machines = Section(
        "cards",
        "Cards",
        "Of figures by device, the median over the devices of the host, and in brackets the share "
        "of the published peak; of collectives the highest.",
        [*collection.notes, *wrong, make_table(with_figures(columns, rows), rows, "Machines")],
    )
    tables = _networks(collection)
    networks = Section(
        "networks",
        "Networks",
        "Rows marked “measured” are from the cards. Rows marked “published” are from others, with "
        "date and source: other software at other times, not reproduced here.",
        tables,
    )
    return render_sections([machines, *([networks] if tables else [])], form, "jaxbench: cards")


def _figure_column(name: str) -> Column:
    def cell(row: CardRow) -> str:
        figures = [figure for figure in row.of.card.figures() if figure.name == name]
        if not figures:
            return UNKNOWN
        by_device = figures[0].device is not None
        middle = statistics.median if by_device else max
        shares = [f.share_of_nominal for f in figures if f.share_of_nominal is not None]
        share = f" ({percent(middle(shares))} %)" if shares else ""
        return plain(middle(figure.value for figure in figures)) + share

    return Column(name, cell, left=False)


class _Measured(NamedTuple):
    """A network's rate on a card."""

    of: CardRow
    rate: Figure

    def other(self, name: str) -> float | None:
        """Return another figure of the same network, precision and batch."""
        key = (name, *self.rate.key[1:])
        return next((f.value for f in self.of.of.card.figures() if f.key == key), None)


def _networks(collection: Collection) -> list[Table]:
    """Return a table for each network: the cards' rates, and the published ones."""
    measured = [
        _Measured(CardRow(own), figure)
        for own in collection.cards
        for figure in own.card.figures()
        if figure.name == "images_per_s"
    ]
    return [
        _network(name, [one for one in measured if one.rate.labels["network"] == name])
        for name in dict.fromkeys(one.rate.labels["network"] for one in measured)
    ]


def _network(name: str | int, measured: Sequence[_Measured]) -> Table:
    sources = published.Sources()
    rows = [_measured_row(one) for one in measured]
    for row in sources.rows("throughput", lambda row: row["model"] == name):
        rows.append(row | {"rate": Estimate(row["images_per_s"])})
    columns = [
        published.ORIGIN,
        Column("card", "card"),
        published.HARDWARE,
        published.PRECISION,
        published.BATCH,
        Column("images/s (95 % interval)", "rate", with_interval(plain)),
        metric_column("mfu"),
        Column("of the measured peak [%]", "of_measured", percent),
        *metric_columns("joules_per_image", "compile_s"),
        Column("verdict", "verdict", left=True),
        published.SOURCE,
    ]
    return make_table(with_figures(columns, rows), rows, printable(str(name)), sources.note)


def _measured_row(one: _Measured) -> published.Row:
    card, labels = one.of.of.card, one.rate.labels
    batch = labels["batch"]
    outcome = card.verdict and card.verdict.outcome
    return {
        "origin": published.MEASURED,
        "card": CARD.of(one.of),
        "machine": printable(card.hardware),
        "precision": printable(str(labels["precision"])),
        "global_batch": batch if isinstance(batch, int) else Cell(printable(batch)),
        "rate": Estimate(one.rate.value, *(one.rate.interval or (None, None))),
        "mfu": one.other("mfu"),
        "of_measured": one.other("measured_peak_share"),
        "joules_per_image": one.other("energy_j_per_image"),
        "compile_s": one.other("compile_cold_s"),
        "verdict": status_cell(outcome),
        "cited": f"{card.created_at[:10]}, {count(card.minutes_taken)} min",
    }
