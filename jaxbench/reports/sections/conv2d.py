"""One convolution, with each part of its time apart."""

from collections.abc import Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.metrics import count, plain, words
from jaxbench.records.schema import Conv2dRecord
from jaxbench.reports.blocks import BarChart, Section, Table
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.fields import of_rounds
from jaxbench.reports.formats import milliseconds, with_interval
from jaxbench.reports.published import size_of
from jaxbench.reports.runs import RunRecord
from jaxbench.reports.settings import grouped
from jaxbench.reports.tables import Column, make_table, shared

_PROBLEM = ("kernel", "channels", "devices")
_PARTS = {
    "host to device": "host_to_device_s",
    "compute": "compute_s",
    "device to host": "device_to_host_s",
}


def _rounds(title: str, name: str) -> Column:
    return Column(title, lambda row: of_rounds(row.record, name), with_interval(milliseconds))


_COLUMNS = (
    *shared("run", "precision"),
    Column("device", "run.device_kind"),
    *(Column(name, f"record.{name}", count) for name in _PROBLEM),
    Column("compile [ms]", lambda row: row.record.lower_s + row.record.compile_s, milliseconds),
    *(_rounds(f"{part} [ms]", name) for part, name in _PARTS.items()),
    Column("steady total [ms]", "record.steady_total_s", milliseconds),
    Column("first use [ms]", "record.first_use_s", milliseconds),
    _rounds("SciPy, 1 thread [ms]", "scipy_s"),
    Column("images/s", "record.images_per_s", plain),
    Column("speed-up", "record.speedup", plain),
    Column("n", lambda row: of_rounds(row.record, "compute_s").n, count),
)


def conv2d(context: ReportContext) -> Section | None:
    """Return a bar for each problem and number of devices; compiling and SciPy in the table."""
    rows = context.of_kind(Conv2dRecord)
    groups = grouped(rows, key=lambda row: row.run)
    findings = [(run.id, line) for run in groups for line in run.summary.findings or ()]
    return make_section(
        "conv2d",
        "One convolution",
        "The published comparison timed a first call, compilation and data transfer included. "
        "Here each part is timed alone.",
        [*(f"{id}: {words(line)}." for id, line in findings[:20]), _table(rows)],
        charts=[chart for own in groups.values() for chart in _chart(own)],
    )


def _chart(rows: Sequence[RunRecord]) -> list[BarChart]:
    bars = []
    for _, record in rows:
        parts_s = [getattr(record, name) for name in _PARTS.values()]
        if sum(parts_s) > 0:
            kernel, channels, devices = (count(getattr(record, name)) for name in _PROBLEM)
            label = f"kernel {kernel}, {channels} ch, {devices} dev"
            bars.append((label, [part_s * 1e3 for part_s in parts_s]))
    if not bars:
        return []
    run, first = rows[0]
    note = (
        f"images: {size_of(first)}, {run.precision}, {run.device_kind}; medians, "
        f"n = {of_rounds(first, 'compute_s').n or 0} rounds, no interval; {run.id}"
    )
    title = f"{run.experiment}: a call once it is compiled"
    return [BarChart(title, note, "milliseconds", list(_PARTS), bars[:24], _table(rows))]


def _table(rows: Sequence[RunRecord]) -> Table:
    return make_table(
        _COLUMNS,
        rows,
        title="Every part",
        note=f"Medians of n rounds, in brackets the 95 % interval where n is {FEWEST_FOR_INTERVAL} "
        "or more; compiling and the first use happen once; images/s by the computing alone.",
    )
