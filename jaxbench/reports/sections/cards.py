"""Cards: what a machine measured of itself, the verdict, and what others published."""

import operator
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxbench.cards.figures import FIGURES, PARTS, PRESETS
from jaxbench.cards.verdict import summary_of
from jaxbench.metrics import UNKNOWN, count, percent, plain
from jaxbench.reports import published
from jaxbench.reports.blocks import Section
from jaxbench.reports.collect import ReportedCard
from jaxbench.reports.columns import status_cell
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.work import grouped
from jaxbench.tables.columns import Cell, Column, metric_column, metric_columns, moment
from jaxbench.tables.table import Table, make_table

_PAIRS = "pair_gb_per_s"
# {network of a card: its name among published ones}.
_PUBLIC = {one.spec: one.public for preset in PRESETS.values() for one in preset.networks}


class _Row(NamedTuple):
    """Something that a card holds."""

    of: ReportedCard
    content: Any = None  # a Figure, Finding or Check


def _outcome(row: _Row) -> Cell:
    return status_cell(row.of.card.verdict.outcome)


def _expected_cell(row: _Row) -> str:
    return f"{expected} ({expected.basis})" if (expected := row.content.expected) else UNKNOWN


def _word(row: _Row) -> Cell:
    """Return how a figure compares with what was expected of it."""
    figure = row.content
    if not figure.expected:
        return Cell(UNKNOWN)
    marks = {"slower": "soft", "as expected": "good"}
    return Cell(figure.comparison_text, marks.get(figure.comparison, ""))


def _share_of_peak(row: _Row) -> float | None:
    peak = row.of.card.peak_of(row.content)
    return peak and row.content.value / peak


_EXPECTED = (Column("expected", _expected_cell, left=False), Column("that is", _word, left=True))


def _best(name: str) -> Column:
    """Return the column of a figure: the median of the devices, or the highest of the links."""

    def cell(row: _Row) -> str:
        if not (figures := [*row.of.card.named(name)]):
            return UNKNOWN
        middle = max if figures[0].device is None else statistics.median
        shares = [f.value / peak for f in figures if (peak := row.of.card.peak_of(f))]
        share = f" ({percent(middle(shares))} %)" if shares else ""
        return plain(middle(figure.value for figure in figures)) + share

    return Column(name, cell, left=False)


_CARD = Column("card", "of.id")
_CARDS = (
    _CARD,
    Column("folder", "of.name"),
    Column("hostname", "of.card.environment.hostname"),
    Column("devices", "of.card.hardware"),
    Column("verdict", _outcome, left=True),
    Column("measured", "of.card.created_at", moment),
    Column("expected", lambda row: summary_of(row.of.card), left=True),
    Column("preset", "of.card.preset"),
    Column("jaxbench", "of.card.jaxbench_version"),
    metric_column("of.card.minutes_taken"),
    # What a machine is first asked about.
    *map(_best, ("matmul_bf16_tflops", "matmul_fp16_tflops", "matmul_fp32_tflops")),
    *map(_best, ("triad_gb_per_s", "h2d_gb_per_s", "bus_gb_per_s", "drift_percent")),
)
_SAYS = Column("says", lambda row: status_cell(row.content.status), left=True)
_FINDINGS = (
    *(_CARD, Column("part", "content.part")),
    Column("rule", lambda row: row.content.rule.replace("_", " ")),
    *(_SAYS, Column("because", "content.text")),
)
_CHECKS = (
    *(_CARD, Column("check", "content.name"), _SAYS),
    *(Column("detail", "content.detail"), Column("advice", "content.advice")),
)
_FIGURES = (
    *(_CARD, Column("figure", "content.name")),
    Column("of", lambda row: str(row.content).partition(", ")[2]),
    metric_column("value", "content.estimate", " (95 % interval)", ends="too"),
    *_EXPECTED,
    metric_column("nominal", lambda row: row.of.card.peak_of(row.content)),
    metric_column("share_of_nominal", _share_of_peak),
    Column("run", "content.run"),
)
_NETWORKS = (
    *(published.ORIGIN, Column("card", "card")),
    *(published.HARDWARE, published.PRECISION, published.BATCH, published.SOFTWARE),
    metric_column("images_per_s", "rate", " (95 % interval)", ends="too"),
    *(Column("expected", "expected", left=False), Column("that is", "word", left=True)),
    *metric_columns("mfu", "measured_peak_share", "joules_per_image", "compile_s"),
    Column("verdict", "verdict", left=True),
    published.SOURCE,
)


