"""What rates and runs cost, and what it takes to reach an accuracy."""

from collections.abc import Sequence
from typing import Any

from jaxbench.analysis import pricing
from jaxbench.analysis.pricing import J_PER_KWH, S_PER_HOUR, Price, usd
from jaxbench.analysis.rate import Estimate
from jaxbench.metrics import percent, plain
from jaxbench.reports import work
from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import setting_column, shared
from jaxbench.reports.context import STAGES, Measurement, ReportContext, make_section
from jaxbench.reports.prices import at_price, price_mark, price_words
from jaxbench.reports.runs import ReportedRun, TimeToTarget
from jaxbench.tables.columns import Cell, Column, estimate_columns, metric_column, metric_columns
from jaxbench.tables.table import Table, make_table

_PER_PRICE = "images_per_s_per_usd_per_hour"
_RATE = (
    *shared("run", "status", "experiment", "precision"),
    Column("what", lambda row: STAGES[row["measurement"].stage]),
    Column("feed", "measurement.feed"),
    *shared("batch", "devices"),
)
_COSTS = (
    *metric_columns("price.usd_per_hour"),
    metric_column("images_per_s", "measurement.rate.value"),
    *estimate_columns(_PER_PRICE, _PER_PRICE),
    *estimate_columns("usd_per_million_images", "usd_per_million_images")[:2],
    metric_column("usd_per_billion_tokens", "usd_per_billion_tokens.value"),
    *metric_columns("wall_s", "usd"),
    Column("price: offer, date, source", "origin", left=True),
)
_ELECTRICITY = (
    *shared("run", "status", "experiment", "mode", "devices"),
    *metric_columns("energy_kwh", "electricity_usd"),
    Column("energy covers", "run.summary.telemetry.energy_covers"),
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
    columns = [*_RATE, *setting_column(context), *_COSTS]
    table = make_table(
        columns,
        priced,
        title="What rates and runs cost",
        note="The interval is that of the rate; the price is taken as exact. A whole run includes "
        "compilation and evaluations.",
    )
    electricity = _electricity(context, {row["run"] for row in priced})
    unknown = [f"{run.id}: {run.changed_price}." for run in context.runs if run.changed_price]
    return make_section(
        "cost",
        "Cost",
        "A price covers all hardware of a run, busy or idle, and has a date and a source. A price "
        "of other hardware, or of more than the run used, is marked. More images/s per USD/h is "
        "better. Of a resumed run the time of all processes is priced, with work that was lost.",
        [*unknown, table, electricity],
    )


def _measured(row: Measurement, price: Price) -> _Priced:
    run = row.run
    return cost_of(run, row.rate, price) | {
        "price": price,
        "measurement": row,
        "run": run,
        "origin": Cell(price_words(price, run), "bad" if price_mark(price, run) else ""),
    }


def cost_of(run: ReportedRun, rate: Estimate, price: Price | None) -> dict[str, Any]:
    """Return what a rate of a run and its whole time cost; lost work is paid for, too."""
    wall_s = run.summary.wall_s
    paid_s = None if wall_s is None else run.paid_s(wall_s)
    paid = usd(paid_s, price.usd_per_hour) if price and paid_s is not None else None
    costs = at_price(rate, price, run.sequence_length) if price else {}
    return costs | {"wall_s": wall_s, "paid_s": paid_s, "usd": paid}


def _electricity(context: ReportContext, asked: set[ReportedRun]) -> Table:
    usd_per_kwh = context.prices.usd_per_kwh
    rows = [
        {
            "run": run,
            "energy_kwh": energy_j / J_PER_KWH,
            "electricity_usd": usd_per_kwh and pricing.electricity_usd(energy_j, usd_per_kwh),
        }
        for run in context.runs
        if (energy_j := run.telemetry.get("energy_j")) is not None and (usd_per_kwh or run in asked)
    ]
    return make_table(
        _ELECTRICITY,
        rows,
        title="Electricity" + (f" at {plain(usd_per_kwh)} USD/kWh" if usd_per_kwh else ""),
        note="Energy is measured during training or windows, without compilation, evaluations and "
        "reading. The price of rented hardware includes it."
        + ("" if usd_per_kwh else " --usd_per_kwh gives its price."),
    )


_MOST_POINTS = 120
_UNENDED = {"running": "not yet", "corrupt": "not known"}
_RUNS = (
    Column("target", "to_target.label"),
    Column("reached", "reached"),
    *metric_columns("to_target.epoch", "to_target.images", "to_target.training_flops", "time_s"),
    metric_column("to_target.energy_j"),
    Column("USD", "usd", left=False),
    Column("price", "prices"),
)


def to_target(context: ReportContext) -> Section | None:
    """Return score over time, and each run's time and cost to the target."""
    targets = [*context.times_to_target.values()]
    if not any(one.evaluations for one in targets):
        return None
    charts = []
    evaluated = [one for one in targets if one.evaluations]
    for group in work.grouped(
        evaluated, lambda one: (one.run.work, one.score, one.target)
    ).values():
        charts += _score_charts(group)
    return make_section(
        "target",
        "Time and cost to accuracy",
        "Time is from the start of the run to the end of the first evaluation at or above the "
        "target, with reading, compilation and evaluations. A run that ended below the target "
        "has infinite time and cost (∞). The means over seeds are in “Seeds together”.",
        [_runs_table(context, targets)],
        charts,
    )


def _score_charts(targets: Sequence[TimeToTarget]) -> list[LineChart]:
    first, run = targets[0], targets[0].run
    longest_s = max(one.evaluations[-1][0] for one in targets)
    unit, unit_s = ("h", S_PER_HOUR) if longest_s >= 2 * S_PER_HOUR else ("s", 1.0)
    title = f"{run.experiment}: {first.title} over time"
    n_note = "a point is an evaluation of the whole test split, n = 1 run a line"
    note = f"{run.network}; {run.data}; {n_note}"
    labels = (f"time since its start [{unit}]", f"{first.title} [%]")
    setting = lambda one: one.run.training_setting | {"seed": one.run.seed}  # noqa: E731
    charts = []
    for which, part in work.in_parts(work.labelled(targets, setting)):
        series = [_series(one, label, unit_s) for label, one in part]
        furthest = max(line.points[-1].x for line in series)
        goal = [Point(x, 100 * first.target) for x in (0.0, furthest)]
        series.append(Series(f"target: {percent(first.target)} %", goal, reference=True))
        charts.append(LineChart(title + which, note, *labels, series, from_zero=False))
    return charts


def _series(one: TimeToTarget, label: str, unit_s: float) -> Series:
    status = "" if one.run.status == "done" else f" ({one.run.status})"
    # The evaluation that reached the target is drawn, however many there are.
    drawn = {*work.thinned(one.evaluations, _MOST_POINTS)}
    points = [
        Point(time_s / unit_s, 100 * value)
        for time_s, value in one.evaluations
        if (time_s, value) in drawn or time_s == one.time_s
    ]
    return Series(f"{one.run.id} {label}{status}", points)


def _runs_table(context: ReportContext, targets: Sequence[TimeToTarget]) -> Table:
    rows = []
    for one in targets:
        run, prices = one.run, context.prices.of(one.run)
        price_texts = [f"{plain(p.usd_per_hour)} USD/h: {price_words(p, run)}" for p in prices]
        row = {"run": run, "to_target": one, "prices": "; ".join(price_texts)}
        row["reached"] = Cell(_UNENDED.get(run.status, "broken off"), "soft")
        if one.ended:
            row["reached"] = Cell("yes", "good") if one.reached else Cell("never", "bad")
            row["time_s"] = one.time_s
            row["usd"] = "; ".join(plain(usd(one.paid_s, p.usd_per_hour)) for p in prices)
        rows.append(row)
    shown = shared("run", "status", "experiment", "precision", "batch", "devices", "seed")
    columns = [*shown, *setting_column(context, "seed"), *_RUNS]
    return make_table(columns, rows, "Time to accuracy", "n = 1 run a row: no interval.")
