"""Scaling efficiency: rates over the number of devices."""

from collections.abc import Sequence
from typing import Any

from jaxbench.report.blocks import LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, make_section
from jaxbench.report.estimates import of_windows
from jaxbench.report.fields import items, number, text
from jaxbench.report.formats import count, giga, interval, milliseconds, percent1, rate, words
from jaxbench.report.runs import RunRecord
from jaxbench.report.settings import grouped
from jaxbench.report.tables import (
    PRECISION,
    RUN,
    Column,
    estimate_columns,
    make_table,
    status_cell,
)

_REPLICAS = {"True": "equal", "False": "DIFFER"}
_NUM_DEVICES = Column("devices", "record.num_devices", count)
_SCALING = Column("scaling", "record.scaling")
_MEASURED = (
    RUN,
    Column("status", "status", status_cell, left=True),
    *(_SCALING, PRECISION),
    Column("device", "run.device_kind"),
    _NUM_DEVICES,
    Column("global batch", "record.batch_size", count),
    Column("batch per device", "record.batch_per_device", count),
    *estimate_columns("images/s", "rate", rate),
    Column("efficiency [%]", "efficiency.value", percent1),
    Column("its interval [%]", "efficiency", interval(percent1)),
    Column(
        "replicas",
        lambda row: _REPLICAS.get(repr(row["record"].get("replicas_equal_after_steps"))),
    ),
)
_ALL_REDUCES = (
    *(RUN, _NUM_DEVICES),
    Column("bytes", "record.bytes", count),
    *estimate_columns("all-reduce [ms]", "time_s", milliseconds),
    Column("bus [GB/s]", "record.bus_bytes_per_s", giga),
    Column("of the weak step [%]", "record.share_of_weak_step", percent1),
)
_PREDICTED = (
    RUN,
    Column("", lambda row: "PREDICTED"),
    *(_SCALING, _NUM_DEVICES),
    Column("images/s, nothing hidden", "record.images_per_s_no_overlap", rate),
    Column("images/s, all hidden", "record.images_per_s_full_overlap", rate),
    Column("efficiency [%], nothing hidden", "record.efficiency_no_overlap", percent1),
    Column("efficiency [%], all hidden", "record.efficiency_full_overlap", percent1),
    Column("link [GB/s]", "record.link_bytes_per_s", giga),
)
_Row = dict[str, Any]


def scaling(context: ReportContext) -> Section | None:
    """Rates over devices with the ideal line, efficiencies, predictions and the all-reduce."""
    measured = [
        {
            "run": run,
            "record": record,
            "status": text(record, "status") or run.status,
            "rate": of_windows(record, "images_per_s"),
            "efficiency": of_windows(record, "efficiency"),
        }
        for run, record in context.of_kind("scaling")
        if number(record, "num_devices") is not None
    ]
    if not measured:
        return None
    groups = grouped(measured, key=lambda row: (row["run"].id, text(row["record"], "scaling")))
    charts = [chart for rows in groups.values() if (chart := _chart(rows))]
    all_reduces = [
        {"run": run, "record": record, "time_s": of_windows(record, "all_reduce_s")}
        for run, record in context.of_kind("all_reduce")
    ]
    return make_section(
        "scaling",
        "Scaling efficiency",
        "Weak: each device has the same batch however many take part; strong: all together have "
        "one batch. Efficiency is rate_N / (N × rate_1).",
        charts,
        [
            _table(measured),
            make_table(_ALL_REDUCES, all_reduces, title="An all-reduce of the gradient's size")
            if all_reduces
            else None,
            _predictions(context),
        ],
    )


def _chart(rows: Sequence[_Row]) -> LineChart | None:
    run, kind = rows[0]["run"], text(rows[0]["record"], "scaling") or "?"
    points = sorted(
        (
            Point(number(row["record"], "num_devices"), rate.value, rate.low, rate.high)
            for row in rows
            for rate in [row["rate"]]
            if rate.value is not None
        ),
        key=lambda point: point.x,
    )
    if len(points) < 2:
        return None
    series = [Series(f"measured · {run.id}", points)]
    one = next((point for point in points if point.x == 1), None)
    if one is not None:
        ideal = [Point(point.x, one.y * point.x) for point in points]
        series.append(Series("ideal: N × rate of one device", ideal, reference=True))
    sizes = sorted({row["rate"].n for row in rows if row["rate"].n})
    return LineChart(
        title=f"{run.experiment}: {kind} scaling",
        note=(
            f"{run.network}; {run.precision}, {run.feed} feed; {run.device_kind}; bars: 95 % "
            f"interval of the median, n = {' to '.join(map(str, sizes[:1] + sizes[1:][-1:]))} "
            f"windows; {run.id}"
        ),
        x_label="devices",
        y_label="images/s, all devices",
        series=series,
        table=_table(rows),
    )


def _table(rows: Sequence[_Row]) -> Table:
    return make_table(
        _MEASURED,
        rows,
        title="Measured",
        note="Replicas: whether all devices had the same parameters, bit for bit, at the end.",
    )


def _predictions(context: ReportContext) -> Table | None:
    rows = [
        RunRecord(run, record)
        for run in context.runs
        for record in items(run.summary, "predictions")
    ]
    if not rows:
        return None
    assumptions = {text(record, "assumptions"): text(record, "link_source") for _, record in rows}
    told = "; ".join(f"{words(what)} (links: {words(of)})" for what, of in assumptions.items())
    return make_table(
        _PREDICTED,
        rows,
        title="Predicted, not measured",
        note=f"Estimated from one device's step and the links' bandwidth: {told}.",
    )
