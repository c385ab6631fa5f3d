"""The arithmetic of a step beside the peak of its device."""

from collections.abc import Sequence

from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import measured_share, run_ids, shared
from jaxbench.reports.context import Measurement, ReportContext, make_section
from jaxbench.reports.work import grouped, in_parts
from jaxbench.tables.table import Column, count_column, make_table, metric_columns

# Logarithmic axes need something to take the logarithm of.
_LEAST = 1e-12
_COLUMNS = (
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
    rows = [row for row in rows if min(_place(row).x, _place(row).y) > _LEAST]
    # Under one roof is the same arithmetic on the same device.
    peaks = {row: (row.record.peak or {}).get("arithmetic") or row.run.precision for row in rows}
    roofs = grouped(rows, lambda row: (row.run.device_kind, peaks[row]))
    charts = [_chart(*roof, part) for roof, own in roofs.items() for part in in_parts(own)]
    return make_section(
        "roofline",
        "Roofline",
        "Left of the ridge a step is bound by memory, right of it by arithmetic. Bytes are the "
        "compiler's count for the compiled step, operations those of the network itself.",
        [make_table([*_COLUMNS, *measured_share(context)], rows, "Arithmetic")],
        charts,
    )


def _place(row: Measurement) -> Point:
    """Return FLOP/byte and FLOP/s, 0 where they are not known."""
    names = ("flops_per_byte", "flops_per_s_per_device")
    return Point(*(getattr(row.record, name) or 0.0 for name in names))


def _chart(kind: str, arithmetic: str, rows: Sequence[Measurement]) -> LineChart:
    series, xs = [], []
    for row in rows:
        run, at = row.run, _place(row)
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
        title, note, *labels, series, make_table(_COLUMNS, rows), x_log=True, y_log=True
    )
