"""What rates and runs cost, where prices are known."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis.pricing import (
    J_PER_KWH,
    Price,
    electricity_usd,
    load_prices,
    rate_per_price,
    usd,
    usd_per_million_images,
)
from jaxbench.analysis.published import load_published
from jaxbench.report.blocks import Cell, Dot, DotChart, Section, Table
from jaxbench.report.measurements import STAGES, Measurement, series_labels
from jaxbench.report.offers import is_of_other_hardware, price_label, price_words
from jaxbench.report.published import Sources, hardware_of, images_of, is_made_up, other_work
from jaxbench.report.sections.material import ReportContext, run_cell, run_ids, status_cell
from jaxbench.report.values import count, interval, number, percent, plain, rate, seconds, text
from jaxbench.report.ways import SCORES, time_to_target

_MOST_DOTS = 16
# (row, run, price).
_Priced = tuple[Measurement, Any, Price]


def cost(material: ReportContext) -> Section | None:
    """Images/s for a USD an hour, USD for a million images and for whole runs."""
    by_id = {run.id: run for run in material.runs}
    priced = [
        (row, by_id[row.run], price)
        for row in material.measurements
        if row.run and row.stage in STAGES and row.images_per_s
        for price in material.offers.of(by_id[row.run])
    ]
    electricity = _electricity(material, priced)
    blocks: list[Any] = []
    if priced:
        table, published = _table(priced), _published(priced)
        blocks += [*_charts(priced, published, table), table]
        blocks += [_published_table(published)] if published else []
    blocks += [electricity] if electricity else []
    if not blocks:
        return None
    return Section(
        "cost",
        "Cost",
        "A price is for all the hardware that a run was on, whether its devices were busy or "
        "not; each has a date and a source. A price of other hardware is marked as such: what it "
        "makes of a run is what nobody paid. More images/s per USD/h is better.",
        blocks,
    )


def _published(priced: Sequence[_Priced]) -> list[tuple[dict[str, Any], Price]]:
    """The published rates of the networks that were measured, with the offers of their hardware."""
    networks = {row.published_network for row, _, _ in priced}
    shipped = load_prices()
    return [
        (row, price)
        for row in load_published("throughput")
        if row["model"] in networks
        for price in shipped
        if _is_offer_of(price, row)
    ]


def _is_offer_of(price: Price, row: Mapping[str, Any]) -> bool:
    """Whether its source gives this price for the machine that the rate was measured on.

    The machine's name stands in brackets: "4x V100 16GB (AWS p3.8xlarge)". Without one nobody knows
    whose it was, and another provider's V100 is another machine.
    """
    hardware, _, machine = row["hardware"].partition(" (")
    machine = machine.removesuffix(")")
    same = price.source == row["source"] and hardware.startswith(price.hardware)
    return same and bool(machine) and machine in price.offer


def _charts(
    priced: Sequence[_Priced], published: Sequence[tuple[dict[str, Any], Price]], table: Table
) -> list[DotChart]:
    """A chart for each network, images and stage: only the same work is beside one another."""
    groups: dict[tuple, list[_Priced]] = {}
    for item in priced:
        row = item[0]
        if row.usable:
            key = (row.experiment, row.network, row.data, row.feed, row.stage, images_of(row))
            groups.setdefault(key, []).append(item)
    charts = []
    for (experiment, network, data, feed, stage, _), items in groups.items():
        labels = series_labels([{**r.setting, "batch_size": r.batch_size} for r, _, _ in items])
        dots = [
            Dot(
                f"{row.run} {label}, {price_label(price)}"
                + (" (of other hardware)" if is_of_other_hardware(price, run) else ""),
                *(
                    None if value is None else rate_per_price(value, price.usd_per_hour)
                    for value in (row.images_per_s, row.images_per_s_low, row.images_per_s_high)
                ),
            )
            for (row, run, price), label in zip(items, labels, strict=True)
        ]
        dots.sort(key=lambda dot: dot.value)
        more = f"; the best {_MOST_DOTS} of {len(dots)}" if len(dots) > _MOST_DOTS else ""
        own = items[0][0]
        beside = [
            Dot(
                f"{hardware_of(row)}, {row['framework']}, {row['precision']}, {price.offer} "
                f"({row['date']})",
                rate_per_price(row["images_per_s"], price.usd_per_hour),
                published=True,
            )
            for row, price in published
            if not other_work(own, row["model"], row["dataset"])
            and (row["data"] == "synthetic") == is_made_up(own)
        ]
        dots = sorted([*dots[-_MOST_DOTS:], *beside], key=lambda dot: dot.value)
        if len(dots) < 2:
            continue
        ids = run_ids(row.run for row, _, _ in items)
        charts.append(
            DotChart(
                title=f"{experiment} · {STAGES[stage]} · {feed} feed: images/s per USD/h",
                note=f"{network}; {data}; filled: measured in this report, n = 1 run a dot, bars: "
                "95 % interval of its rate where it has one, prices taken as exact"
                + ("; hollow: reckoned from a published training rate and price" if beside else "")
                + f"{more}; {ids}",
                x_label="images/s per USD/h",
                dots=dots,
                table=table,
            )
        )
    return charts


def _table(priced: Sequence[_Priced]) -> Table:
    rows = []
    for row, run, price in priced:
        low, high = row.images_per_s_low, row.images_per_s_high
        per_hour = price.usd_per_hour
        wall_s = number(run.summary, "wall_s") if row.stage == "training" else None
        cheap, dear = (x and usd_per_million_images(x, per_hour) for x in (high, low))
        rows.append(
            [
                run_cell(row.run),
                status_cell(row.status),
                row.experiment or "–",
                row.precision or "–",
                STAGES[row.stage],
                row.feed or "–",
                count(row.batch_size),
                row.hardware or "–",
                plain(per_hour),
                rate(row.images_per_s),
                rate(rate_per_price(row.images_per_s, per_hour)),
                interval(*(x and rate_per_price(x, per_hour) for x in (low, high))),
                count(row.n),
                plain(usd_per_million_images(row.images_per_s, per_hour)),
                interval(cheap, dear, plain),
                seconds(wall_s),
                "–" if wall_s is None else plain(usd(wall_s, per_hour)),
                Cell(price_words(price, run), "bad" if is_of_other_hardware(price, run) else ""),
            ]
        )
    note = (
        "images/s: median of n epochs from the 2nd on, or of n windows; the interval, from 6 of "
        "them on, holds the rate's scatter, not the price's. A whole run has compiling, "
        "evaluations and the rest in it."
    )
    return Table(
        (
            "run",
            "status",
            "experiment",
            "precision",
            "what",
            "feed",
            "batch",
            "devices",
            "price [USD/h]",
            "images/s",
            "images/s per USD/h",
            "95 % interval",
            "n",
            "USD per million images",
            "95 % interval",
            "whole run [s]",
            "whole run [USD]",
            "price: offer, date, source",
        ),
        rows,
        title="What rates and runs cost",
        note=note,
        text_columns=(0, 1, 2, 3, 4, 5, 7, 17),
    )


def _electricity(material: ReportContext, priced: Sequence[_Priced]) -> Table | None:
    """What was measured of it, where somebody asks for costs."""
    usd_per_kwh = material.offers.usd_per_kwh
    asked = {run.id for _, run, _ in priced}
    rows = []
    for run in material.runs:
        energy_j = number(run.summary, "telemetry", "energy_j")
        if energy_j is None or not (usd_per_kwh or run.id in asked):
            continue
        way = time_to_target(run, material.target)
        to_target_j = way and way.energy_j
        rows.append(
            [
                run_cell(run.id),
                status_cell(run.status),
                run.experiment,
                run.mode,
                run.hardware,
                *_paid(energy_j, usd_per_kwh),
                f"{SCORES[way.score]} {percent(way.target)}" if way else "–",
                *_paid(to_target_j, usd_per_kwh),
                text(run.summary, "telemetry", "energy_covers") or "–",
            ]
        )
    if not rows:
        return None
    stated = f" at {plain(usd_per_kwh)} USD/kWh" if usd_per_kwh else ""
    return Table(
        (
            "run",
            "status",
            "experiment",
            "mode",
            "devices",
            "energy [kWh]",
            "electricity [USD]",
            "target [%]",
            "to the target [kWh]",
            "to the target [USD]",
            "energy covers",
        ),
        rows,
        title=f"Electricity{stated}",
        note="Energy is what telemetry measured while the run trained or its windows ran: "
        "compiling, evaluations and reading are not in it. To the target: of runs that ended there "
        "(--target_accuracy). Rented hardware has it in its price."
        + ("" if usd_per_kwh else " --usd_per_kwh gives its price."),
        text_columns=(0, 1, 2, 3, 4, 7, 10),
    )


def _paid(energy_j: float | None, usd_per_kwh: float | None) -> list[str]:
    """An energy in kWh, and in USD where its price is known."""
    if energy_j is None:
        return ["–", "–"]
    paid_usd = electricity_usd(energy_j, usd_per_kwh) if usd_per_kwh else None
    return [plain(energy_j / J_PER_KWH), plain(paid_usd)]


def _published_table(published: Sequence[tuple[dict[str, Any], Price]]) -> Table:
    sources = Sources()
    return Table(
        (
            "origin",
            "hardware",
            "framework",
            "precision",
            "batch",
            "data",
            "images/s",
            "price [USD/h]",
            "images/s per USD/h",
            "USD per million images",
            "offer",
            "when, by whom",
        ),
        [
            [
                Cell("published", "published"),
                hardware_of(row),
                row["framework"] or "–",
                row["precision"] or "–",
                count(row["global_batch"]),
                row["data"] or "–",
                rate(row["images_per_s"]),
                plain(price.usd_per_hour),
                rate(rate_per_price(row["images_per_s"], price.usd_per_hour)),
                plain(usd_per_million_images(row["images_per_s"], price.usd_per_hour)),
                price.offer,
                sources.cite(row),
            ]
            for row, price in published
        ],
        title="Published rates at the prices of their day",
        note="Reckoned from the published rate and price, each with the offers of the machine that "
        "it names; no interval was published. The article prints prices rounded to 0.1 USD/h: its "
        "374 images/s per USD/h (reserved instance) comes out as 372.4 by 8.4 USD/h. "
        f"{sources.note()}",
        text_columns=(0, 1, 2, 3, 5, 10, 11),
    )
