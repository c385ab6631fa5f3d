"""One convolution, every part of its time told apart."""

from collections.abc import Mapping
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import BarChart, Section, Table, Text
from jaxbench.report.collect import ReportedRun
from jaxbench.report.details import timed_rounds
from jaxbench.report.sections.material import MOST_CHARTS, ReportContext, left_out, run_cell
from jaxbench.report.values import (
    count,
    interval,
    items,
    mapping,
    milliseconds,
    number,
    plain,
    rate,
    words,
)

_PARTS = {
    "host to device": "host_to_device_s",
    "compute": "compute_s",
    "device to host": "device_to_host_s",
}


def conv2d(material: ReportContext) -> Section | None:
    """A bar for each problem and number of devices; compiling and SciPy in the table."""
    runs = [(run, run.of_kind("conv2d")) for run in material.runs]
    runs = [(run, cells) for run, cells in runs if cells]
    if not runs:
        return None
    charts = [chart for run, cells in runs if (chart := _chart(run, cells))]
    findings = [
        Text(f"{run.id}: {words(line)}.")
        for run, _ in runs
        for line in items(run.summary, "findings")
    ]
    shown = charts[:MOST_CHARTS]
    return Section(
        "conv2d",
        "One convolution",
        "The published comparison timed a first call, compiling and moving data in it. Here every "
        "part stands alone. " + left_out(len(charts), len(shown), "the table"),
        [*shown, *findings[:20], _table(runs)],
    )


def _chart(run: ReportedRun, cells: list[Mapping[str, Any]]) -> BarChart | None:
    bars = []
    for cell in cells:
        parts_s = [number(cell, field) for field in _PARTS.values()]
        if None not in parts_s and min(parts_s) >= 0 and sum(parts_s) > 0:
            label = (
                f"kernel {count(number(cell, 'kernel'))}, {count(number(cell, 'channels'))} ch, "
                f"{count(number(cell, 'devices'))} dev"
            )
            bars.append((label, [part_s * 1e3 for part_s in parts_s]))
    if not bars:
        return None
    first = cells[0]
    n = len(items(mapping(first, "samples"), "compute_s"))
    return BarChart(
        title=f"{run.experiment}: a call once it is compiled",
        note=(
            f"{count(number(first, 'images'))} images of {count(number(first, 'height'))}×"
            f"{count(number(first, 'width'))}, {run.precision}, {run.device_kind}; medians, "
            f"n = {n} rounds, no interval; {run.id}"
        ),
        x_label="milliseconds",
        parts=list(_PARTS),
        bars=bars[:24],
        table=_table([(run, cells)]),
    )


def _table(runs: list[tuple[ReportedRun, list[Mapping[str, Any]]]]) -> Table:
    rows = []
    for run, cells in runs:
        for cell in cells:
            lower_s, compile_s = number(cell, "lower_s"), number(cell, "compile_s")
            both_s = None if lower_s is None or compile_s is None else lower_s + compile_s
            rows.append(
                [
                    run_cell(run.id),
                    run.precision,
                    run.device_kind,
                    *(count(number(cell, name)) for name in ("kernel", "channels", "devices")),
                    milliseconds(both_s),
                    *(_rounds(cell, field) for field in _PARTS.values()),
                    milliseconds(number(cell, "steady_total_s")),
                    milliseconds(number(cell, "first_use_s")),
                    _rounds(cell, "scipy_s"),
                    rate(number(cell, "images_per_s")),
                    plain(number(cell, "speedup"), 3),
                    count(len(items(mapping(cell, "samples"), "compute_s")) or None),
                ]
            )
    return Table(
        (
            "run",
            "precision",
            "device",
            "kernel",
            "channels",
            "devices",
            "compile [ms]",
            *(f"{part} [ms]" for part in _PARTS),
            "steady total [ms]",
            "first use [ms]",
            "SciPy, 1 thread [ms]",
            "images/s",
            "speed-up",
            "n",
        ),
        rows,
        title="Every part",
        note=f"Medians of n rounds, in brackets the 95 % interval where n is {FEWEST_FOR_INTERVAL} "
        "or more; compiling and the first use happen once; images/s by the computing alone.",
        text_columns=(0, 1, 2),
    )


def _rounds(cell: Mapping[str, Any], field: str) -> str:
    timed = timed_rounds(cell, field)
    ends = interval(timed.get("time_s_low"), timed.get("time_s_high"), milliseconds)
    return milliseconds(timed.get("time_s")) + ("" if ends == "–" else f" ({ends})")
