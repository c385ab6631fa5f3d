"""Images per second and latency: by batch, device and precision."""

import itertools
import statistics
from collections.abc import Callable, Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import Dot, DotChart, LineChart, Point, Section, Series, Table
from jaxbench.report.measurements import Measurement, series_labels, setting_key
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.sections.material import (
    MOST_CHARTS,
    ReportContext,
    left_out,
    run_cell,
    run_ids,
    status_cell,
)
from jaxbench.report.values import count, interval, milliseconds, percent, rate

# What a chart is about; lines within it differ in the rest.
_OF_A_CHART = ("experiment", "network", "data", "feed", "stage")


def rates(material: ReportContext) -> Section | None:
    """Charts over the batch size for each network, feed and stage; all rates in a table."""
    rows = [row for row in material.measurements if row.images_per_s is not None]
    if not rows:
        return None
    drawn = [row for row in rows if row.usable and row.batch_size and row.images_per_s > 0]
    groups: dict[tuple, list[Measurement]] = {}
    for row in drawn:
        groups.setdefault(tuple(getattr(row, name) for name in _OF_A_CHART), []).append(row)
    charts: list[LineChart | DotChart] = []
    for key, group in groups.items():
        # One point says no more than its row in the table.
        if len(group) > 1:
            charts += _charts(key, group, "images/s", _rate_point)
            latencies = [row for row in group if row.latency_p50_s is not None]
            if len(latencies) > 1:
                charts += _charts(key, latencies, "latency [ms]", _latency_point)
    shown = charts[:MOST_CHARTS]
    return Section(
        "rates",
        "Images per second and latency",
        "Rates are over all devices together; a line joins runs that differ in the batch size "
        "alone. Feeds are never mixed: synthetic is the devices alone, resident and stream have "
        "their data to fetch. " + left_out(len(charts), len(shown), "the table"),
        [*shown, _table(rows)],
    )


def _rate_point(row: Measurement) -> Point:
    return Point(row.batch_size, row.images_per_s, row.images_per_s_low, row.images_per_s_high)


def _latency_point(row: Measurement) -> Point:
    p50_ms = row.latency_p50_s * 1e3
    p99_ms = None if row.latency_p99_s is None else row.latency_p99_s * 1e3
    return Point(row.batch_size, p50_ms, None if p99_ms is None else p50_ms, p99_ms)


def _points(rows: Sequence[Measurement], point: Callable[[Measurement], Point]) -> list[Point]:
    """One for each batch size: repeats are no line."""
    points = []
    for _, same in itertools.groupby(map(point, rows), key=lambda point: point.x):
        one, *others = repeats = list(same)
        if others:
            ys = [repeat.y for repeat in repeats]
            one = Point(one.x, statistics.median(ys), min(ys), max(ys))
        points.append(one)
    return points


def _charts(
    key: tuple,
    rows: Sequence[Measurement],
    what: str,
    point: Callable[[Measurement], Point],
) -> list[LineChart | DotChart]:
    experiment, network, data, feed, stage = key
    lines: dict[tuple, list[Measurement]] = {}
    for row in rows:
        lines.setdefault(setting_key(row.setting), []).append(row)
    labels = series_labels([group[0].setting for group in lines.values()])
    series = [
        (label, sorted(group, key=lambda row: row.batch_size))
        for label, group in zip(labels, lines.values(), strict=True)
    ]
    charts = []
    parts = range(0, len(series), MOST_SERIES)
    for part, start in enumerate(parts, 1):
        own = series[start : start + MOST_SERIES]
        group = [row for _, line in own for row in line]
        sizes = sorted({row.n for row in group if row.n})
        n = f"n = {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "") if sizes else ""
        bars = (
            f"bars: 95 % interval of the median where it is of {FEWEST_FOR_INTERVAL} or more, "
            f"{n} epochs or windows"
            if what == "images/s"
            else "points: median of steps closed one by one (p50), bars reach to p99"
        )
        one_batch = len({row.batch_size for row in group}) == 1
        if one_batch:
            bars += "; a dot is one run"
        elif any(len({row.batch_size for row in line}) < len(line) for _, line in own):
            bars += "; of several runs of one batch the median, bars from the least to the most"
        title = f"{experiment} · {stage} · {feed} feed: {what}"
        title += f" ({part} of {len(parts)})" if len(parts) > 1 else ""
        note = f"{network}; {data}; {bars}; {run_ids(row.run for row in group)}"
        if one_batch:
            dots = [
                Dot(f"{row.run} {label}", p.y, p.low, p.high)
                for label, line in own
                for row in line
                for p in [point(row)]
            ]
            batch = f"global batch {count(group[0].batch_size)}; "
            charts.append(DotChart(title, batch + note, what, dots, _table(group)))
            continue
        charts.append(
            LineChart(
                title=title,
                note=note,
                x_label="global batch",
                y_label=what,
                series=[
                    Series(f"{label} · {run_ids(r.run for r in line)}", _points(line, point))
                    for label, line in own
                ],
                x_log=True,
                table=_table(group),
            )
        )
    return charts


def _table(rows: Sequence[Measurement]) -> Table:
    return Table(
        (
            "run",
            "status",
            "experiment",
            "stage",
            "feed",
            "precision",
            "devices",
            "batch",
            "images/s",
            "95 % interval",
            "n",
            "images/s per device",
            "p50 [ms]",
            "p95 [ms]",
            "p99 [ms]",
            "steps",
            "MFU [%]",
        ),
        [
            [
                run_cell(row.run),
                status_cell(row.status),
                row.experiment or "–",
                row.stage or "–",
                row.feed or "–",
                row.precision or "–",
                row.hardware or "–",
                count(row.batch_size),
                rate(row.images_per_s),
                interval(row.images_per_s_low, row.images_per_s_high),
                count(row.n),
                rate(row.images_per_s_per_device),
                milliseconds(row.latency_p50_s),
                milliseconds(row.latency_p95_s),
                milliseconds(row.latency_p99_s),
                count(row.latency_steps),
                percent(row.mfu, 1),
            ]
            for row in rows
        ],
        title="All rates",
        note=(
            "n: epochs (from the 2nd on) or windows that the median and its interval are of; fewer "
            f"than {FEWEST_FOR_INTERVAL} give none. Latencies are of steps closed one by one, as "
            "many as “steps” says."
        ),
        text_columns=range(7),
    )
