"""Images per second and latency: by batch, device and precision; the arithmetic beside the peak."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbench.analysis.rate import of_repeats, of_windows
from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.metrics import UNKNOWN, count
from jaxbench.records.same import setting_key
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.collect import Sweep
from jaxbench.reports.columns import measured_share, run_ids, setting_column, shared, status_cell
from jaxbench.reports.context import Measurement, ReportContext, make_section
from jaxbench.reports.runs import ReportedRun, RunRecord
from jaxbench.reports.work import grouped, in_parts, labelled
from jaxbench.schema import METRICS, AllReduceRecord, ScalingRecord, value_of
from jaxbench.tables.columns import Column, estimate_columns, metric_columns, span
from jaxbench.tables.table import Table, make_table

_RUN = (
    *shared("run", "status", "experiment"),
    *(Column("stage", "stage"), Column("feed", "feed")),
    *shared("precision", "devices", "batch"),
)
_COLUMNS = (
    *estimate_columns("rate", "images_per_s"),
    *metric_columns("images_per_s_per_device", "tokens_per_s", "latency_p50_s", of="record."),
    *metric_columns("latency_p95_s", "latency_p99_s", "latency_steps", "mfu", of="record."),
    Column("reason", lambda row: (row.run.reason or "").split("\n", 1)[0][:160]),
)
# What a row of max_batch.csv was compiled for, if that is not here.
_TARGET = operator.methodcaller("get", "target")
_RATE = METRICS["images_per_s"].title


def rates(context: ReportContext) -> Section | None:
    """Return charts over the batch for each network, feed and stage; all rates; largest batches."""
    # The batches of a setting follow one another; those that came to no rate, too.
    lines = grouped(context.measurements, lambda row: setting_key(row.setting)).values()
    rows = [row for line in lines for row in sorted(line, key=lambda row: row.run.batch_size or 0)]
    tried = ("train", "throughput", "")
    rows = [r for r in rows if r.rate.value or (r.run.batch_size and r.run.mode in tried)]
    drawn = [row for row in rows if row.usable and row.rate.value and row.run.batch_size]
    table = make_table(
        [*_RUN, *setting_column(context), *_COLUMNS, *measured_share(context)],
        rows,
        title="All rates",
        note=f"n: epochs (from the 2nd on) or windows; fewer than {FEWEST_FOR_INTERVAL} give no "
        "interval. Latencies are of single steps.",
    )
    charts: list[LineChart | DotChart] = []
    for group in grouped(drawn, lambda row: row.work).values():
        # One point says no more than its row in the table.
        charts += _charts(group) if len(group) > 1 else []
    sweeps = [one for one in context.collection.sweeps if not any(map(_TARGET, one.max_batches))]
    return make_section(
        "rates",
        "Images per second and latency",
        "Rates are over all devices. A line joins runs that differ only in the batch size. Feeds "
        "are never mixed: synthetic measures the devices alone, resident and stream include "
        "fetching the data. Batch sizes are global, over all devices. OOM means out of memory, a "
        "result like any other.",
        [table, _arithmetic(context.measurements), *map(_largest, sweeps)],
        charts,
    )


def _largest(sweep: Sweep) -> Table:
    names = dict.fromkeys(name for row in sweep.max_batches for name, value in row.items() if value)
    columns = [
        Column(name.replace("_", " "), operator.itemgetter(name), left=name in ("status", "reason"))
        for name in names
    ]
    return make_table(columns, sweep.max_batches, f"{sweep.name}: the largest batch that fits")


def _charts(rows: Sequence[Measurement]) -> Iterator[LineChart | DotChart]:
    """Yield rates over the batch, a line for each setting; of a single batch, a dot for each."""
    rows = sorted(rows, key=lambda row: row.run.batch_size)
    lines = grouped(rows, key=lambda row: setting_key(row.setting)).values()
    run = rows[0].run
    for which, part in in_parts(labelled(lines, lambda line: line[0].setting)):
        title = f"{run.experiment} · {rows[0].stage} · {rows[0].feed} feed: {_RATE}{which}"
        drawn = [row for _, line in part for row in line]
        note = (
            f"{run.network}; {rows[0].data}; bars: 95 % interval of the median if it is of "
            f"{FEWEST_FOR_INTERVAL} or more, n = {span(row.rate.n or 0 for row in drawn)} epochs "
            "or windows; several runs of one batch (small dots) are one point: their geometric "
            f"mean, from 3 runs on with its 95 % interval over runs; {run_ids(drawn)}"
        )
        series = [Series(f"{label} · {run_ids(line)}", _points(line)) for label, line in part]
        if rows[-1].run.batch_size > run.batch_size:
            yield LineChart(title, note, "global batch", _RATE, series, x_log=True)
        else:
            dots = [
                Dot(one.label, *point[1:4], tooltip=point.tooltip, runs=point.runs)
                for one in series
                for point in one.points
            ]
            yield DotChart(title, f"global batch {count(run.batch_size)}; {note}", _RATE, dots)


def _points(line: Sequence[Measurement]) -> list[Point]:
    points = []
    for batch, repeats in grouped(line, key=lambda row: row.run.batch_size).items():
        of, runs = of_repeats([row.rate for row in repeats]), [row.rate.span[0] for row in repeats]
        points.append(Point(batch, *of.span, of.basis, runs if len(runs) > 1 else ()))
    return points


_ARITHMETIC = (
    *shared("run", "experiment"),
    Column("stage", "stage"),
    *shared("precision", "batch"),
    *metric_columns("flops_per_byte", "flops_per_byte_at_ridge", "bound_by", of="record."),
    *metric_columns("flops_per_s_per_device", "peak.flops_per_s", of="record."),
)


def _arithmetic(rows: Sequence[Measurement]) -> Table:
    rows = [row for row in rows if row.usable and value_of(row.record, "flops_per_byte")]
    known = filter(None, (value_of(row.record, "peak") for row in rows))
    peaks = [f"{p['kind']}, {p.get('arithmetic') or UNKNOWN}: {p['source']}" for p in known]
    of_peaks = f" Peaks: {'; '.join(dict.fromkeys(peaks))}." if peaks else ""
    table = make_table(
        _ARITHMETIC,
        rows,
        "Arithmetic",
        "A step with fewer FLOP/byte than at the ridge is bound by memory, one with more by "
        "arithmetic. Bytes are the compiler's count for the compiled step, operations those of the "
        f"network itself.{of_peaks}",
    )
    # The answers come first.
    return table._replace(folded=True)


_REPLICAS = {True: "equal", False: "DIFFER"}


def _windows(name: str) -> list[Column]:
    return estimate_columns(lambda row: of_windows(row.record, name), name)


_MEASURED = (
    *shared("run"),
    Column("status", lambda row: row.record.status or row.run.status, status_cell, left=True),
    Column("scaling", "record.scaling"),
    *shared("precision"),
    Column("device", lambda row: row.run.device_kind + _simulated(row.run)),
    *metric_columns("record.num_devices", "record.batch_size", "record.batch_per_device"),
    *_windows("images_per_s"),
    *_windows("efficiency")[:2],
    Column("replicas", lambda row: _REPLICAS.get(row.record.replicas_equal_after_steps)),
)
_ALL_REDUCES = (
    *shared("run"),
    *metric_columns("record.num_devices", "record.bytes"),
    *_windows("all_reduce_s"),
    *metric_columns("record.bus_bytes_per_s", "record.share_of_weak_step"),
)
_PREDICTED = (
    *shared("run"),
    Column("", lambda row: "PREDICTED" + _simulated(row.run)),
    Column("scaling", "record.scaling"),
    *metric_columns("num_devices", "images_per_s_no_overlap", of="record."),
    *metric_columns("images_per_s_full_overlap", "efficiency_no_overlap", of="record."),
    *metric_columns("efficiency_full_overlap", "link_bytes_per_s", of="record."),
)


def scaling(context: ReportContext) -> Section | None:
    """Return rates over devices with the ideal line, efficiencies, predictions, all-reduces."""
    measured = context.of_kind(ScalingRecord)
    groups = grouped(measured, key=lambda row: (row.run, row.record.scaling))
    all_reduces = context.of_kind(AllReduceRecord)
    predictions: list[Any] = [
        RunRecord(run, record)
        for run in context.runs
        for record in value_of(run.summary, "predictions") or ()
    ]
    assumptions = dict.fromkeys(
        f"{record['assumptions']} (links: {record['link_source']})" for _, record in predictions
    )
    note = f"Estimated from one device's step and the links' bandwidth: {'; '.join(assumptions)}."
    return make_section(
        "scaling",
        "Scaling efficiency",
        "Weak: each device has the same batch. Strong: all devices share one batch. Efficiency is "
        "rate_N / (N × rate_1). Simulated devices share one processor.",
        [
            make_table(
                _MEASURED,
                measured,
                "Measured",
                "Replicas: whether all devices had the same parameters, bit for bit, at the end.",
            ),
            make_table(_ALL_REDUCES, all_reduces, "An all-reduce of the gradient's size"),
            make_table(_PREDICTED, predictions, "Predicted, not measured", note),
        ],
        [chart for rows in groups.values() for chart in _scaling_chart(rows)],
    )


def _scaling_chart(rows: Sequence[RunRecord]) -> list[LineChart]:
    run, kind = rows[0].run, rows[0].record.scaling
    rates = [(row.record.num_devices, of_windows(row.record, "images_per_s")) for row in rows]
    rates = [(devices, rate) for devices, rate in rates if rate.value is not None]
    points = [Point(devices, *rate.span, rate.basis) for devices, rate in rates]
    points.sort(key=lambda point: point.x)
    if len(points) < 2:
        return []
    series = [Series(f"measured · {run.id}", points)]
    one = next((point for point in points if point.x == 1), None)
    if one is not None:
        ideal = [Point(point.x, one.y * point.x) for point in points]
        series.append(Series("ideal: N × rate of one device", ideal, reference=True))
    n = span(rate.n for _, rate in rates if rate.n)
    note = (
        f"{run.network}; {run.precision}, {run.feed} feed; {run.device_kind}{_simulated(run)}; "
        f"bars: 95 % interval of the median, n = {n} windows; {run.id}"
    )
    title = f"{run.experiment}: {kind} scaling{_simulated(run)}"
    return [LineChart(title, note, "devices", f"{_RATE}, all devices", series)]


def _simulated(run: ReportedRun) -> str:
    return " (simulated devices)" if run.are_simulated(run.num_devices) else ""
