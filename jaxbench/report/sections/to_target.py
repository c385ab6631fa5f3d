"""What it takes to reach an accuracy: hours, images, energy and USD."""

import collections
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.analysis.pricing import S_PER_HOUR, find_price, load_prices, training_s, usd
from jaxbench.analysis.published import load_published
from jaxbench.analysis.statistics import spread
from jaxbench.report.blocks import Cell, LineChart, Point, Section, Series, Table
from jaxbench.report.collect import ReportedRun
from jaxbench.report.measurements import series_labels, setting_key
from jaxbench.report.offers import price_label, price_words
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.published import Sources
from jaxbench.report.sections.material import (
    MOST_CHARTS,
    ReportContext,
    left_out,
    run_cell,
    run_ids,
    status_cell,
)
from jaxbench.report.values import count, number, percent, plain, text
from jaxbench.report.ways import SCORES, TimeToTarget, time_to_target

# Fewer seeds are no result.
_SEEDS = 5
_MOST_POINTS = 120
_UNENDED = {"running": "not yet", "corrupt": "not known"}
_IMAGES_OF_IMAGENET = 1_281_167


def to_target(material: ReportContext) -> Section | None:
    """Score over time and money; each run's way to the target, and what seeds say together."""
    ways = [way for run in material.runs if (way := time_to_target(run, material.target))]
    if not any(way.evaluations for way in ways):
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
        "costs without end (∞); one that was broken off, before its first evaluation perhaps, says "
        "nothing and is not counted among those that ended. "
        + left_out(len(charts), len(shown), "the tables"),
        [*shown, _seeds_table(material, ways), table, *published],
    )


def _charts(material: ReportContext, ways: Sequence[TimeToTarget], table: Table) -> list[LineChart]:
    """Score over hours, and over USD; a chart for each network, data and target."""
    groups: dict[tuple, list[TimeToTarget]] = {}
    for way in ways:
        if not way.evaluations:
            continue
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
    labels = series_labels([{**_setting(way.run), "seed": _seed(way.run)} for way, _ in lines])
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
            points = [Point(at(time_s), 100 * value) for time_s, value in _thinned(way)]
            furthest = max(furthest, points[-1].x)
            status = "" if way.run.status == "done" else f" ({way.run.status})"
            cost = f", {price_label(price)}" if priced else ""
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


