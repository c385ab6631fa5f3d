"""Images per second and latency: by batch, device and precision; the arithmetic beside the peak."""

import itertools
import statistics
from collections.abc import Iterator, Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, Estimate, bar_words, over_runs
from jaxbench.metrics import count
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.columns import measured_share, run_ids, setting_column, shared
from jaxbench.reports.context import Measurement, ReportContext, make_section
from jaxbench.reports.work import grouped, in_parts, labelled, setting_key
from jaxbench.tables.table import (
    Column,
    Table,
    count_column,
    estimate_columns,
    make_table,
    metric_columns,
    span,
)

_COLUMNS = (
    *shared("run", "status", "experiment"),
    *(Column(name, name) for name in ("stage", "feed")),
    *shared("precision", "devices", "batch"),
    *estimate_columns("rate", "images_per_s"),
    *metric_columns(
        "record.images_per_s_per_device",
        "record.tokens_per_s",
        "record.latency_p50_s",
        "record.latency_p95_s",
        "record.latency_p99_s",
        "record.latency_steps",
        "record.mfu",
    ),
)
# Where runs of one batch are more, repeats are one dot.
_MOST_DOTS = 16
# Behind the batch.
_SETTING_AT = 8
_RATE, _LATENCY = "images/s", "latency [ms]"
# What repeats have in common, and they, by batch.
_Line = tuple[str, list[Measurement]]


def rates(context: ReportContext) -> Section | None:
    """Return charts over the batch for each network, feed and stage; all rates in a table."""
    rows = [row for row in context.measurements if row.rate.value is not None]
    drawn = [row for row in rows if row.usable and (row.run.batch_size or 0) > 0 < row.rate.value]
    table = make_table(
        [
            *_COLUMNS[:_SETTING_AT],
            *setting_column(context),
            *_COLUMNS[_SETTING_AT:],
            *measured_share(context),
        ],
        rows,
        title="All rates",
        note="n: epochs (from the 2nd on) or windows that the median and its interval are of; "
        f"fewer than {FEWEST_FOR_INTERVAL} give none. Latencies are of steps closed one by one, as "
        "many as “steps” says.",
    )
    charts: list[LineChart | DotChart] = []
    for group in grouped(drawn, lambda row: row.work).values():
        # One point says no more than its row in the table.
        timed = [row for row in group if _figure(row, _LATENCY).value is not None]
        for own, what in ((group, _RATE), (timed, _LATENCY)):
            charts += _charts(own, what, table) if len(own) > 1 else []
    return make_section(
        "rates",
        "Images per second and latency",
        "Rates are over all devices. A line joins runs that differ only in the batch size. Feeds "
        "are never mixed: synthetic measures the devices alone, resident and stream include "
        "fetching the data.",
        [table],
        charts,
    )


def _figure(row: Measurement, what: str) -> Estimate:
    """Return the rate, or the median of a step's latency, reaching to its 99th percentile."""
    if what == _RATE:
        return row.rate
    p50_s, p99_s = row.record.latency_p50_s, row.record.latency_p99_s
    return Estimate(p50_s, p99_s and p50_s, p99_s).map(lambda s: 1e3 * s)


def _together(rows: Sequence[Measurement], what: str) -> tuple[Estimate, str]:
    """Return the figure of one run or of several, and what its bar is."""
    each = [_figure(row, what) for row in rows]
    if what == _RATE:
        of = over_runs(each)
        return of, bar_words(of, len(rows))
    ends = ([one[i] for one in each if one[i] is not None] for i in range(3))
    told = "p50, bar to p99" + (f", medians of {len(rows)} runs" if len(rows) > 1 else "")
    return Estimate(*(statistics.median(own) if own else None for own in ends)), told


def _charts(rows: Sequence[Measurement], what: str, table: Table) -> Iterator[LineChart | DotChart]:
    rows = sorted(rows, key=lambda row: row.run.batch_size)
    lines = grouped(rows, key=lambda row: setting_key(row.setting)).values()
    parts = in_parts(labelled(lines, lambda line: line[0].setting))
    for part, own in enumerate(parts, 1):
        yield _chart(own, what, table, f" ({part} of {len(parts)})" if len(parts) > 1 else "")


