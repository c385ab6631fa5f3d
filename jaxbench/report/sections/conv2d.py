"""One convolution, with each part of its time apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import BarChart, Section, Table, Text
from jaxbench.report.context import ReportContext, make_section
from jaxbench.report.estimates import Estimate, of_rounds
from jaxbench.report.fields import items, number
from jaxbench.report.formats import count, milliseconds, plain3, rate, with_ends, words
from jaxbench.report.runs import ReportedRun, RunRecord
from jaxbench.report.settings import grouped
from jaxbench.report.tables import PRECISION, RUN, Column, make_table

_PARTS = {
    "host to device": "host_to_device_s",
    "compute": "compute_s",
    "device to host": "device_to_host_s",
}


def _rounds(title: str, name: str) -> Column:
    return Column(title, lambda row: of_rounds(row.record, name), _time)


def _time(of: Estimate) -> str:
    return with_ends(of.value, of.low, of.high, milliseconds)


def _compile_s(row: RunRecord) -> float | None:
    parts_s = [number(row.record, name) for name in ("lower_s", "compile_s")]
    return None if None in parts_s else sum(parts_s)


_COLUMNS = (
    *(RUN, PRECISION),
    Column("device", "run.device_kind"),
    *(Column(name, f"record.{name}", count) for name in ("kernel", "channels", "devices")),
    Column("compile [ms]", _compile_s, milliseconds),
    *(_rounds(f"{part} [ms]", name) for part, name in _PARTS.items()),
    Column("steady total [ms]", "record.steady_total_s", milliseconds),
    Column("first use [ms]", "record.first_use_s", milliseconds),
    _rounds("SciPy, 1 thread [ms]", "scipy_s"),
    Column("images/s", "record.images_per_s", rate),
    Column("speed-up", "record.speedup", plain3),
    Column("n", lambda row: of_rounds(row.record, "compute_s").n, count),
)


def conv2d(context: ReportContext) -> Section | None:
    """A bar for each problem and number of devices; compiling and SciPy in the table."""
    rows = context.of_kind("conv2d")
    if not rows:
        return None
    groups = grouped(rows, key=lambda row: row.run.id)
    charts = [_chart(own[0].run, own) for own in groups.values()]
    findings = [
        Text(f"{own[0].run.id}: {words(line)}.")
        for own in groups.values()
        for line in items(own[0].run.summary, "findings")
    ]
    return make_section(
        "conv2d",
        "One convolution",
        "The published comparison timed a first call, with compiling and moving data in it. Here "
        "every part stands alone.",
        [chart for chart in charts if chart],
        [*findings[:20], _table(rows)],
    )


def _chart(run: ReportedRun, rows: Sequence[RunRecord]) -> BarChart | None:
    bars = []
    for _, record in rows:
        parts_s = [number(record, name) for name in _PARTS.values()]
        if None not in parts_s and min(parts_s) >= 0 and sum(parts_s) > 0:
            bars.append((_label(record), [part_s * 1e3 for part_s in parts_s]))
    if not bars:
        return None
    first = rows[0].record
    size = "{} images of {}×{}".format(
        *(count(first.get(name)) for name in ("images", "height", "width"))
    )
    return BarChart(
        title=f"{run.experiment}: a call once it is compiled",
        note=(
            f"{size}, {run.precision}, {run.device_kind}; medians, "
            f"n = {of_rounds(first, 'compute_s').n or 0} rounds, no interval; {run.id}"
        ),
        x_label="milliseconds",
        parts=list(_PARTS),
        bars=bars[:24],
        table=_table(rows),
    )


def _label(record: Mapping[str, Any]) -> str:
    kernel, channels, devices = (
        count(record.get(name)) for name in ("kernel", "channels", "devices")
    )
    return f"kernel {kernel}, {channels} ch, {devices} dev"


def _table(rows: Sequence[RunRecord]) -> Table:
    return make_table(
        _COLUMNS,
        rows,
        title="Every part",
        note=f"Medians of n rounds, in brackets the 95 % interval where n is {FEWEST_FOR_INTERVAL} "
        "or more; compiling and the first use happen once; images/s by the computing alone.",
    )
