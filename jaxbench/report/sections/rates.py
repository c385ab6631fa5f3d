"""Images per second and latency: by batch, device and precision."""

from collections.abc import Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import Dot, DotChart, LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, make_section
from jaxbench.report.estimates import Estimate, over_runs
from jaxbench.report.fields import number
from jaxbench.report.formats import count, milliseconds, percent, plain
from jaxbench.report.measurements import Measurement
from jaxbench.report.plot import MOST_SERIES
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
    drawn = [row for row in rows if row.usable and row.run.batch_size and row.rate.value > 0]
    charts: list[LineChart | DotChart] = []
    for group in grouped(drawn, key=_chart_key).values():
        # One point says no more than its row in the table.
        timed = [row for row in group if _latency_ms(row).value is not None]
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
    """Return what a chart is about; lines within it differ in the rest."""
    return (row.run.experiment, row.run.network, row.run.data, row.feed, row.stage)


def _batch(row: Measurement) -> float:
    return row.run.batch_size


def _latency_ms(row: Measurement) -> Estimate:
    """Return the median of a step's latency, reaching to its 99th percentile."""
    p50_s, p99_s = (number(row.record, f"latency_{p}_s") for p in ("p50", "p99"))
    return Estimate(p50_s, None if p99_s is None else p50_s, p99_s).map(lambda s: 1e3 * s)


def _figure(row: Measurement, what: str) -> Estimate:
    return row.rate if what == _RATE else _latency_ms(row)


def _charts(rows: Sequence[Measurement], what: str) -> list[LineChart | DotChart]:
    ordered = sorted(rows, key=_batch)
    lines = grouped(ordered, key=lambda row: setting_key(row.setting)).values()
    parts = in_parts(labelled(lines, lambda line: line[0].setting), MOST_SERIES)
    return [
        _chart(own, what, f" ({part} of {len(parts)})" if len(parts) > 1 else "")
        for part, own in enumerate(parts, 1)
    ]


def _chart(lines: Sequence[_Line], what: str, which: str) -> LineChart | DotChart:
    rows = [row for _, line in lines for row in line]
    run, one_batch = rows[0].run, len(set(map(_batch, rows))) == 1
    bars = "points: median of steps closed one by one (p50), bars reach to p99"
    if what == _RATE:
        sizes = sorted({row.rate.n for row in rows if row.rate.n})
        n = " to ".join(map(str, dict.fromkeys(sizes[:1] + sizes[-1:])))
        bars = (
            f"bars: 95 % interval of the median where it is of {FEWEST_FOR_INTERVAL} or more, "
            f"n = {n} epochs or windows"
        )
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
        points = []
        for x, own in grouped(line, key=_batch).items():
            figures = [_figure(row, what) for row in own]
            # Repeats are one point: they are no line.
            several = over_runs([one.value for one in figures])
            points.append(Point(x, *(several if len(own) > 1 else figures[0]).span))
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
