"""Scaling efficiency: rates over the number of devices."""

from collections.abc import Sequence
from typing import Any

from jaxbench.analysis.statistics import bar_words, of_windows
from jaxbench.records.schema import AllReduceRecord, ScalingRecord
from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import shared, status_cell
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.runs import ReportedRun, RunRecord
from jaxbench.reports.work import grouped
from jaxbench.tables.table import Column, Table, estimate_columns, make_table, metric_columns, span

_REPLICAS = {True: "equal", False: "DIFFER"}
_MEASURED = (
    *shared("run"),
    Column("status", "status", status_cell, left=True),
    Column("scaling", "record.scaling"),
    *shared("precision"),
    Column("device", lambda row: _device(row["run"])),
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
    *metric_columns(
        "record.num_devices",
        "record.images_per_s_no_overlap",
        "record.images_per_s_full_overlap",
        "record.efficiency_no_overlap",
        "record.efficiency_full_overlap",
        "record.link_bytes_per_s",
    ),
)


def scaling(context: ReportContext) -> Section | None:
    """Return rates over devices with the ideal line, efficiencies, predictions, all-reduces."""
    measured = [
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
    predictions = [
        RunRecord(run, record) for run in context.runs for record in run.summary.predictions or ()
    ]
    told = dict.fromkeys(
        f"{record['assumptions']} (links: {record['link_source']})" for _, record in predictions
    )
    note = f"Estimated from one device's step and the links' bandwidth: {'; '.join(told)}."
    return make_section(
        "scaling",
        "Scaling efficiency",
        "Weak: each device has the same batch, however many take part. Strong: all devices share "
        "one batch. Efficiency is rate_N / (N × rate_1). Simulated devices share one "
        "processor: their efficiencies, and predictions from them, are not those of accelerators.",
        [
            _table(measured),
            make_table(_ALL_REDUCES, all_reduces, "An all-reduce of the gradient's size"),
            make_table(_PREDICTED, predictions, "Predicted, not measured", note),
        ],
        [chart for rows in groups.values() for chart in _chart(rows)],
    )


def _chart(rows: Sequence[dict[str, Any]]) -> list[LineChart]:
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
        f"{run.network}; {run.precision}, {run.feed} feed; {_device(run)}; bars: 95 % interval "
        f"of the median, n = {n} windows; {run.id}"
    )
    title, labels = (
        f"{run.experiment}: {kind} scaling{_simulated(run)}",
        ("devices", "images/s, all devices"),
    )
    return [LineChart(title, note, *labels, series, _table(rows))]


def _device(run: ReportedRun) -> str:
    return run.device_kind + _simulated(run)


def _simulated(run: ReportedRun) -> str:
    return " (simulated devices)" if run.are_simulated(run.num_devices) else ""


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    note = "Replicas: whether all devices had the same parameters, bit for bit, at the end."
    return make_table(_MEASURED, rows, "Measured", note)
