"""What it takes to reach an accuracy: hours, images, energy and USD."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.economics import S_PER_HOUR, training_s, usd
from jaxbench.prices import find_price, load_prices
from jaxbench.published import load_published
from jaxbench.report.blocks import Cell, LineChart, Point, Section, Series, Table
from jaxbench.report.collect import ReportedRun
from jaxbench.report.measurements import series_labels, setting_key
from jaxbench.report.offers import price_words
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.published import Sources
from jaxbench.report.sections.material import (
    MOST_CHARTS,
    Material,
    left_out,
    run_cell,
    run_ids,
    status_cell,
)
from jaxbench.report.values import count, number, percent, plain
from jaxbench.report.ways import SCORES, Way, way_of
from jaxbench.spread import spread

# Fewer seeds are no result.
_SEEDS = 5
_MOST_POINTS = 120
_IMAGES_OF_IMAGENET = 1_281_167


def to_target(material: Material) -> Section | None:
    """Score over time and money; each run's way to the target, and what seeds say together."""
    ways = [
        way for run in material.runs if (way := way_of(run, material.target)) and way.evaluations
    ]
    if not ways:
        return None
    table = _runs_table(material, ways)
    charts = _charts(material, ways, table)
    sources = Sources()
    published = _published(ways, sources)
    shown = charts[:MOST_CHARTS]
    return Section(
        "target",
        "Time and cost to accuracy",
        "The first evaluation at or above the target, from the run's first moment: reading, "
        "compiling and evaluations are in it. A run that ended without getting there takes and "
        "costs without end (∞); one that was broken off says nothing and is not counted. "
        + left_out(len(charts), len(shown), "the tables"),
        [*shown, _seeds_table(material, ways), table, *published],
    )


def _charts(material: Material, ways: Sequence[Way], table: Table) -> list[LineChart]:
    """Score over hours, and over USD; a chart for each network, data and target."""
    groups: dict[tuple, list[Way]] = {}
    for way in ways:
        run = way.run
        key = (run.experiment, run.network, run.data, way.score, way.target)
        groups.setdefault(key, []).append(way)
    charts = []
    for (experiment, network, data, score, target), group in groups.items():
        lines = [(way, None) for way in group]
        charts += _over(
            f"{experiment}: {SCORES[score]} over time", f"{network}; {data}", lines, target, table
        )
        priced = [(way, price) for way in group for price in material.offers.of(way.run)]
        charts += _over(
            f"{experiment}: {SCORES[score]} over cost", f"{network}; {data}", priced, target, table
        )
    return charts


