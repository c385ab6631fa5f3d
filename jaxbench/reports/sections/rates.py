"""Images per second and latency: by batch, device and precision; the arithmetic beside the peak."""

import operator
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbench.analysis.statistics import (
    FEWEST_FOR_INTERVAL,
    Estimate,
    bar_words,
    of_windows,
    over_runs,
)
from jaxbench.metrics import METRICS, count, plain
from jaxbench.records.schema import AllReduceRecord, ScalingRecord
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.collect import Sweep
from jaxbench.reports.columns import measured_share, run_ids, setting_column, shared, status_cell
from jaxbench.reports.context import Measurement, ReportContext, make_section
from jaxbench.reports.runs import SCORES, ReportedRun, RunRecord
from jaxbench.reports.work import grouped, in_parts, labelled, setting_key
from jaxbench.tables.columns import (
    Cell,
    Column,
    estimate_columns,
    metric_column,
    metric_columns,
    span,
)
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
)
# Where runs of one batch are more, repeats are one dot.
_MOST_DOTS = 16
_RATE, _LATENCY = METRICS["images_per_s"].title, "latency [ms]"
# What repeats have in common, and they, by batch.
_Line = tuple[str, list[Measurement]]


def rates(context: ReportContext) -> Section | None:
    """Return charts over the batch for each network, feed and stage; all rates in a table."""
    rows = [row for row in context.measurements if row.rate.value is not None]
    drawn = [row for row in rows if row.usable and (row.run.batch_size or 0) > 0 < row.rate.value]
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
        timed = [row for row in group if _estimate(row, _LATENCY).value is not None]
        for measurements, metric in ((group, _RATE), (timed, _LATENCY)):
            charts += _charts(measurements, metric) if len(measurements) > 1 else []
    return make_section(
        "rates",
        "Images per second and latency",
        "Rates are over all devices. A line joins runs that differ only in the batch size. Feeds "
        "are never mixed: synthetic measures the devices alone, resident and stream include "
        "fetching the data.",
        [table],
        charts,
    )


def _estimate(row: Measurement, metric: str) -> Estimate:
    """Return the rate, or the median of a step's latency."""
    return row.rate if metric == _RATE else Estimate(row.record.latency_p50_s).map(_ms)


def _ms(value_s: float) -> float:
    return 1e3 * value_s


def _together(rows: Sequence[Measurement], metric: str) -> tuple[Estimate, str, list[float]]:
    """Return the metric of one run or of several, what its bar is, and what is drawn beside it."""
    if metric == _RATE:
        of = over_runs([row.rate for row in rows])
        return of, bar_words(of, len(rows)), [row.rate.value for row in rows] * (len(rows) > 1)
    p50_s, p99_s = (
        [value for row in rows if (value := getattr(row.record, name)) is not None]
        for name in ("latency_p50_s", "latency_p99_s")
    )
    words = "p50; small dot: p99" + (f"; medians of {len(rows)} runs" if len(rows) > 1 else "")
    beside = [_ms(statistics.median(p99_s))] if p99_s else []
    return Estimate(_ms(statistics.median(p50_s))), words, beside


def _charts(rows: Sequence[Measurement], metric: str) -> Iterator[LineChart | DotChart]:
    rows = sorted(rows, key=lambda row: row.run.batch_size)
    lines = grouped(rows, key=lambda row: setting_key(row.setting)).values()
    parts = in_parts(labelled(lines, lambda line: line[0].setting))
    for number, part in enumerate(parts, 1):
        yield _chart(part, metric, f" ({number} of {len(parts)})" if len(parts) > 1 else "")


def _chart(lines: Sequence[_Line], metric: str, which: str) -> LineChart | DotChart:
    rows = [row for _, line in lines for row in line]
    run, one_batch = rows[0].run, len({row.run.batch_size for row in rows}) == 1
    bars = "points: median of steps closed one by one (p50), small dots: p99; "
    several = "the medians of both"
    if metric == _RATE:
        bars = f"bars: 95 % interval of the median if it is of {FEWEST_FOR_INTERVAL} or more, "
        bars += f"n = {span(row.rate.n or 0 for row in rows)} epochs or windows; "
        several = "their geometric mean, from 3 runs on with its 95 % interval over runs"
    title = f"{run.experiment} · {rows[0].stage} · {rows[0].feed} feed: {metric}{which}"
    if one_batch:
        # One dot for each run, or one for all runs of a line.
        together = len(rows) > _MOST_DOTS
        bars += f"runs that differ in the seed are one dot: {several}" * together
        bars += "a dot is one run" * (not together)
        dots = []
        for label, line in lines:
            for repeats in [line] if together else zip(line):
                of, bar, beside = _together(repeats, metric)
                dots.append(Dot(f"{run_ids(repeats)} {label}", *of.span, tooltip=bar, runs=beside))
        note = f"global batch {count(run.batch_size)}; {run.network}; {rows[0].data}; {bars}"
        return DotChart(title, f"{note}; {run_ids(rows)}", metric, dots)
    series = []
    for label, line in lines:
        # Repeats are one point: they are no line.
        points = []
        for x, repeats in grouped(line, key=lambda row: row.run.batch_size).items():
            of, bar, beside = _together(repeats, metric)
            points.append(Point(x, *of.span, bar, beside))
        series.append(Series(f"{label} · {run_ids(line)}", points))
    bars += f"several runs of one batch (small dots) are one point: {several}"
    note = f"{run.network}; {rows[0].data}; {bars}; {run_ids(rows)}"
    return LineChart(title, note, "global batch", metric, series, x_log=True)


