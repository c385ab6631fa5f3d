"""Images per second and latency: by batch, device and precision."""

import itertools
import statistics
from collections.abc import Iterator, Sequence

from jaxbench.analysis.estimates import Estimate, bar_words, over_runs
from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.metrics import count
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.columns import measured_share, run_ids, setting_column, shared
from jaxbench.reports.context import Measurement, ReportContext, make_section
from jaxbench.reports.work import grouped, in_parts, labelled, setting_key
from jaxbench.tables.formats import span
from jaxbench.tables.table import Column, Table, estimate_columns, make_table, metric_columns

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
