"""What it takes to reach an accuracy: hours, images, energy and USD."""

import collections
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxbench.analysis.pricing import S_PER_HOUR, Price, find_price, load_prices, training_s, usd
from jaxbench.analysis.statistics import Estimate, spread
from jaxbench.metrics import count, percent, plain
from jaxbench.reports import published, work
from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import run_cell, run_ids, setting_column, shared
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.prices import price_label, price_words
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.time_to_target import FEWEST_SEEDS, TimeToTarget
from jaxbench.tables.table import (
    Cell,
    Column,
    Table,
    interval,
    make_table,
    metric_column,
    metric_columns,
)

_MOST_POINTS = 120
_UNENDED = {"running": "not yet", "corrupt": "not known"}
_IMAGES_OF_IMAGENET = 1_281_167
_RUNS = (
    Column("target [%]", "to_target.label"),
    Column("reached", "reached", left=True),
    Column("best [%]", "to_target.best_score", percent),
    *metric_columns("to_target.epoch", "to_target.images", "to_target.training_flops", "time_s"),
    Column("time [h]", "time_h", plain),
    metric_column("to_target.energy_j"),
    Column("USD", "usd", left=False),
    Column("price", "prices"),
)
_TOGETHER = (
    Column("setting", "setting"),
    Column("target [%]", "target"),
    Column("n seeds that ended", "ended", left=False),
    Column("reached", "reached", count),
    Column("median [s]", "time_s.median", plain),
    Column("mean [s]", "time_s.mean", plain),
    Column("std [s]", "time_s.std", plain),
    Column("least to most [s]", "range_s", interval(plain)),
    Column("epochs alone, median [s]", "epochs_s", plain),
    metric_column("images", more=", median"),
    metric_column("training_flops", more=", mean"),
    metric_column("energy_j", more=", median"),
    Column("USD, median", "usd"),
    Column("caveat", "caveat", left=True),
    Column("runs", "runs", left=True),
)
_PUBLISHED = (
    *(published.ORIGIN, published.HARDWARE),
    *metric_columns("epochs", "top1"),
    Column("time [h]", "time_h", plain),
    metric_column("price.usd_per_hour"),
    Column("USD", "usd", plain),
    Column("USD as printed", "usd_published", plain),
    Column("offer", "offer"),
    published.SOURCE,
)


def to_target(context: ReportContext) -> Section | None:
    """Return score over time and money, and each run's and all seeds' time to the target."""
    found = [*context.times_to_target.values()]
    if not any(one.evaluations for one in found):
        return None
    table, charts = _runs_table(context, found), []
    evaluated = [one for one in found if one.evaluations]
    for group in work.grouped(
        evaluated, lambda one: (work.work_of(one.run), one.score, one.target)
    ).values():
        charts += _over("time", [(one, None) for one in group], table)
        priced = [(one, price) for one in group for price in context.prices.of(one.run)]
        charts += _over("cost", priced, table) if priced else []
    return make_section(
        "target",
        "Time and cost to accuracy",
        "Time is from the start of the run to the end of the first evaluation at or above the "
        "target, with reading, compilation and evaluations. A run that ended below the target "
        "has infinite time and cost (∞). An interrupted run is not counted among those that "
        "ended.",
        [_seeds_table(context, found), table, _published(found)],
        charts,
    )


# One run at one of its prices, or at none.
_Line = tuple[TimeToTarget, Price | None]


def _over(what: str, lines: Sequence[_Line], table: Table) -> list[LineChart]:
    (first, price), run = lines[0], lines[0][0].run
    longest_s = max(one.evaluations[-1][0] for one, _ in lines)
    unit, unit_s = ("h", S_PER_HOUR) if longest_s >= 2 * S_PER_HOUR else ("s", 1.0)
    title = f"{run.experiment}: {first.title} over {what}"
    told = "a point is an evaluation of the whole test split, n = 1 run a line"
    note = f"{run.network}; {run.data}; {told}"
    x_label = "USD since the run's start" if price else f"time since its start [{unit}]"
    labels = (x_label, f"{first.title} [%]")
    settings = {
        one.run: work.training_setting(one.run) | {"seed": one.run.seed} for one, _ in lines
    }
    charts = []
    for part in work.in_parts(work.labelled(lines, lambda line: settings[line[0].run])):
        series = [_series(*line, label, unit_s) for label, line in part]
        furthest = max(own.points[-1].x for own in series)
        goal = [Point(x, 100 * first.target) for x in (0.0, furthest)]
        series.append(Series(f"target: {percent(first.target)} %", goal, reference=True))
        charts.append(LineChart(title, note, *labels, series, table, from_zero=False))
    return charts


def _series(one: TimeToTarget, price: Price | None, label: str, unit_s: float) -> Series:
    status = "" if one.run.status == "done" else f" ({one.run.status})"
    cost = f", {price_label(price, one.run)}" if price else ""
    # The evaluation that reached the target is drawn, however many there are.
    drawn = {*work.thinned(one.evaluations, _MOST_POINTS)}
    points = [
        Point(
            usd(one.run.paid_s(time_s), price.usd_per_hour) if price else time_s / unit_s,
            100 * value,
        )
        for time_s, value in one.evaluations
        if (time_s, value) in drawn or time_s == one.time_s
    ]
    return Series(f"{one.run.id} {label}{cost}{status}", points)