# Logarithmic axes need something to take the logarithm of.
_LEAST = 1e-12
_ARITHMETIC = (
    *shared("run", "experiment"),
    Column("stage", "stage"),
    *shared("precision", "batch"),
    *metric_columns("flops_per_byte", "flops_per_byte_at_ridge", "bound_by", of="record."),
    *metric_columns("flops_per_s_per_device", "peak.flops_per_s", "mfu", of="record."),
    metric_column("rate.n"),
)


def roofline(context: ReportContext) -> Section | None:
    """Return arithmetic intensity against FLOP/s, below the device's roof if it is known."""
    rows = [row for row in context.measurements if row.usable]
    rows = [row for row in rows if min(_intensity(row).x, _intensity(row).y) > _LEAST]
    # Under one roof is the same arithmetic on the same device.
    peaks = {row: (row.record.peak or {}).get("arithmetic") or row.run.precision for row in rows}
    roofs = grouped(rows, lambda row: (row.run.device_kind, peaks[row]))
    charts = [_roof_chart(*roof, part) for roof, steps in roofs.items() for part in in_parts(steps)]
    return make_section(
        "roofline",
        "Roofline",
        "Left of the ridge a step is bound by memory, right of it by arithmetic. Bytes are the "
        "compiler's count for the compiled step, operations those of the network itself.",
        [make_table([*_ARITHMETIC, *measured_share(context)], rows, "Arithmetic")],
        charts,
    )


def _intensity(row: Measurement) -> Point:
    """Return FLOP/byte and FLOP/s, 0 if they are not known."""
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
    return LineChart(title, note, *labels, series, x_log=True, y_log=True)


# What a row of max_batch.csv was compiled for, if that is not here.
_TARGET = operator.methodcaller("get", "target")


def _compile(row: Measurement) -> Cell | float | None:
    compile_s = row.run.summary.compile_s
    cached = compile_s is not None and row.run.compile_cache == "hit"
    return Cell(f"{plain(compile_s)} (cached)", sort=compile_s) if cached else compile_s


_FIGURES = (
    metric_column("compile_s", _compile),
    *metric_columns("run.summary.first_epoch_with_compile_s", "run.summary.median_epoch_s"),
    metric_column("duration_s", "run.total_s", ", all epochs"),
    metric_column("run.summary.epochs_done"),
    *estimate_columns("rate", "images_per_s"),
    *metric_columns("record.latency_p50_s", "record.latency_p99_s", "record.mfu"),
    metric_column("run.score"),
)


def batches(context: ReportContext) -> Section | None:
    """Return tables of each experiment and mode that was run with more than one batch size."""
    rows = [row for row in context.measurements if row.run.batch_size is not None]
    rows = [row for row in rows if row.stage in ("training", "train_step", None)]
    rows = [row for row in rows if row.run.mode in ("train", "throughput", "")]
    tables = []
    for same in grouped(rows, key=_title).values():
        if len({row.run.batch_size for row in same}) > 1:
            same.sort(key=lambda row: (_setting(row), row.run.batch_size))
            tables.append(_table(context, same))
    sweeps = [one for one in context.collection.sweeps if not any(map(_TARGET, one.max_batches))]
    return make_section(
        "batches",
        "Batch sizes",
        "Batch sizes are global, over all devices. OOM means out of memory, a result like any "
        "other. A trial that ended otherwise gives its reason.",
        [*tables, *map(_largest, sweeps)],
    )


def _title(row: Measurement) -> str:
    stage = "training step alone" if row.run.mode == "throughput" else "training"
    return f"{row.run.experiment}, {stage}"


def _setting(row: Measurement) -> tuple:
    run = row.run
    # Whatever else differs keeps two runs in two groups.
    return run.precision, run.num_devices or 0, run.hardware, row.feed, setting_key(row.setting)


