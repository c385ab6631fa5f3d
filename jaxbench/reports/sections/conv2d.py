"""One convolution, with each part of its time apart."""

from collections.abc import Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, of_rounds
from jaxbench.metrics import METRICS, count, words
from jaxbench.records.schema import Conv2dRecord
from jaxbench.reports.blocks import BarChart, Section
from jaxbench.reports.columns import shared
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.published import size_of
from jaxbench.reports.runs import RunRecord
from jaxbench.reports.work import grouped
from jaxbench.tables.table import (
    Column,
    Table,
    make_table,
    metric_column,
    metric_columns,
    with_interval,
)

_PROBLEM = ("kernel", "channels", "devices")
_PARTS = {
    "host to device": "host_to_device_s",
    "compute": "compute_s",
    "device to host": "device_to_host_s",
}


def _rounds(name: str) -> Column:
    show = METRICS[name].show
    value = lambda row: of_rounds(row.record, name)  # noqa: E731
    return metric_column(name, value)._replace(show=with_interval(show))


_COLUMNS = (
    *shared("run", "precision"),
    Column("device", "run.device_kind"),
    *metric_columns("record.kernel", "record.channels", "record.devices"),
    metric_column("compile_s", lambda row: row.record.lower_s + row.record.compile_s),
    *map(_rounds, _PARTS.values()),
    *metric_columns("record.steady_total_s", "record.first_use_s"),
    _rounds("scipy_s"),
    *metric_columns("record.images_per_s", "record.speedup"),
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
    size = size_of(first.images, first.height, first.width)
    note = (
        f"images: {size}, {run.precision}, {run.device_kind}; medians, "
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
