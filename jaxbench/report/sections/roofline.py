"""What the step needs beside what the device could do at most."""

from collections.abc import Sequence

from jaxbench.report.blocks import LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, make_section
from jaxbench.report.fields import mapping, number, text
from jaxbench.report.formats import count, giga, percent1, plain
from jaxbench.report.measurements import Measurement
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.settings import grouped, in_parts
from jaxbench.report.tables import (
    BATCH,
    EXPERIMENT,
    PRECISION,
    RUN,
    Column,
    make_table,
    run_ids,
)

# Logarithmic axes need something to take the logarithm of.
_LEAST = 1e-12
_COLUMNS = (
    *(RUN, EXPERIMENT),
    Column("stage", "stage"),
    *(PRECISION, BATCH),
    Column("FLOP/byte", "record.flops_per_byte", plain),
    Column("at the ridge", "record.flops_per_byte_at_ridge", plain),
    Column("bound by", "record.bound_by"),
    Column("GFLOP/s a device", "record.flops_per_s_per_device", giga),
    Column("peak [GFLOP/s]", "record.peak.flops_per_s", giga),
    Column("MFU [%]", "record.mfu", percent1),
    Column("n", "rate.n", count),
)


def roofline(context: ReportContext) -> Section | None:
    """Arithmetic intensity against arithmetic done, below the device's roof where it is known."""
    rows = [row for row in context.measurements if row.usable and min(_place(row)) > _LEAST]
    if not rows:
        return None
    charts = [
        _chart(kind, arithmetic, part)
        for (kind, arithmetic), group in grouped(rows, key=_roof_of).items()
        for part in in_parts(group, MOST_SERIES)
    ]
    return make_section(
        "roofline",
        "Roofline",
        "Left of the ridge memory bounds a step, right of it arithmetic. Bytes are those that the "
        "compiler counts for the compiled step, operations those that the network itself needs.",
        charts,
        [_table(rows)],
    )


def _place(row: Measurement) -> tuple[float, float]:
    """FLOP a byte, and FLOP a second; 0 where they are not known."""
    names = ("flops_per_byte", "flops_per_s_per_device")
    return tuple(number(row.record, name) or 0.0 for name in names)


def _roof_of(row: Measurement) -> tuple[str, str]:
    """What is under one roof multiplies in the same arithmetic on the same device."""
    return row.run.device_kind, text(row.record, "peak", "arithmetic") or row.run.precision


def _label(row: Measurement) -> str:
    run = row.run
    batch = f", {row.feed} feed, batch {run.batch_size:g}" if run.batch_size is not None else ""
    return f"{run.id} {run.experiment}, {row.stage}{batch}"


def _chart(kind: str, arithmetic: str, rows: Sequence[Measurement]) -> LineChart:
    series = [
        Series(_label(row), [Point(x, flops_per_s / 1e9)], line=False)
        for row in rows
        for x, flops_per_s in [_place(row)]
    ]
    peak = next(filter(None, (mapping(row.record, "peak") for row in rows)), {})
    peak_flops_per_s, bytes_per_s = number(peak, "flops_per_s"), number(peak, "bytes_per_s")
    note = f"no peak of {kind} is known: no roof is drawn"
    if peak_flops_per_s and bytes_per_s and min(peak_flops_per_s, bytes_per_s) > 0:
        ridge = peak_flops_per_s / bytes_per_s
        xs = [_place(row)[0] for row in rows] + [ridge / 10, ridge * 10]
        roof = [
            Point(x, min(peak_flops_per_s, x * bytes_per_s) / 1e9)
            for x in (min(xs), ridge, max(xs))
        ]
        series.append(Series(f"roof of {text(peak, 'kind')}, {arithmetic}", roof, reference=True))
        note = f"roof: {text(peak, 'source')}"
    return LineChart(
        title=f"{kind}, {arithmetic}",
        note=f"one device; medians of windows; {note}; {run_ids(row.run.id for row in rows)}",
        x_label="operations a byte [FLOP/byte]",
        y_label="GFLOP/s a device",
        series=series,
        x_log=True,
        y_log=True,
        table=_table(rows),
    )


def _table(rows: Sequence[Measurement]) -> Table:
    return make_table(_COLUMNS, rows, title="Arithmetic")