def _seeds_table(context: ReportContext, found: Sequence[TimeToTarget]) -> Table:
    """Return the runs that differ in nothing but their seed, together."""
    same = work.grouped(found, lambda one: (work.training_key(one.run), one.target))
    groups = work.labelled(same.values(), lambda group: work.training_setting(group[0].run))
    return make_table(
        _TOGETHER,
        [_together(context, group, label) for label, group in groups],
        title="Time to the target, seeds together",
        note="n: runs that differ only in their seed. The mean is infinite if one of them never "
        "reached the target, the median if half of them did not. Epochs alone: with evaluations, "
        "without start-up, reading and compilation. Training: operations of the network alone, "
        "forward and backward. Energy is that of training, as telemetry "
        "measured it.",
    )


def _together(context: ReportContext, group: Sequence[TimeToTarget], label: str) -> dict[str, Any]:
    first, ids = group[0], run_ids(group)
    # Repeats say nothing of other seeds: of one seed the first run that ended counts, else the
    # first. A run whose seed nobody knows stands for itself.
    by_seed = work.grouped(sorted(group, key=lambda one: not one.ended), lambda one: one.run.sample)
    seeds = [repeats[0] for repeats in by_seed.values()]
    counted = [one for one in seeds if one.ended]
    row = {
        "setting": f"{first.run.experiment}, {label}",
        "target": first.label,
        "ended": f"{len(counted)} of {len(seeds)}",
        "reached": sum(one.reached for one in counted),
        "runs": run_cell(ids) if len(group) == 1 else ids,
    }
    if not counted:
        return row | {"time_s": {"median": Cell("none has ended", "soft", span=10)}}
    time_s = spread([one.time_s for one in counted])
    images = [one.images if one.reached else math.inf for one in counted]
    flops = [one.training_flops if one.reached else math.inf for one in counted]
    costs = _costs(context, counted)
    caveats = _caveats(counted, [one.run for one in group if one not in seeds])
    return row | {
        "time_s": time_s,
        "range_s": Estimate(low=time_s["min"], high=time_s["max"]),
        "epochs_s": statistics.median(one.epochs_s for one in counted),
        "images": _of_all(statistics.median, images),
        "training_flops": _of_all(statistics.fmean, flops),
        "energy_j": _of_all(statistics.median, [one.energy_j for one in counted]),
        "usd": "; ".join(
            f"{plain(statistics.median(paid))} (at {price})" for price, paid in costs.items()
        ),
        "caveat": Cell("; ".join(caveats), "soft"),
    }


def _of_all(average: Callable[[Sequence[float]], float], values: Sequence[Any]) -> float | None:
    return None if None in values else average(values)


def _caveats(counted: Sequence[TimeToTarget], repeats: Sequence[ReportedRun]) -> Iterator[str]:
    if len(counted) < FEWEST_SEEDS:
        yield f"fewer than {FEWEST_SEEDS} seeds: no result yet"
    # Some seeds compiled, and others fetched their programs.
    outcomes = collections.Counter(one.run.compile_cache or "unknown" for one in counted)
    if len(outcomes) > 1:
        listed = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
        yield f"compilation cache differs ({listed}): compare the epochs alone"
    if repeats:
        yield f"{run_ids(repeats)}: a seed run again, not counted"


def _costs(context: ReportContext, found: Sequence[TimeToTarget]) -> dict[str, list[float]]:
    """Return {price: USD of each}, for prices that all have."""
    costs: dict[str, list[float]] = {}
    for one in found:
        # Two offers may have one label.
        own = {price_label(price, one.run): price for price in context.prices.of(one.run)}
        for label, price in own.items():
            costs.setdefault(label, []).append(usd(one.paid_s, price.usd_per_hour))
    return {label: own for label, own in costs.items() if len(own) == len(found)}


def _runs_table(context: ReportContext, found: Sequence[TimeToTarget]) -> Table:
    rows = []
    for one in found:
        run, prices = one.run, context.prices.of(one.run)
        told = [f"{plain(p.usd_per_hour)} USD/h: {price_words(p, run)}" for p in prices]
        row = {"run": run, "to_target": one, "prices": "; ".join(told)}
        row["reached"] = Cell(_UNENDED.get(run.status, "broken off"), "soft")
        if one.ended:
            row["reached"] = Cell("yes", "good") if one.reached else Cell("never", "bad")
            row |= {"time_s": one.time_s, "time_h": one.time_s / S_PER_HOUR}
            row["usd"] = "; ".join(plain(usd(one.paid_s, p.usd_per_hour)) for p in prices)
        rows.append(row)
    shown = shared("run", "status", "experiment", "precision", "batch", "devices", "seed")
    columns = [*shown, *setting_column(context, "seed"), *_RUNS]
    return make_table(columns, rows, "Time to accuracy", "n = 1 run a row: no interval.")


def _published(found: Sequence[TimeToTarget]) -> Table:
    """Return what others say it took them, where the same network was trained here."""
    networks = {one.run.published_network for one in found}
    sources, prices, rows = published.Sources(), load_prices(), []
    for row in sources.rows("time_to_accuracy", lambda row: row["model"] in networks):
        price = find_price(row["offer"], prices)
        time_s = training_s(row["epochs"], _IMAGES_OF_IMAGENET, row["images_per_s"])
        paid = usd(time_s, price.usd_per_hour)
        rows.append(row | {"price": price, "time_h": time_s / S_PER_HOUR, "usd": paid})
    return make_table(
        _PUBLISHED,
        rows,
        title=f"Published: {', '.join(sorted({row['model'] for row in rows}))} on ImageNet",
        note="Time and USD are estimated from the published rate, epochs and price; compiling "
        f"and evaluations are not in them. {sources.note}",
    )
