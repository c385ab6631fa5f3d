"""Images per second and latency: by batch, device and precision."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import Dot, DotChart, LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, make_section
from jaxbench.report.fields import number
from jaxbench.report.formats import count, milliseconds, percent1, rate
from jaxbench.report.measurements import Measurement
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.settings import grouped, in_parts, series_labels, setting_key
from jaxbench.report.tables import (
    BATCH,
    DEVICES,
    EXPERIMENT,
    PRECISION,
    RUN,
    STATUS,
    Column,
    estimate_columns,
    make_table,
    run_ids,
)

_COLUMNS = (
    *(RUN, STATUS, EXPERIMENT),
    *(Column(name, name) for name in ("stage", "feed")),
    *(PRECISION, DEVICES, BATCH),
    *estimate_columns("images/s", "rate", rate),
    Column("images/s per device", "record.images_per_s_per_device", rate),
    *(Column(f"{p} [ms]", f"record.latency_{p}_s", milliseconds) for p in ("p50", "p95", "p99")),
    Column("steps", "record.latency_steps", count),
    Column("MFU [%]", "record.mfu", percent1),
)
_RATE, _LATENCY = "images/s", "latency [ms]"
# A line: its label, and its measurements by batch.
_Line = tuple[str, list[Measurement]]


def rates(context: ReportContext) -> Section | None:
    """Charts over the batch size for each network, feed and stage; all rates in a table."""
    rows = [row for row in context.measurements if row.rate.value is not None]
    if not rows:
        return None
    drawn = [row for row in rows if row.usable and row.run.batch_size and row.rate.value > 0]
    charts: list[LineChart | DotChart] = []
    for group in grouped(drawn, key=_chart_key).values():
        # One point says no more than its row in the table.
        timed = [row for row in group if number(row.record, "latency_p50_s") is not None]
        for own, what in ((group, _RATE), (timed, _LATENCY)):
            charts += _charts(own, what) if len(own) > 1 else []
    return make_section(
        "rates",
        "Images per second and latency",
        "Rates are over all devices together; a line joins runs that differ in the batch size "
        "alone. Feeds are never mixed: synthetic is the devices alone, resident and stream have "
        "their data to fetch.",
        charts,
        [_table(rows)],
    )


def _chart_key(row: Measurement) -> tuple:
    """What a chart is about; lines within it differ in the rest."""
    return (row.run.experiment, row.run.network, row.run.data, row.feed, row.stage)


def _rate_point(row: Measurement) -> Point:
    return Point(row.run.batch_size, row.rate.value, row.rate.low, row.rate.high)


def _latency_point(row: Measurement) -> Point:
    p50_ms = 1e3 * number(row.record, "latency_p50_s")
    p99_s = number(row.record, "latency_p99_s")
    ends_ms = (None, None) if p99_s is None else (p50_ms, 1e3 * p99_s)
    return Point(row.run.batch_size, p50_ms, *ends_ms)


def _points(points: Sequence[Point]) -> list[Point]:
    """One for each batch size: repeats are no line."""
    found = []
    for x, same in itertools.groupby(points, key=lambda point: point.x):
        one, *others = repeats = list(same)
        ys = [repeat.y for repeat in repeats]
        found.append(Point(x, statistics.median(ys), min(ys), max(ys)) if others else one)
    return found


def _charts(rows: Sequence[Measurement], what: str) -> Iterator[LineChart | DotChart]:
    lines = grouped(rows, key=lambda row: setting_key(row.setting)).values()
    labels = series_labels([line[0].setting for line in lines])
    series = [
        (label, sorted(line, key=lambda row: row.run.batch_size))
        for label, line in zip(labels, lines, strict=True)
    ]
    parts = in_parts(series, MOST_SERIES)
    for part, own in enumerate(parts, 1):
        which = f" ({part} of {len(parts)})" if len(parts) > 1 else ""
        yield _chart(own, what, which)


def _chart(lines: Sequence[_Line], what: str, which: str) -> LineChart | DotChart:
    point: Callable[[Measurement], Point] = _rate_point if what == _RATE else _latency_point
    rows = [row for _, line in lines for row in line]
    run, one_batch = rows[0].run, len({row.run.batch_size for row in rows}) == 1
    bars = (
        f"bars: 95 % interval of the median where it is of {FEWEST_FOR_INTERVAL} or more, "
        f"{_n(rows)} epochs or windows"
        if what == _RATE
        else "points: median of steps closed one by one (p50), bars reach to p99"
    )
    if one_batch:
        bars += "; a dot is one run"
    elif any(len({row.run.batch_size for row in line}) < len(line) for _, line in lines):
        bars += "; of several runs of one batch the median, bars from the least to the most"
    title = f"{run.experiment} · {rows[0].stage} · {rows[0].feed} feed: {what}{which}"
    note = f"{run.network}; {run.data}; {bars}; {_ids(rows)}"
    if one_batch:
        dots = [
            Dot(f"{row.run.id} {label}", p.y, p.low, p.high)
            for label, line in lines
            for row, p in zip(line, map(point, line), strict=True)
        ]
        note = f"global batch {count(run.batch_size)}; {note}"
        return DotChart(title, note, what, dots, _table(rows))
    series = [
        Series(f"{label} · {_ids(line)}", _points([*map(point, line)])) for label, line in lines
    ]
    return LineChart(title, note, "global batch", what, series, _table(rows), x_log=True)


def _n(rows: Sequence[Measurement]) -> str:
    sizes = sorted({row.rate.n for row in rows if row.rate.n})
    return f"n = {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "") if sizes else ""


def _ids(rows: Sequence[Measurement]) -> str:
    return run_ids(row.run.id for row in rows)


def _table(rows: Sequence[Measurement]) -> Table:
    return make_table(
        _COLUMNS,
        rows,
        title="All rates",
        note=(
            "n: epochs (from the 2nd on) or windows that the median and its interval are of; fewer "
            f"than {FEWEST_FOR_INTERVAL} give none. Latencies are of steps closed one by one, as "
            "many as “steps” says."
        ),
    )
