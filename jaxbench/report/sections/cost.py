"""What rates and runs cost, where prices are known."""

from collections.abc import Sequence
from typing import Any

from jaxbench.economics import (
    J_PER_KWH,
    electricity_usd,
    rate_per_price,
    usd,
    usd_per_million_images,
)
from jaxbench.prices import Price, load_prices
from jaxbench.published import load_published
from jaxbench.report.blocks import Cell, Dot, DotChart, Section, Table
from jaxbench.report.measurements import Measurement, series_labels
from jaxbench.report.offers import price_words
from jaxbench.report.published import Sources, hardware_of, other_work
from jaxbench.report.sections.material import Material, run_cell, run_ids, status_cell
from jaxbench.report.values import count, interval, number, plain, rate, seconds

# A training run and its training step measured alone are two figures.
_STAGES = {"training": "training", "train_step": "training step alone"}
_MOST_DOTS = 16
# (row, run, price).
_Priced = tuple[Measurement, Any, Price]


def cost(material: Material) -> Section | None:
    """Images/s for a USD an hour, USD for a million images and for whole runs."""
    by_id = {run.id: run for run in material.runs}
    priced = [
        (row, by_id[row.run], price)
        for row in material.measurements
        if row.run and row.stage in _STAGES and row.images_per_s
        for price in material.offers.of(by_id[row.run])
    ]
    if not priced:
        return None
    table, sources = _table(priced, material.offers.usd_per_kwh), Sources()
    published = _published(priced)
    blocks: list[Any] = [
        *_charts(priced, published, table),
        table,
        *([_published_table(published, sources)] if published else []),
    ]
    return Section(
        "cost",
        "Cost",
        "A price is for all the hardware that a run was on, whether its devices were busy or "
        "not; each has a date and a source. More images/s per USD/h is better.",
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
        if row["hardware"].startswith(price.hardware)
    ]


def _charts(
    priced: Sequence[_Priced], published: Sequence[tuple[dict[str, Any], Price]], table: Table
) -> list[DotChart]:
    """A chart for each network, data and stage: only the same work is beside one another."""
    groups: dict[tuple, list[_Priced]] = {}
    for item in priced:
        row = item[0]
        if row.usable:
            key = (row.experiment, row.network, row.data, row.feed, row.stage)
            groups.setdefault(key, []).append(item)
    charts = []
    for (experiment, network, data, feed, stage), items in groups.items():
        labels = series_labels([{**r.setting, "batch_size": r.batch_size} for r, _, _ in items])
        dots = [
            Dot(
                f"{row.run} {label}, {plain(price.usd_per_hour)} USD/h",
                *(
                    None if value is None else rate_per_price(value, price.usd_per_hour)
                    for value in (row.images_per_s, row.images_per_s_low, row.images_per_s_high)
                ),
            )
            for (row, _, price), label in zip(items, labels, strict=True)
        ]
        dots.sort(key=lambda dot: dot.value)
        more = f"; the best {_MOST_DOTS} of {len(dots)}" if len(dots) > _MOST_DOTS else ""
        own = items[0][0]
        beside = [
            Dot(
                f"{hardware_of(row)}, {price.offer} ({row['date']})",
                rate_per_price(row["images_per_s"], price.usd_per_hour),
                published=True,
            )
            for row, price in published
            if not other_work(own, row["model"], None)
            and (row["data"] == "synthetic") == (own.feed == "synthetic")
        ]
        dots = sorted([*dots[-_MOST_DOTS:], *beside], key=lambda dot: dot.value)
        if len(dots) < 2:
            continue
        ids = run_ids(row.run for row, _, _ in items)
        charts.append(
            DotChart(
                title=f"{experiment} · {_STAGES[stage]} · {feed} feed: images/s per USD/h",
                note=f"{network}; {data}; filled: measured in this report, n = 1 run a dot, bars: "
                "95 % interval of its rate, prices taken as exact"
                + ("; hollow: published rate and price" if beside else "")
                + f"{more}; {ids}",
                x_label="images/s per USD/h",
                dots=dots,
                table=table,
            )
        )
    return charts


def _table(priced: Sequence[_Priced], usd_per_kwh: float | None) -> Table:
    energies_j = [number(run.summary, "telemetry", "energy_j") for _, run, _ in priced]
    electric = any(energy_j is not None for energy_j in energies_j)
    rows = []
    for (row, run, price), energy_j in zip(priced, energies_j, strict=True):
        low, high = row.images_per_s_low, row.images_per_s_high
        per_hour = price.usd_per_hour
        wall_s = number(run.summary, "wall_s") if row.stage == "training" else None
        cheap, dear = (x and usd_per_million_images(x, per_hour) for x in (high, low))
        energy = []
        if electric:
            known = energy_j is not None
            paid = electricity_usd(energy_j, usd_per_kwh) if known and usd_per_kwh else None
            energy = [plain(energy_j / J_PER_KWH) if known else "–", plain(paid)]
        rows.append(
            [
                run_cell(row.run),
                status_cell(row.status),
                row.experiment or "–",
                row.precision or "–",
                _STAGES[row.stage],
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
                *energy,
                price_words(price),
            ]
        )
    note = (
        "n: epochs or windows that the interval is of; it holds the rate's scatter, not the "
        "price's. A whole run has compiling, evaluations and the rest in it."
    )
    if electric:
        note += (
            " Energy is what telemetry measured in its windows (see Telemetry for what it covers); "
            "rented hardware has it in its price."
        )
        note += "" if usd_per_kwh else " --usd_per_kwh gives its price."
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
            *(("energy [kWh]", "electricity [USD]") if electric else ()),
            "price: offer, date, source",
        ),
        rows,
        title="What rates and runs cost",
        note=note,
        text_columns=(0, 1, 2, 3, 4, 5, 7, 17 + 2 * electric),
    )


def _published_table(published: Sequence[tuple[dict[str, Any], Price]], sources: Sources) -> Table:
    return Table(
        (
            "origin",
            "hardware",
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
        note=f"Reckoned from the published rate and price; no interval was published. "
        f"{sources.note()}",
        text_columns=(0, 1, 2, 4, 9, 10),
    )