def cards(context: ReportContext) -> Section | None:
    """Return a table of machines, and of their networks with what others published."""
    cards = context.collection.cards
    wrong = [f"{card.id}: {line}." for card in cards for line in card.problems[:10]]
    machines = [*map(_Row, cards)]
    table = make_table(_CARDS, machines, "Cards")
    return make_section(
        "cards",
        "Cards",
        "What jaxbench qualify measured. A value measured on each device is shown as the median "
        "over the devices of the host. Brackets contain the percentage of the published peak. "
        "Collectives are shown by their highest rate.",
        [*context.collection.card_notes, *wrong, table, _networks(cards)],
    )


def card_details(context: ReportContext) -> Section | None:
    """Return the verdicts, the figures of every part, and pictures of the pairs."""
    cards = context.collection.cards
    judged = [_Row(o, f) for o in cards for f in o.card.verdict.findings]
    findings = [row for row in judged if row.content.status != "not_judged"]
    parts = [(card, part) for card in cards for part in card.card.parts]
    doctor, notes = (
        [_Row(o, c) for o, p in parts if (p.name == "doctor") is of_doctor for c in p.checks]
        for of_doctor in (True, False)
    )
    tables = [
        make_table(
            _FINDINGS,
            findings,
            "Verdict by rule",
            f"{len(judged) - len(findings)} of {len(judged)} rules did not apply.",
        )._replace(folded=len(cards) > 1),
        make_table(_CHECKS, doctor, "Doctor"),
        make_table(_CHECKS, notes, "Notes"),
    ]
    for name in PARTS:
        figures = [
            _Row(card, figure)
            for card, part in parts
            for figure in (part.figures if part.name == name else ())
            if figure.name != _PAIRS
        ]
        tables.append(make_table(_FIGURES, figures, name.capitalize()))
    return make_section(
        "card-details",
        "Cards in detail",
        "Each rule names its limit. Percentages are of the published peak.",
        [*tables, *map(_pairs, cards)],
    )


def _pairs(card: ReportedCard) -> Table:
    """Return the rates of copies between each two devices."""
    figures = [one for one in card.card.named(_PAIRS) if one.value > 0]
    pairs = {(str(f.labels["source"]), str(f.labels["peer"])): f.value for f in figures}
    pairs |= {ends[::-1]: value for ends, value in pairs.items()}  # both ways at once
    # Numbers in their order, whatever else is there behind them.
    names = sorted({name for pair in pairs for name in pair}, key=lambda n: (len(n), n))

    def column(peer: str) -> Column:
        return metric_column("value", lambda name: pairs.get((name, peer)))._replace(title=peer)

    columns = [Column("from / to", str), *map(column, names)]
    title = f"{card.id}: {FIGURES[_PAIRS].meaning} [GB/s]"
    return make_table(columns, names, title, card.card.label)


def _networks(cards: Sequence[ReportedCard]) -> Table:
    """Return the cards' rates of each network, and the published ones."""
    rates = [_Row(card, figure) for card in cards for figure in card.card.named("images_per_s")]
    measured = [*map(_measured_row, rates)]
    names, sources = [*dict.fromkeys(row["model"] for row in measured)], published.Sources()
    rows, more = [], 0
    for work, same in grouped(measured, operator.itemgetter("work")).items():
        rates = published.nearest(work, [row["global_batch"] for row in same])
        beside = sources.rates(rates[: published.MOST])
        rows += [*same, *(row | {"model": same[0]["model"]} for row in beside)]
        more += len(rates) - len(beside)
    rows.sort(key=lambda row: names.index(row["model"]))
    note = sources.note and f"{published.beside_note(more)} {sources.note}"
    by_network = operator.itemgetter("model")
    return make_table(_NETWORKS, rows, "Images per second", note, group=by_network)


def _measured_row(row: _Row) -> dict[str, Any]:
    card, rate = row.of.card, row.content
    # Of the same network, precision and batch.
    others = {f.name: f.value for f in card.figures() if f.labels == rate.labels}
    batch, network = rate.labels["batch"], str(rate.labels["network"])
    precision, environment = str(rate.labels["precision"]), card.environment
    return others | {
        "work": published.work_key(
            _PUBLIC.get(network) or network,
            environment["device_kind"],
            environment["num_devices"],
            precision,
        ),
        "origin": published.MEASURED,
        "card": row.of.id,
        "model": network,
        "machine": card.hardware,
        "precision": precision,
        "global_batch": batch if isinstance(batch, int) else Cell(batch),
        "rate": row.content.estimate,
        "expected": _expected_cell(row),
        "word": _word(row),
        "joules_per_image": others.get("energy_j_per_image"),
        "compile_s": others.get("compile_cold_s"),
        "verdict": _outcome(row),
        "cited": f"{card.created_at[:10]}, {count(card.minutes_taken)} min",
    }