def _thinned(way: TimeToTarget) -> list[tuple[float, float]]:
    """The evaluations that are drawn: the last is, and the one that reached the target."""
    step = -(-len(way.evaluations) // _MOST_POINTS)
    last = len(way.evaluations) - 1
    return [
        (time_s, value)
        for place, (time_s, value) in enumerate(way.evaluations)
        if (last - place) % step == 0 or time_s == way.time_s
    ]


def _setting(run: ReportedRun) -> dict[str, Any]:
    """All but the seed: what seeds together have in common."""
    return {
        **run.setting(),
        "batch_size": run.batch_size,
        "epochs": number(run.config, "epochs"),
        "max_steps": number(run.config, "max_steps"),
    }


def _seed(run: ReportedRun) -> float | None:
    return number(run.config, "seed")


def _endless(value: float | None, show: Callable[[float], str] = plain) -> str:
    return "–" if value is None else "∞" if math.isinf(value) else show(value)


def _seeds_table(material: ReportContext, ways: Sequence[TimeToTarget]) -> Table:
    """Runs that differ in nothing but their seed, together."""
    groups: dict[tuple, list[TimeToTarget]] = {}
    for way in ways:
        groups.setdefault((setting_key(_setting(way.run)), way.target), []).append(way)
    labels = series_labels([_setting(group[0].run) for group in groups.values()])
    rows = []
    for group, label in zip(groups.values(), labels, strict=True):
        seeds, repeats = _first_of_each_seed(group)
        counted = [way for way in seeds if way.ended]
        reached = [way for way in counted if way.epoch is not None]
        head = [
            f"{group[0].run.experiment}, {label}",
            f"{SCORES[group[0].score]} {percent(group[0].target)}",
            f"{len(counted)} of {len(seeds)}",
            count(len(reached)),
        ]
        if not counted:
            rows.append([*head, Cell("none has ended", "soft", span=9), _ids(group)])
            continue
        time = spread([way.time_s for way in counted])
        images = [way.images if way.epoch is not None else math.inf for way in counted]
        energy = [way.energy_j for way in counted]
        costs = _costs(material, counted)
        caveats = [f"fewer than {_SEEDS} seeds: no result yet"] if len(counted) < _SEEDS else []
        caveats += _compiled(counted)
        if repeats:
            ids = run_ids(way.run.id for way in repeats)
            caveats.append(f"{ids}: a seed run again, not counted")
        rows.append(
            [
                *head,
                _endless(time["median"]),
                _endless(time["mean"]),
                _endless(time["std"]),
                f"{_endless(time['min'])} to {_endless(time['max'])}",
                _endless(_median([way.epochs_s for way in counted])),
                _endless(_median(images), count),
                _endless(_median(energy)),
                "; ".join(f"{_endless(_median(c))} ({label})" for label, c in costs.items()) or "–",
                Cell("; ".join(caveats), "soft"),
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
            "epochs alone, median [s]",
            "images, median",
            "energy, median [J]",
            "USD, median",
            "caveat",
            "runs",
        ),
        rows,
        title="To the target, seeds together",
        note="n: runs that differ in their seed alone. Half of the seeds without end make the "
        "median endless, one of them the mean. Epochs alone: with their evaluations, without "
        "compiling, reading and starting. Energy is what telemetry measured while training.",
        text_columns=(0, 1, 11, 12, 13),
    )


def _first_of_each_seed(
    group: Sequence[TimeToTarget],
) -> tuple[list[TimeToTarget], list[TimeToTarget]]:
    """A way of every seed, and the repeats, which say nothing of other seeds.

    Of several runs of one seed the first that ended counts; where none has, the first.
    """
    first: dict[Any, TimeToTarget] = {}
    for way in sorted(group, key=lambda way: not way.ended):
        seed = _seed(way.run)
        # A run whose seed nobody knows stands for itself.
        first.setdefault(way.run.id if seed is None else seed, way)
    counted = {way.run.id for way in first.values()}
    seeds = [way for way in group if way.run.id in counted]
    return seeds, [way for way in group if way.run.id not in counted]


def _compiled(ways: Sequence[TimeToTarget]) -> list[str]:
    """Says so where some seeds compiled and others found their programs kept."""
    outcomes = collections.Counter(
        text(way.run.summary, "compile_cache") or "unknown" for way in ways
    )
    if len(outcomes) < 2:
        return []
    told = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
    return [f"compilation cache differs ({told}): compare the epochs alone"]


def _ids(group: Sequence[TimeToTarget]) -> Cell | str:
    return run_cell(group[0].run.id) if len(group) == 1 else run_ids(way.run.id for way in group)


def _median(values: Sequence[float | None]) -> float | None:
    return None if None in values or not values else statistics.median(values)


def _costs(material: ReportContext, ways: Sequence[TimeToTarget]) -> dict[str, list[float]]:
    """{price: USD of each}, for prices that all have."""
    costs: dict[str, list[float]] = {}
    for way in ways:
        own = {f"at {price_label(price)}": price for price in material.offers.of(way.run)}
        for label, price in own.items():
            costs.setdefault(label, []).append(usd(way.time_s, price.usd_per_hour))
    return {label: c for label, c in costs.items() if len(c) == len(ways)}


def _runs_table(material: ReportContext, ways: Sequence[TimeToTarget]) -> Table:
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
                else Cell(_UNENDED.get(run.status, "broken off"), "soft"),
                percent(max((value for _, value in way.evaluations), default=None)),
                count(way.epoch),
                count(way.images),
                _endless(time_s),
                _endless(None if time_s is None else time_s / S_PER_HOUR),
                _endless(way.energy_j),
                "; ".join(_endless(usd(time_s, p.usd_per_hour)) for p in offers)
                if offers and time_s is not None
                else "–",
                "; ".join(f"{plain(p.usd_per_hour)} USD/h: {price_words(p, run)}" for p in offers)
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


def _published(ways: Sequence[TimeToTarget], sources: Sources) -> list[Table]:
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