def _reason(row: Measurement) -> Cell | None:
    """Return why a run came to nothing."""
    if row.run.summary.median_epoch_s is not None or row.run.status in ("done", "invalid"):
        return None
    return Cell((row.run.reason or "no reason given").split("\n", 1)[0][:160], "soft")


def _table(context: ReportContext, rows: Sequence[Measurement]) -> Table:
    scores = {SCORES[row.run.score_field] for row in rows if row.run.score_field}
    score = f"score: {scores.pop()} of the last epoch. " if len(scores) == 1 else ""
    return make_table(
        [
            *(*shared("batch", "status", "precision", "devices"), Column("feed", "feed")),
            *(*setting_column(context), *_FIGURES, *measured_share(context)),
            *(Column("reason", _reason), *shared("run")),
        ],
        rows,
        title=_title(rows[0]),
        note=f"{score}images/s: over all devices, median of the epochs from the 2nd on or of "
        f"windows; n of them, from {FEWEST_FOR_INTERVAL} on with an interval.",
    )


def _largest(sweep: Sweep) -> Table:
    names = dict.fromkeys(name for row in sweep.max_batches for name, value in row.items() if value)
    columns = [
        Column(name.replace("_", " "), operator.itemgetter(name), left=name in ("status", "reason"))
        for name in names
    ]
    return make_table(columns, sweep.max_batches, f"{sweep.name}: the largest batch that fits")


_REPLICAS = {True: "equal", False: "DIFFER"}
_MEASURED = (
    *shared("run"),
    Column("status", "status", status_cell, left=True),
    Column("scaling", "record.scaling"),
    *shared("precision"),
    Column("device", lambda row: row["run"].device_kind + _simulated(row["run"])),
    *metric_columns("record.num_devices", "record.batch_size", "record.batch_per_device"),
    *estimate_columns("rate", "images_per_s"),
    *estimate_columns("efficiency", "efficiency")[:2],
    Column("replicas", "replicas"),
)
_ALL_REDUCES = (
    *shared("run"),
    *metric_columns("record.num_devices", "record.bytes"),
    *estimate_columns("time_s", "all_reduce_s"),
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
    measured: list[dict[str, Any]] = [
        {
            "run": run,
            "record": record,
            "status": record.status or run.status,
            "rate": of_windows(record, "images_per_s"),
            "efficiency": of_windows(record, "efficiency"),
            "replicas": _REPLICAS.get(record.replicas_equal_after_steps),
        }
        for run, record in context.of_kind(ScalingRecord)
    ]
    groups = grouped(measured, key=lambda row: (row["run"], row["record"].scaling))
    all_reduces = [
        {"run": run, "record": record, "time_s": of_windows(record, "all_reduce_s")}
        for run, record in context.of_kind(AllReduceRecord)
    ]
    predictions: list[Any] = [
        RunRecord(run, record) for run in context.runs for record in run.summary.predictions or ()
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
            _scaling_table(measured),
            make_table(_ALL_REDUCES, all_reduces, "An all-reduce of the gradient's size"),
            make_table(_PREDICTED, predictions, "Predicted, not measured", note),
        ],
        [chart for rows in groups.values() for chart in _scaling_chart(rows)],
    )


def _scaling_chart(rows: Sequence[dict[str, Any]]) -> list[LineChart]:
    run, kind = rows[0]["run"], rows[0]["record"].scaling
    points = [
        Point(row["record"].num_devices, *row["rate"].span, bar_words(row["rate"], 1))
        for row in rows
        if row["rate"].value is not None
    ]
    points.sort(key=lambda point: point.x)
    if len(points) < 2:
        return []
    series = [Series(f"measured · {run.id}", points)]
    one = next((point for point in points if point.x == 1), None)
    if one is not None:
        ideal = [Point(point.x, one.y * point.x) for point in points]
        series.append(Series("ideal: N × rate of one device", ideal, reference=True))
    n = span(row["rate"].n for row in rows if row["rate"].n)
    note = (
        f"{run.network}; {run.precision}, {run.feed} feed; {run.device_kind}{_simulated(run)}; "
        f"bars: 95 % interval of the median, n = {n} windows; {run.id}"
    )
    title, labels = (
        f"{run.experiment}: {kind} scaling{_simulated(run)}",
        ("devices", f"{_RATE}, all devices"),
    )
    return [LineChart(title, note, *labels, series)]


def _simulated(run: ReportedRun) -> str:
    return " (simulated devices)" if run.are_simulated(run.num_devices) else ""


def _scaling_table(rows: Sequence[dict[str, Any]]) -> Table:
    note = "Replicas: whether all devices had the same parameters, bit for bit, at the end."
    return make_table(_MEASURED, rows, "Measured", note)
