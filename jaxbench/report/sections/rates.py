"""Images per second and latency: by batch, device and precision."""

from collections.abc import Iterator, Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import Dot, DotChart, LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, make_section
from jaxbench.report.estimates import Estimate, over_runs
from jaxbench.report.fields import number
from jaxbench.report.formats import count, milliseconds, percent, plain, span
from jaxbench.report.measurements import Measurement
from jaxbench.report.settings import grouped, in_parts, labelled, setting_key
from jaxbench.report.tables import Column, estimate_columns, make_table, run_ids, shared

_COLUMNS = (
    *shared("run", "status", "experiment"),
    *(Column(name, name) for name in ("stage", "feed")),
    *shared("precision", "devices", "batch"),
    *estimate_columns("images/s", "rate"),
    Column("images/s per device", "record.images_per_s_per_device", plain),
    *(Column(f"{p} [ms]", f"record.latency_{p}_s", milliseconds) for p in ("p50", "p95", "p99")),
    Column("steps", "record.latency_steps", count),
    Column("MFU [%]", "record.mfu", percent),
)
_RATE, _LATENCY = "images/s", "latency [ms]"
# What repeats have in common, and they, by batch.
_Line = tuple[str, list[Measurement]]


def rates(context: ReportContext) -> Section | None:
    """Return charts over the batch for each network, feed and stage; all rates in a table."""
    rows = [row for row in context.measurements if row.rate.value is not None]
    drawn = [row for row in rows if row.usable and (row.run.batch_size or 0) > 0 < row.rate.value]
    charts: list[LineChart | DotChart] = []
    for group in grouped(drawn, lambda row: (row.run.work, row.feed, row.stage)).values():
        # One point says no more than its row in the table.
        timed = [row for row in group if _figure(row, _LATENCY).value is not None]
        for own, what in ((group, _RATE), (timed, _LATENCY)):
            charts += _charts(own, what) if len(own) > 1 else []
    return make_section(
        "rates",
        "Images per second and latency",
        "Rates are over all devices. A line joins runs that differ only in the batch size. Feeds "
        "are never mixed: synthetic measures the devices alone, resident and stream include "
        "fetching the data.",
        charts,
        [_table(rows)],
    )


def _batch(row: Measurement) -> float:
    return row.run.batch_size


def _figure(row: Measurement, what: str) -> Estimate:
    """Return the rate, or the median of a step's latency, reaching to its 99th percentile."""
    if what == _RATE:
        return row.rate
    p50_s, p99_s = (number(row.record, f"latency_{p}_s") for p in ("p50", "p99"))
    return Estimate(p50_s, p99_s and p50_s, p99_s).map(lambda s: 1e3 * s)


def _charts(rows: Sequence[Measurement], what: str) -> Iterator[LineChart | DotChart]:
    lines = grouped(sorted(rows, key=_batch), key=lambda row: setting_key(row.setting)).values()
    parts = in_parts(labelled(lines, lambda line: line[0].setting))
    for part, own in enumerate(parts, 1):
        yield _chart(own, what, f" ({part} of {len(parts)})" if len(parts) > 1 else "")


def _chart(lines: Sequence[_Line], what: str, which: str) -> LineChart | DotChart:
    rows = [row for _, line in lines for row in line]
    run, one_batch = rows[0].run, len(set(map(_batch, rows))) == 1
    bars = "points: median of steps closed one by one (p50), bars reach to p99"
    if what == _RATE:
        bars = f"bars: 95 % interval of the median where it is of {FEWEST_FOR_INTERVAL} or more, "
        bars += f"n = {span(row.rate.n or 0 for row in rows)} epochs or windows"
    if one_batch:
        bars += "; a dot is one run"
    elif any(len(set(map(_batch, line))) < len(line) for _, line in lines):
        bars += "; of several runs of one batch the median, bars from the least to the most"
    title = f"{run.experiment} · {rows[0].stage} · {rows[0].feed} feed: {what}{which}"
    note = f"{run.network}; {run.data}; {bars}; {_ids(rows)}"
    if one_batch:
        dots = [
            Dot(f"{row.run.id} {label}", *_figure(row, what).span)
            for label, line in lines
            for row in line
        ]
        note = f"global batch {count(run.batch_size)}; {note}"
        return DotChart(title, note, what, dots, _table(rows))
    series = []
    for label, line in lines:
        # Repeats are one point: they are no line.
        repeats = grouped(line, key=_batch).items()
        points = [
            Point(x, *over_runs([_figure(row, what) for row in own]).span) for x, own in repeats
        ]
        series.append(Series(f"{label} · {_ids(line)}", points))
    return LineChart(title, note, "global batch", what, series, _table(rows), x_log=True)


def _ids(rows: Sequence[Measurement]) -> str:
    return run_ids(row.run for row in rows)


def _table(rows: Sequence[Measurement]) -> Table:
    return make_table(
        _COLUMNS,
        rows,
        title="All rates",
        note="n: epochs (from the 2nd on) or windows that the median and its interval are of; "
        f"fewer than {FEWEST_FOR_INTERVAL} give none. Latencies are of steps closed one by one, as "
        "many as “steps” says.",
    )
