"""What more devices are worth."""

from collections.abc import Mapping
from typing import Any

from jaxbench.report.blocks import LineChart, Point, Section, Series, Table
from jaxbench.report.collect import ReportedRun
from jaxbench.report.measurements import interval_of
from jaxbench.report.sections.material import (
    MOST_CHARTS,
    ReportContext,
    left_out,
    run_cell,
    status_cell,
)
from jaxbench.report.values import (
    count,
    interval,
    items,
    milliseconds,
    number,
    percent,
    plain,
    rate,
    text,
    words,
)


def scaling(material: ReportContext) -> Section | None:
    """Rates over devices with the ideal line, efficiencies, predictions and the all-reduce."""
    measured = [
        (run, record)
        for run in material.runs
        for record in run.of_kind("scaling")
        if number(record, "num_devices") is not None
    ]
    if not measured:
        return None
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    by_id = {run.id: run for run in material.runs}
    for run, record in measured:
        groups.setdefault((run.id, text(record, "scaling") or "?"), []).append(record)
    charts = []
    for (run_id, kind), records in groups.items():
        chart = _chart(by_id[run_id], kind, records)
        charts += [chart] if chart else []
    runs = list({run.id: run for run, _ in measured}.values())
    tables = [_table(measured), _all_reduces(runs), _predictions(runs)]
    return Section(
        "scaling",
        "Scaling",
        "Weak: each device has the same batch however many take part; strong: all together have "
        "one batch. Efficiency is rate_N / (N × rate_1). "
        + left_out(len(charts), min(len(charts), MOST_CHARTS), "the table"),
        [*charts[:MOST_CHARTS], *(table for table in tables if table)],
    )


def _chart(run: ReportedRun, kind: str, records: list[Mapping[str, Any]]) -> LineChart | None:
    points = sorted(
        (
            Point(
                number(record, "num_devices"),
                number(record, "images_per_s"),
                *interval_of(record, "images_per_s", len(items(record, "windows_s"))),
            )
            for record in records
            if number(record, "images_per_s") is not None
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
    sizes = sorted({len(items(record, "windows_s")) for record in records} - {0})
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
        table=_table([(run, record) for record in records]),
    )


def _table(measured: list[tuple[ReportedRun, Mapping[str, Any]]]) -> Table:
    rows = []
    for run, record in measured:
        equal = record.get("replicas_equal_after_steps")
        n = len(items(record, "windows_s"))
        rows.append(
            [
                run_cell(run.id),
                status_cell(text(record, "status") or run.status),
                text(record, "scaling") or "–",
                run.precision,
                run.device_kind,
                count(number(record, "num_devices")),
                count(number(record, "batch_size")),
                count(number(record, "batch_per_device")),
                rate(number(record, "images_per_s")),
                interval(*interval_of(record, "images_per_s", n)),
                count(n or None),
                percent(number(record, "efficiency"), 1),
                interval(*interval_of(record, "efficiency", n), lambda share: percent(share, 1)),
                {"True": "equal", "False": "DIFFER"}.get(repr(equal), "–"),
            ]
        )
    return Table(
        (
            "run",
            "status",
            "scaling",
            "precision",
            "device",
            "devices",
            "global batch",
            "batch per device",
            "images/s",
            "95 % interval",
            "n",
            "efficiency [%]",
            "its interval [%]",
            "replicas",
        ),
        rows,
        title="Measured",
        note="Replicas: whether all devices had the same parameters, bit for bit, at the end.",
        text_columns=(0, 1, 2, 3, 4, 13),
    )


def _all_reduces(runs: list[ReportedRun]) -> Table | None:
    rows = [
        [
            run_cell(run.id),
            count(number(record, "num_devices")),
            count(number(record, "bytes")),
            milliseconds(number(record, "all_reduce_s")),
            interval(
                *interval_of(record, "all_reduce_s", len(items(record, "windows_s"))),
                milliseconds,
            ),
            count(len(items(record, "windows_s")) or None),
            plain(_giga(number(record, "bus_bytes_per_s"))),
            percent(number(record, "share_of_weak_step"), 1),
        ]
        for run in runs
        for record in run.of_kind("all_reduce")
    ]
    if not rows:
        return None
    return Table(
        (
            "run",
            "devices",
            "bytes",
            "all-reduce [ms]",
            "95 % interval",
            "n",
            "bus [GB/s]",
            "of the weak step [%]",
        ),
        rows,
        title="An all-reduce of the gradient's size",
    )


def _predictions(runs: list[ReportedRun]) -> Table | None:
    rows, assumptions = [], {}
    for run in runs:
        for record in items(run.summary, "predictions"):
            assumptions[text(record, "assumptions")] = text(record, "link_source")
            rows.append(
                [
                    run_cell(run.id),
                    "PREDICTED",
                    text(record, "scaling") or "–",
                    count(number(record, "num_devices")),
                    rate(number(record, "images_per_s_no_overlap")),
                    rate(number(record, "images_per_s_full_overlap")),
                    percent(number(record, "efficiency_no_overlap"), 1),
                    percent(number(record, "efficiency_full_overlap"), 1),
                    plain(_giga(number(record, "link_bytes_per_s"))),
                ]
            )
    if not rows:
        return None
    told = "; ".join(f"{words(what)} (links: {words(of)})" for what, of in assumptions.items())
    return Table(
        (
            "run",
            "",
            "scaling",
            "devices",
            "images/s, nothing hidden",
            "images/s, all hidden",
            "efficiency [%], nothing hidden",
            "efficiency [%], all hidden",
            "link [GB/s]",
        ),
        rows,
        title="Predicted, not measured",
        note=f"Reckoned from one device's step and the links' bandwidth: {told}.",
        text_columns=(0, 1, 2),
    )


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9