def _over(
    title: str, what: str, lines: Sequence[tuple], target: float, table: Table
) -> list[LineChart]:
    if not lines:
        return []
    priced = lines[0][1] is not None
    longest_s = max(way.evaluations[-1][0] for way, _ in lines)
    unit, unit_s = ("h", S_PER_HOUR) if longest_s >= 2 * S_PER_HOUR else ("s", 1.0)
    settings = [
        {**way.run.setting(), "batch_size": way.run.batch_size, "seed": _seed(way.run)}
        for way, _ in lines
    ]
    labels = series_labels(settings)
    charts = []
    for start in range(0, len(lines), MOST_SERIES):
        part = range(start, min(start + MOST_SERIES, len(lines)))
        series, furthest = [], 0.0
        for place in part:
            way, price = lines[place]
            at: Callable[[float], float] = (
                (lambda time_s, price=price: usd(time_s, price.usd_per_hour))
                if priced
                else (lambda time_s: time_s / unit_s)
            )
            points = [Point(at(time_s), 100 * value) for time_s, value in way.evaluations]
            step = -(-len(points) // _MOST_POINTS)
            points = points[::-1][::step][::-1]
            furthest = max(furthest, points[-1].x)
            status = "" if way.run.status == "done" else f" ({way.run.status})"
            cost = f", {plain(price.usd_per_hour)} USD/h" if priced else ""
            series.append(Series(f"{way.run.id} {labels[place]}{cost}{status}", points))
        goal = [Point(0.0, 100 * target), Point(furthest, 100 * target)]
        series.append(Series(f"target: {percent(target)} %", goal, reference=True))
        score = SCORES[lines[0][0].score]
        charts.append(
            LineChart(
                title=title,
                note=f"{what}; a point is an evaluation of the whole test split, n = 1 run a line",
                x_label="USD since the run's start" if priced else f"time since its start [{unit}]",
                y_label=f"{score} [%]",
                series=series,
                from_zero=False,
                table=table,
            )
        )
    return charts


def _seed(run: ReportedRun) -> float | None:
    return number(run.config, "seed")


def _endless(value: float | None, show: Callable[[float], str] = plain) -> str:
    return "–" if value is None else "∞" if math.isinf(value) else show(value)


def _seeds_table(material: Material, ways: Sequence[Way]) -> Table:
    """Runs that differ in nothing but their seed, together."""
    groups: dict[tuple, list[Way]] = {}
    for way in ways:
        config = way.run.config
        key = (
            setting_key(way.run.setting()),
            *(str(config.get(name)) for name in ("batch_size", "epochs", "max_steps")),
            way.target,
        )
        groups.setdefault(key, []).append(way)
    labels = series_labels(
        [{**g[0].run.setting(), "batch_size": g[0].run.batch_size} for g in groups.values()]
    )
    rows = []
    for group, label in zip(groups.values(), labels, strict=True):
        counted = [way for way in group if way.ended]
        reached = [way for way in counted if way.epoch is not None]
        head = [
            f"{group[0].run.experiment}, {label}",
            f"{SCORES[group[0].score]} {percent(group[0].target)}",
            f"{len(counted)} of {len(group)}",
            count(len(reached)),
        ]
        if not counted:
            rows.append([*head, Cell("none has ended", "soft", span=8), _ids(group)])
            continue
        time = spread([way.time_s for way in counted])
        images = [way.images if way.epoch is not None else math.inf for way in counted]
        energy = [way.energy_j for way in counted]
        costs = _costs(material, counted)
        few = Cell(f"fewer than {_SEEDS} seeds: no result yet", "soft")
        rows.append(
            [
                *head,
                _endless(time["median"]),
                _endless(time["mean"]),
                _endless(time["std"]),
                f"{_endless(time['min'])} to {_endless(time['max'])}",
                _endless(_median(images), count),
                _endless(_median(energy)),
                "; ".join(f"{_endless(_median(c))} ({label})" for label, c in costs.items()) or "–",
                few if len(counted) < _SEEDS else "",
                _ids(group),
            ]
        )
    return Table(
        (
            "setting",
            "target [%]",
            "n seeds that ended",
            "reached",
            "median [s]",
            "mean [s]",
            "std [s]",
            "least to most [s]",
            "images, median",
            "energy, median [J]",
            "USD, median",
            "caveat",
            "runs",
        ),
        rows,
        title="To the target, seeds together",
        note="n: runs that differ in their seed alone. Half of the seeds without end make the "
        "median endless, one of them the mean. Energy is what telemetry measured while training.",
        text_columns=(0, 1, 10, 11, 12),
    )


def _ids(group: Sequence[Way]) -> Cell | str:
    return run_cell(group[0].run.id) if len(group) == 1 else run_ids(way.run.id for way in group)


def _median(values: Sequence[float | None]) -> float | None:
    return None if None in values or not values else statistics.median(values)


def _costs(material: Material, ways: Sequence[Way]) -> dict[str, list[float]]:
    """{price: USD of each}, for prices that all have."""
    costs: dict[str, list[float]] = {}
    for way in ways:
        for price in material.offers.of(way.run):
            label = f"at {plain(price.usd_per_hour)} USD/h"
            costs.setdefault(label, []).append(usd(way.time_s, price.usd_per_hour))
    return {label: c for label, c in costs.items() if len(c) == len(ways)}


def _runs_table(material: Material, ways: Sequence[Way]) -> Table:
    rows = []
    for way in ways:
        run, reached = way.run, way.epoch is not None
        offers = material.offers.of(run)
        time_s: Any = way.time_s if way.ended else None
        rows.append(
            [
                run_cell(run.id),
                status_cell(run.status),
                run.experiment,
                run.precision,
                count(run.batch_size),
                run.hardware,
                count(_seed(run)),
                f"{SCORES[way.score]} {percent(way.target)}",
                Cell("yes", "good")
                if reached
                else Cell("never", "bad")
                if way.ended
                else Cell("broken off" if run.status != "running" else "not yet", "soft"),
                percent(max(value for _, value in way.evaluations)),
                count(way.epoch),
                count(way.images),
                _endless(time_s),
                _endless(None if time_s is None else time_s / S_PER_HOUR),
                _endless(way.energy_j),
                "; ".join(_endless(usd(time_s, p.usd_per_hour)) for p in offers)
                if offers and time_s is not None
                else "–",
                "; ".join(f"{plain(p.usd_per_hour)} USD/h: {price_words(p)}" for p in offers)
                or "–",
            ]
        )
    return Table(
        (
            "run",
            "status",
            "experiment",
            "precision",
            "batch",
            "devices",
            "seed",
            "target [%]",
            "reached",
            "best [%]",
            "epoch",
            "images",
            "time [s]",
            "time [h]",
            "energy [J]",
            "USD",
            "price",
        ),
        rows,
        title="Each run's way to the target",
        note="n = 1 run a row: no interval.",
        text_columns=(0, 1, 2, 3, 5, 7, 8, 16),
    )


def _published(ways: Sequence[Way], sources: Sources) -> list[Table]:
    """What others say it took them, where the same network was trained here."""
    networks = {way.run.published_network for way in ways}
    listed = [row for row in load_published("time_to_accuracy") if row["model"] in networks]
    if not listed:
        return []
    rows = []
    prices = load_prices()
    for row in listed:
        price = find_price(row["offer"], prices)
        time_s = training_s(row["epochs"], _IMAGES_OF_IMAGENET, row["images_per_s"])
        rows.append(
            [
                Cell("published", "published"),
                row["hardware"],
                count(row["epochs"]),
                percent(row["top1"], 1),
                plain(time_s / S_PER_HOUR),
                plain(price.usd_per_hour),
                plain(usd(time_s, price.usd_per_hour)),
                plain(row["usd_published"]),
                row["offer"],
                sources.cite(row),
            ]
        )
    return [
        Table(
            (
                "origin",
                "hardware",
                "epochs",
                "top-1 [%]",
                "time [h]",
                "price [USD/h]",
                "USD",
                "USD as printed",
                "offer",
                "when, by whom",
            ),
            rows,
            title=f"Published: {', '.join(sorted({row['model'] for row in listed}))} on ImageNet",
            note="Time and USD are reckoned from the published rate, epochs and price; compiling "
            f"and evaluations are not in them. {sources.note()}",
            text_columns=(0, 1, 8, 9),
        )
    ]
