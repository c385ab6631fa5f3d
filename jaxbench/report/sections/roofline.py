"""What the step needs beside what the device could do at most."""

from jaxbench.report.blocks import LineChart, Point, Section, Series, Table
from jaxbench.report.measurements import Measurement
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.sections.material import (
    MOST_CHARTS,
    ReportContext,
    left_out,
    run_cell,
    run_ids,
)
from jaxbench.report.values import count, mapping, number, percent, plain, text

# Logarithmic axes need something to take the logarithm of.
_LEAST = 1e-12


def roofline(material: ReportContext) -> Section | None:
    """Arithmetic intensity against arithmetic done, below the device's roof where it is known."""
    rows = [
        row
        for row in material.measurements
        if row.usable and min(row.flops_per_byte or 0, row.flops_per_s_per_device or 0) > _LEAST
    ]
    if not rows:
        return None
    groups: dict[tuple, list[Measurement]] = {}
    for row in rows:
        peak = mapping(row.record, "peak")
        # Under one roof belongs what multiplies in the same arithmetic on the same device.
        kind = text(row.setting, "device_kind") or "?"
        arithmetic = text(peak, "arithmetic") or row.precision
        groups.setdefault((kind, arithmetic), []).append(row)
    charts = [
        _chart(kind, arithmetic, group[start : start + MOST_SERIES])
        for (kind, arithmetic), group in groups.items()
        for start in range(0, len(group), MOST_SERIES)
    ]
    shown = charts[:MOST_CHARTS]
    return Section(
        "roofline",
        "Roofline",
        "Left of the ridge memory bounds a step, right of it arithmetic. Bytes are those that the "
        "compiler counts for the compiled step, operations those that the network itself needs. "
        + left_out(len(charts), len(shown), "the table"),
        [*shown, _table(rows)],
    )


def _chart(kind: str, arithmetic: str, rows: list[Measurement]) -> LineChart:
    series = [
        Series(
            f"{row.run} {row.experiment}, {row.stage}, {row.feed} feed, batch {row.batch_size:g}"
            if row.batch_size is not None
            else f"{row.run} {row.experiment}, {row.stage}",
            [Point(row.flops_per_byte, row.flops_per_s_per_device / 1e9)],
            line=False,
        )
        for row in rows
    ]
    peak = next((mapping(row.record, "peak") for row in rows if row.record.get("peak")), {})
    peak_flops_per_s, bytes_per_s = number(peak, "flops_per_s"), number(peak, "bytes_per_s")
    note = f"no peak of {kind} is known: no roof is drawn"
    if peak_flops_per_s and bytes_per_s and min(peak_flops_per_s, bytes_per_s) > 0:
        ridge = peak_flops_per_s / bytes_per_s
        xs = [row.flops_per_byte for row in rows] + [ridge / 10, ridge * 10]
        roof = [
            Point(x, min(peak_flops_per_s, x * bytes_per_s) / 1e9)
            for x in (min(xs), ridge, max(xs))
        ]
        series.append(Series(f"roof of {text(peak, 'kind')}, {arithmetic}", roof, reference=True))
        note = f"roof: {text(peak, 'source')}"
    return LineChart(
        title=f"{kind}, {arithmetic}",
        note=f"one device; medians of windows; {note}; {run_ids(row.run for row in rows)}",
        x_label="operations a byte [FLOP/byte]",
        y_label="GFLOP/s a device",
        series=series,
        x_log=True,
        y_log=True,
        table=_table(rows),
    )


def _table(rows: list[Measurement]) -> Table:
    return Table(
        (
            "run",
            "experiment",
            "stage",
            "precision",
            "batch",
            "FLOP/byte",
            "at the ridge",
            "bound by",
            "GFLOP/s a device",
            "peak [GFLOP/s]",
            "MFU [%]",
            "n",
        ),
        [
            [
                run_cell(row.run),
                row.experiment or "–",
                row.stage or "–",
                row.precision or "–",
                count(row.batch_size),
                plain(row.flops_per_byte),
                plain(number(row.record, "flops_per_byte_at_ridge")),
                text(row.record, "bound_by") or "–",
                plain(row.flops_per_s_per_device / 1e9),
                plain((number(row.record, "peak", "flops_per_s") or 0) / 1e9 or None),
                percent(row.mfu, 1),
                count(row.n),
            ]
            for row in rows
        ],
        title="Arithmetic",
        text_columns=(0, 1, 2, 3, 7),
    )
