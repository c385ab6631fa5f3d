"""What rates and runs cost, where prices are known."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis import pricing
from jaxbench.analysis.pricing import J_PER_KWH, Price
from jaxbench.analysis.statistics import Estimate
from jaxbench.metrics import plain
from jaxbench.reports import published
from jaxbench.reports.blocks import Dot, DotChart, Section
from jaxbench.reports.columns import run_ids, setting_column, shared
from jaxbench.reports.context import STAGES, Measurement, ReportContext, make_section
from jaxbench.reports.prices import at_price, price_label, price_mark, price_words
from jaxbench.reports.published import Sources, is_synthetic, other_work
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import grouped, labelled
from jaxbench.tables.table import (
    Cell,
    Column,
    Table,
    estimate_columns,
    make_table,
    metric_column,
    metric_columns,
    with_figures,
)

_MOST_DOTS = 16
_PUBLISHED_DOT = "{machine}, {framework}, {precision}, {price.offer} ({date})"
_PER_PRICE = "images_per_s_per_usd_per_hour"
_COSTS = (
    *shared("run", "status", "experiment", "precision"),
    Column("what", lambda row: STAGES[row["own"].stage]),
    Column("feed", "own.feed"),
    *shared("batch", "devices"),
    *metric_columns("price.usd_per_hour"),
    metric_column("images_per_s", "own.rate.value"),
    *estimate_columns(_PER_PRICE, _PER_PRICE),
    *estimate_columns("usd_per_million_images", "usd_per_million_images")[:2],
    metric_column("usd_per_billion_tokens", "usd_per_billion_tokens.value"),
    *metric_columns("wall_s", "usd"),
    Column("price: offer, date, source", "origin", left=True),
)
# Behind the devices.
_SETTING_AT = 8
_ELECTRICITY = (
    *shared("run", "status", "experiment", "mode", "devices"),
    Column("energy [kWh]", "kwh", plain),
    Column("electricity [USD]", "usd", plain),
    Column("target [%]", "to_target.label"),
    Column("to the target [kWh]", "target_kwh", plain),
    Column("to the target [USD]", "target_usd", plain),
    Column("energy covers", "run.summary.telemetry.energy_covers"),
)
_PUBLISHED = (
    *(published.ORIGIN, published.HARDWARE),
    Column("framework", "framework"),
    *(published.PRECISION, published.BATCH),
    Column("data", "data"),
    *metric_columns("images_per_s", "price.usd_per_hour"),
    metric_column(_PER_PRICE, f"{_PER_PRICE}.value"),
    metric_column("usd_per_million_images", "usd_per_million_images.value"),
    Column("offer", "price.offer"),
    published.SOURCE,
)
# A rate at one price of its hardware.
_Priced = dict[str, Any]


def cost(context: ReportContext) -> Section | None:
    """Return images/s for a USD an hour, USD for a million images and for whole runs."""
    priced = [
        _measured(row, price)
        for row in context.measurements
        if row.run.id and row.stage in STAGES and row.rate.value
        for price in context.prices.of(row.run)
    ]
    sources = Sources()
    columns = [*_COSTS[:_SETTING_AT], *setting_column(context), *_COSTS[_SETTING_AT:]]
    beside = _published(sources, {row["run"].published_network for row in priced})
    table = make_table(
        with_figures(columns, priced),
        priced,
        title="What rates and runs cost",
        note="images/s: median of n epochs from the 2nd on, or of n windows. The interval (n of 6 "
        "or more) is that of the rate; the price is taken as exact. A whole run includes "
        "compilation and evaluations.",
    )
    published_table = make_table(
        _PUBLISHED,
        beside,
        title="Published rates at the prices of their day",
        note="Estimated from the published rate and price, each with the offers of the machine "
        "that it names; no interval was published. The article prints prices rounded to 0.1 USD/h: "
        "its 374 images/s per USD/h (reserved instance) comes out as 372.4 by 8.4 USD/h. "
        f"{sources.note}",
    )
    electricity = _electricity(context, {row["run"] for row in priced})
    unknown = [f"{run.id}: {run.changed_price}." for run in context.runs if run.changed_price]
    return make_section(
        "cost",
        "Cost",
        "A price covers all hardware of a run, busy or idle, and has a date and a source. A price "
        "of other hardware, or of more than the run used, is marked. More images/s per USD/h is "
        "better. Of a resumed run the time of all processes is priced, with work that was lost.",
        [*unknown, table, published_table, electricity],
        _charts(priced, beside, table),
    )


def _measured(row: Measurement, price: Price) -> _Priced:
    run = row.run
    wall_s = run.summary.wall_s if row.stage == "training" else None
    return at_price(row.rate, price, run.sequence_length) | {
        "price": price,
        "own": row,
        "run": run,
        "wall_s": wall_s,
        "usd": None if wall_s is None else pricing.usd(run.paid_s(wall_s), price.usd_per_hour),
        "origin": Cell(price_words(price, run), "bad" if price_mark(price, run) else ""),
    }


def _published(sources: Sources, networks: set[str | None]) -> list[_Priced]:
    """Return published rates of the networks, with the offers of their hardware."""
    offers = pricing.load_prices()
    rows = sources.rows(
        "throughput",
        lambda row: row["model"] in networks and any(_is_offer_of(offer, row) for offer in offers),
    )
    return [
        row | {"price": price} | at_price(Estimate(row["images_per_s"]), price)
        for row in rows
        for price in offers
        if _is_offer_of(price, row)
    ]


def _is_offer_of(price: Price, row: Mapping[str, Any]) -> bool:
    """Return whether its source gives this price for the machine that the rate was measured on.

    The machine's name stands in brackets: "4x V100 16GB (AWS p3.8xlarge)". Without one nobody knows
    whose it was, and another provider's V100 is another machine.
    """
    hardware, _, machine = row["hardware"].partition(" (")
    machine = machine.removesuffix(")")
    same = price.source == row["source"] and hardware.startswith(price.hardware)
    return same and bool(machine) and machine in price.offer


def _charts(
    priced: Sequence[_Priced], published: Sequence[_Priced], table: Table
) -> list[DotChart]:
    """Return a chart for each network, images and stage: only the same work is compared."""
    charts = []
    usable = [row for row in priced if row["own"].usable]
    for group in grouped(usable, lambda row: row["own"].work).values():
        own = group[0]["own"]
        beside = [
            Dot(
                _PUBLISHED_DOT.format(**row),
                row[_PER_PRICE].value,
                published=True,
            )
            for row in published
            if not other_work(own, row["model"], row["dataset"])
            and (row["data"] == "synthetic") == is_synthetic(own)
        ]
        if len(group) + len(beside) > 1:
            charts.append(_chart(group, beside, table))
    return charts


def _chart(group: Sequence[_Priced], beside: Sequence[Dot], table: Table) -> DotChart:
    run, own = group[0]["run"], group[0]["own"]
    dots = []
    for label, row in labelled(
        group, lambda row: {**row["own"].setting, "batch_size": row["run"].batch_size}
    ):
        name = f"{row['run'].id} {label}, {price_label(row['price'], row['run'])}"
        dots.append(Dot(name, *row[_PER_PRICE].span))
    dots.sort(key=lambda dot: dot.value)
    more = f"; the best {_MOST_DOTS} of {len(dots)}" if len(dots) > _MOST_DOTS else ""
    hollow = "; hollow: estimated from a published training rate and price" if beside else ""
    title = f"{run.experiment} · {STAGES[own.stage]} · {own.feed} feed: images/s per USD/h"
    note = (
        f"{run.network}; {run.data}; filled: measured in this report, n = 1 run a dot, bars: "
        f"95 % interval of its rate where it has one, prices taken as exact{hollow}{more}; "
        f"{run_ids(row['run'] for row in group)}"
    )
    dots = sorted([*dots[-_MOST_DOTS:], *beside], key=lambda dot: dot.value)
    return DotChart(title, note, "images/s per USD/h", dots, table)


def _electricity(context: ReportContext, asked: set[ReportedRun]) -> Table:
    usd_per_kwh = context.prices.usd_per_kwh
    rows = []
    for run in context.runs:
        energy_j = run.telemetry.get("energy_j")
        if energy_j is not None and (usd_per_kwh or run in asked):
            to_target = context.times_to_target.get(run)
            row = {"run": run, "to_target": to_target}
            for name, j in (("", energy_j), ("target_", to_target and to_target.energy_j)):
                row[f"{name}kwh"] = j and j / J_PER_KWH
                row[f"{name}usd"] = j and usd_per_kwh and pricing.electricity_usd(j, usd_per_kwh)
            rows.append(row)
    return make_table(
        with_figures(_ELECTRICITY, rows),
        rows,
        title="Electricity" + (f" at {plain(usd_per_kwh)} USD/kWh" if usd_per_kwh else ""),
        note="Energy is measured during training or windows, without compilation, evaluations and "
        "reading. To the target: of runs that ended there (--target_accuracy). The price of "
        "rented hardware includes it." + ("" if usd_per_kwh else " --usd_per_kwh gives its price."),
    )