def _chart(lines: Sequence[_Line], what: str, table: Table, which: str) -> LineChart | DotChart:
    rows = [row for _, line in lines for row in line]
    batches = [[row.run.batch_size for row in line] for _, line in lines]
    run, one_batch = rows[0].run, len(set(itertools.chain(*batches))) == 1
    bars = "points: median of steps closed one by one (p50), bars reach to p99"
    if what == _RATE:
        bars = f"bars: 95 % interval of the median where it is of {FEWEST_FOR_INTERVAL} or more, "
        bars += f"n = {span(row.rate.n or 0 for row in rows)} epochs or windows"
    together = one_batch and len(rows) > _MOST_DOTS
    several = "their geometric mean, from 3 runs on with its 95 % interval over runs"
    if what == _LATENCY:
        several = "the medians of both"
    if together:
        bars += f"; runs that differ in the seed are one dot: {several}"
    elif one_batch:
        bars += "; a dot is one run"
    elif any(len(set(own)) < len(own) for own in batches):
        bars += f"; several runs of one batch (small dots) are one point: {several}"
    title = f"{run.experiment} · {rows[0].stage} · {rows[0].feed} feed: {what}{which}"
    note = f"{run.network}; {run.data}; {bars}; {run_ids(rows)}"
    if one_batch:
        # One dot for each run, or one for all runs of a line.
        parts = [
            (label, own) for label, line in lines for own in ([line] if together else zip(line))
        ]
        dots = []
        for label, own in parts:
            of, told = _together(own, what)
            dots.append(Dot(f"{run_ids(own)} {label}", *of.span, told=told))
        note = f"global batch {count(run.batch_size)}; {note}"
        return DotChart(title, note, what, dots, table)
    series = []
    for label, line in lines:
        # Repeats are one point: they are no line.
        repeats = grouped(line, key=lambda row: row.run.batch_size).items()
        points = []
        for x, own in repeats:
            of, told = _together(own, what)
            runs = [_figure(row, what).value for row in own] if len(own) > 1 else ()
            points.append(Point(x, *of.span, told, runs))
        series.append(Series(f"{label} · {run_ids(line)}", points))
    return LineChart(title, note, "global batch", what, series, table, x_log=True)


# Logarithmic axes need something to take the logarithm of.
_LEAST = 1e-12
_ARITHMETIC = (
    *shared("run", "experiment"),
    Column("stage", "stage"),
    *shared("precision", "batch"),
    *metric_columns(
        "record.flops_per_byte",
        "record.flops_per_byte_at_ridge",
        "record.bound_by",
        "record.flops_per_s_per_device",
        "record.peak.flops_per_s",
        "record.mfu",
    ),
    count_column("rate"),
)


def roofline(context: ReportContext) -> Section | None:
    """Return arithmetic intensity against FLOP/s, below the device's roof where it is known."""
    rows = [row for row in context.measurements if row.usable]
    rows = [row for row in rows if min(_intensity(row).x, _intensity(row).y) > _LEAST]
    # Under one roof is the same arithmetic on the same device.
    peaks = {row: (row.record.peak or {}).get("arithmetic") or row.run.precision for row in rows}
    roofs = grouped(rows, lambda row: (row.run.device_kind, peaks[row]))
    charts = [_roof_chart(*roof, part) for roof, own in roofs.items() for part in in_parts(own)]
    return make_section(
        "roofline",
        "Roofline",
        "Left of the ridge a step is bound by memory, right of it by arithmetic. Bytes are the "
        "compiler's count for the compiled step, operations those of the network itself.",
        [make_table([*_ARITHMETIC, *measured_share(context)], rows, "Arithmetic")],
        charts,
    )


def _intensity(row: Measurement) -> Point:
    """Return FLOP/byte and FLOP/s, 0 where they are not known."""
    names = ("flops_per_byte", "flops_per_s_per_device")
    return Point(*(getattr(row.record, name) or 0.0 for name in names))


def _roof_chart(kind: str, arithmetic: str, rows: Sequence[Measurement]) -> LineChart:
    series, xs = [], []
    for row in rows:
        run, at = row.run, _intensity(row)
        size = f", {row.feed} feed, batch {run.batch_size:g}" if run.batch_size is not None else ""
        label = f"{run.id} {run.experiment}, {row.stage}{size}"
        series.append(Series(label, [Point(at.x, at.y / 1e9)], line=False))
        xs.append(at.x)
    peak = next(filter(None, (row.record.peak for row in rows)), {})
    flops_per_s, bytes_per_s = peak.get("flops_per_s"), peak.get("bytes_per_s")
    roof = f"no peak of {kind} is known: no roof is drawn"
    if flops_per_s and bytes_per_s and min(flops_per_s, bytes_per_s) > 0:
        ridge = flops_per_s / bytes_per_s
        xs = [min(*xs, ridge / 10), ridge, max(*xs, ridge * 10)]
        points = [Point(x, min(flops_per_s, x * bytes_per_s) / 1e9) for x in xs]
        series.append(Series(f"roof of {peak['kind']}, {arithmetic}", points, reference=True))
        roof = f"roof: {peak['source']}"
    note = f"one device; medians of windows; {roof}; {run_ids(rows)}"
    labels = ("operations a byte [FLOP/byte]", "GFLOP/s a device")
    title = f"{kind}, {arithmetic}"
    return LineChart(
        title, note, *labels, series, make_table(_ARITHMETIC, rows), x_log=True, y_log=True
    )
