"""Cards: what a machine measured of itself, and the verdict."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxbench.analysis.statistics import Estimate
from jaxbench.cards.card import Figure, Finding
from jaxbench.cards.figures import FIGURES, PARTS
from jaxbench.hardware.checks import Check
from jaxbench.metrics import UNKNOWN, percent, plain
from jaxbench.reports.blocks import MatrixChart, Section
from jaxbench.reports.collect import ReportedCard
from jaxbench.reports.context import MOST_CHARTS, ReportContext, left_out, make_section
from jaxbench.tables.table import Cell, Column, make_table, moment, with_figures, with_interval
from jaxbench.terminal import printable

_MARKS = {
    "pass": "good",
    "ok": "good",
    "warn": "soft",
    "incomplete": "soft",
    "fail": "bad",
    "problem": "bad",
}
_PAIRS = "pair_gb_per_s"


class CardRow(NamedTuple):
    """Something that a card holds."""

    of: ReportedCard
    own: Figure | Finding | Check | None = None


def status_cell(status: str | None) -> Cell:
    """Show an outcome of the verdict, or what the doctor says."""
    shown = (status or UNKNOWN).replace("_", " ")
    return Cell(shown, _MARKS.get(shown, ""))


def _outcome(row: CardRow) -> Cell:
    return status_cell(row.of.card.verdict and row.of.card.verdict.outcome)


def _labels(row: CardRow) -> str:
    told = [f"{name} {value}" for name, value in row.own.labels.items()]
    if row.own.device is not None:
        told.append(f"device {row.own.device}")
    return printable(", ".join(told))


def _value(row: CardRow) -> str:
    ends = row.own.interval or (None, None)
    return with_interval(plain)(Estimate(row.own.value, *ends))


def environment_of(name: str) -> Column:
    """Return the column of a fact of a card's environment."""
    return Column(name.replace("_", " "), lambda row: printable(str(row.of.card.environment[name])))


CARD = Column("card", lambda row: row.of.id)
# Of rows that need no more than a card.
CARD_COLUMNS = (
    CARD,
    environment_of("hostname"),
    Column("devices", lambda row: printable(row.of.card.hardware)),
    Column("verdict", _outcome, left=True),
    Column("measured", lambda row: row.of.card.created_at, moment),
    Column("preset", lambda row: printable(row.of.card.preset)),
    Column("jaxbench", lambda row: printable(row.of.card.jaxbench_version)),
    Column("minutes", lambda row: row.of.card.minutes_taken, plain),
)
_FINDINGS = (
    CARD,
    Column("part", lambda row: printable(row.own.part)),
    Column("rule", lambda row: printable(row.own.rule.replace("_", " "))),
    Column("says", lambda row: status_cell(row.own.status), left=True),
    Column("because", lambda row: printable(row.own.text)),
)
_CHECKS = (
    CARD,
    Column("check", lambda row: printable(row.own.name)),
    Column("says", lambda row: status_cell(row.own.status), left=True),
    Column("found", lambda row: printable(row.own.found)),
    Column("advice", lambda row: printable(row.own.advice)),
)
_FIGURES = (
    CARD,
    Column("figure", lambda row: row.own.name),
    Column("of", _labels),
    Column("value (95 % interval)", _value, left=False),
    Column("published peak", lambda row: row.own.nominal, plain),
    Column("share of it [%]", lambda row: row.own.share_of_nominal, percent),
    Column("run", lambda row: row.own.run and printable(row.own.run)),
)


def cards(context: ReportContext) -> Section | None:
    """Return the verdicts, the figures of every part, and pictures of the pairs."""
    found = context.collection.cards
    findings = [CardRow(o, f) for o in found if o.card.verdict for f in o.card.verdict.findings]
    parts = [(own, part) for own in found for part in own.card.parts]
    doctor, notes = (
        [CardRow(o, c) for o, p in parts if (p.name == "doctor") is of_doctor for c in p.checks]
        for of_doctor in (True, False)
    )
    wrong = [f"{own.id}: {printable(line)}." for own in found for line in own.problems[:10]]
    charts = [chart for own in found for chart in _pairs(own)]
    verdicts = make_table(_FINDINGS, findings, "Verdict by rule")
    tables = [
        verdicts._replace(folded=len(found) > 1),
        make_table(with_figures(_CHECKS, doctor), doctor, "Doctor"),
        make_table(with_figures(_CHECKS, notes), notes, "Notes"),
    ]
    for name in PARTS:
        figures = [
            CardRow(own, figure)
            for own, part in parts
            for figure in (part.figures if part.name == name else ())
            if figure.name != _PAIRS
        ]
        tables.append(make_table(with_figures(_FIGURES, figures), figures, name.capitalize()))
    return make_section(
        "cards",
        "Cards",
        "What each machine measured of itself. Each rule names its limit. A share is that of the "
        "peak that the maker publishes." + left_out(len(charts), MOST_CHARTS),
        [
            *wrong,
            make_table(CARD_COLUMNS, map(CardRow, found), "Cards"),
            *(*charts[:MOST_CHARTS], *tables),
        ],
    )


def _pairs(own: ReportedCard) -> Sequence[MatrixChart]:
    """Return the picture of the copies between two devices, where there are any."""
    figures = [one for one in own.card.figures() if one.name == _PAIRS and one.value > 0]
    if not figures:
        return []
    values = {(str(f.labels["source"]), str(f.labels["peer"])): f.value for f in figures}
    rows = [CardRow(own, figure) for figure in figures]
    table = make_table(with_figures(_FIGURES, rows), rows)
    # Numbers in their order, whatever else is there behind them.
    labels = sorted({name for pair in values for name in pair}, key=lambda n: (len(n), n))
    title = f"{own.id}: {FIGURES[_PAIRS].meaning} [GB/s]"
    note = printable(f"{own.card.label}; the darker the faster")
    return [MatrixChart(title, note, "to device", "from device", labels, values, table)]
