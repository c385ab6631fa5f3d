"""What the hardware did meanwhile, over the run's own clock."""

import array
import csv
import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from jaxbench.analysis.statistics import Estimate
from jaxbench.files import open_regular
from jaxbench.metrics import METRICS, count, plain, words
from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import run_ids, shared
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import in_parts, thinned
from jaxbench.tables.columns import Column, metric_column
from jaxbench.tables.formats import span, with_interval
from jaxbench.tables.table import Table, make_table

# Runs whose panels are drawn: the longest. The table has all of them.
_MOST_RUNS = 2
# Of a day's samples each point is the mean of a bucket, its band from the least to the most.
_BUCKETS = 96
# So many of them are listed below a panel.
_MOST_LISTED = 48
# {column of telemetry.csv: (title, axis, factor)}.
_PANELS = {
    "load_percent": ("load", "load [%]", 1.0),
    "cpu_percent": ("processor load of the host", "load [%]", 1.0),
    "sm_clock_mhz": ("SM clock", "clock [MHz]", 1.0),
    "memory_used_bytes": ("memory used", "memory [MiB]", 2.0**-20),
    "temperature_c": ("temperature", "temperature [°C]", 1.0),
    "power_w": ("power", "power [W]", 1.0),
}
_FILE, _NEEDED = "telemetry.csv", {"device", "elapsed_s"}
_COLUMNS = (
    *shared("run", "status"),
    Column("device", "device"),
    Column("n", "figures.samples", count),
    Column("load, mean [%]", "load", plain),
    Column("SM clock, median [MHz]", "figures.sm_clock_mhz_median", count),
    Column(
        "memory, most [MiB]", "figures.memory_used_bytes_max", METRICS["peak_memory_bytes"].show
    ),
    Column("temperature, most [°C]", "figures.temperature_c_max", count),
    Column("power, mean [W]", "figures.power_w_mean", plain),
    Column("most [W]", "figures.power_w_max", plain),
    Column("clock reasons", "reasons"),
    metric_column("run.telemetry.joules_per_image"),
    Column("energy covers", "run.summary.telemetry.energy_covers"),
)
# {device: {column: (seconds, values)}}
_Readings = dict[str, dict[str, tuple[array.array, array.array]]]


def telemetry(context: ReportContext) -> Section | None:
    """Return panels of the longest runs: load, clock, memory, temperature, power; and a table."""
    files = {run: run.path / _FILE for run in context.runs if os.path.isfile(run.path / _FILE)}
    corrupt = [run for run, path in files.items() if not _has_header(path)]
    told = f"{_FILE} is corrupt, its first line names no columns: no panels."
    complaints = [f"{run_ids(corrupt)}: {told}"] if corrupt else []
    readable = [run for run in files if run not in corrupt]
    longest = sorted(readable, key=lambda run: -_duration_s(run))[: 2 * _MOST_RUNS]
    panels = ([*_panels(run, *read_readings(files[run]))] for run in longest)
    drawn = [*itertools.islice(filter(None, panels), _MOST_RUNS)]
    more = f" Panels of the {len(drawn)} longest of {len(files)} runs."
    rows = []
    for run in context.runs:
        for device, figures in run.telemetry.get("devices", {}).items():
            # A host's load is that of its processor.
            load = figures.get("load_percent_mean") or figures.get("cpu_percent_mean")
            shares = figures.get("throttle_reasons") or {}
            told = [f"{name} {100 * share:.0f} %" for name, share in shares.items()]
            row = {"run": run, "device": device, "figures": figures, "load": load}
            rows.append(row | {"reasons": ", ".join(told)})
    table = make_table(
        _COLUMNS,
        rows,
        title="Summary",
        note="Load, clock and power are of the measured part, memory and temperature of the whole "
        "run; n samples.",
    )
    return make_section(
        "telemetry",
        "Telemetry",
        "Load, clocks, memory, temperature and power, sampled during the run. Of many samples the "
        "line is the mean of each interval of time, in a band from the least to the greatest."
        + (more if len(files) > len(drawn) else ""),
        [*complaints, *itertools.chain(*drawn), table],
    )


def _duration_s(run: ReportedRun) -> float:
    """Return how long a run took; of one without a summary, up to its last record with a time."""
    times_s = (record.elapsed_s or 0.0 for record in run.records)
    return run.summary.wall_s or max(times_s, default=0.0)


def _has_header(path: pathlib.Path) -> bool:
    """Return whether a file begins as telemetry does; one that is empty has just been begun."""
    try:
        with open_regular(path, "rb", most_bytes=math.inf) as file:
            head = file.read(4096).decode(errors="replace")
    except OSError:
        return False
    return not head or set(head.splitlines()[0].split(",")) >= _NEEDED


def read_readings(path: pathlib.Path) -> tuple[_Readings, int]:
    """Read telemetry.csv; return it, and how many of its lines are corrupt."""
    readings: _Readings = {}
    skipped = 0
    try:
        with open_regular(
            path, newline="", encoding="utf-8", errors="replace", most_bytes=math.inf
        ) as file:
            rows = csv.DictReader(line.replace("\0", "") for line in file)
            columns = [name for name in _PANELS if name in (rows.fieldnames or ())]
            for row in rows:
                try:
                    elapsed_s = float(row["elapsed_s"])
                    values = {name: float(row[name]) for name in columns if row[name]}
                    if None in row or None in row.values() or not math.isfinite(elapsed_s):
                        raise ValueError("not a whole line")
                except (ValueError, TypeError):
                    skipped += 1
                    continue
                device = readings.setdefault(row["device"], {})
                for name, value in values.items():
                    curve = device.setdefault(name, (array.array("d"), array.array("d")))
                    if math.isfinite(value):
                        curve[0].append(elapsed_s)
                        curve[1].append(value)
    except (OSError, csv.Error):
        skipped += 1
    return readings, skipped


def _panels(run: ReportedRun, readings: _Readings, skipped: int) -> Iterator[LineChart]:
    ends_s = [times[-1] for curves in readings.values() for times, _ in curves.values() if times]
    longest_s = max(ends_s, default=0.0)
    units = (("s", 1.0, 600), ("min", 60.0, 3 * 3600), ("h", 3600.0, math.inf))
    unit, unit_s = next((name, size) for name, size, most in units if longest_s < most)
    for column, (title, y_label, factor) in _PANELS.items():
        curves = {
            device: points
            for device, own in readings.items()
            if column in own and (points := buckets(*own[column], unit_s, factor))
        }
        # gpu10 comes after gpu9.
        devices = sorted(curves, key=lambda name: (name.rstrip("0123456789"), len(name), name))
        parts = in_parts(devices)
        for part, names in enumerate(parts, 1):
            series = [Series(name, curves[name], band=True) for name in names]
            which = f" ({part} of {len(parts)})" if len(parts) > 1 else ""
            title_of = f"{run.id} {run.experiment} {run.mode}: {title}{which}"
            labels = (f"since the run began [{unit}]", y_label)
            banded = any(point.low is not None for one in series for point in one.points)
            drawn = "line: mean, band: least to most" if banded else "all are drawn"
            samples = span(len(readings[name][column][0]) for name in names)
            every = words(run.document.telemetry_s)
            note = f"n = {samples} samples a device, every {every} s; {drawn}; {run.id}"
            note += f"; {skipped} corrupt lines left out" if skipped else ""
            table = _table(unit, y_label, series)
            from_zero = column in ("load_percent", "cpu_percent", "power_w")
            yield LineChart(title_of, note, *labels, series, table, from_zero=from_zero)


def buckets(
    times: Sequence[float], values: Sequence[float], unit_s: float = 1.0, factor: float = 1.0
) -> list[Point]:
    """Return the mean, least and most of up to `_BUCKETS` equal spans of time."""
    x, y = np.array([times, values])[:, np.argsort(times, kind="stable")]
    x, y = x / unit_s, y * factor
    width = (x[-1] - x[0]) / _BUCKETS if len(x) else 0
    if len(x) <= _BUCKETS or width <= 0:
        return list(map(Point, x[:_BUCKETS].tolist(), y[:_BUCKETS].tolist()))
    place = np.minimum((x - x[0]) // width, _BUCKETS - 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.diff(starts, append=len(x))
    means = [np.add.reduceat(own, starts) / counts for own in (x, y)]
    columns = (*means, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))
    return [Point(*map(float, ends), "mean, least to most") for ends in zip(*columns, strict=True)]


def _table(unit: str, y_label: str, series: Sequence[Series]) -> Table:
    rows = [
        {"device": one.label, "time": point.x, "value": Estimate(point.y, point.low, point.high)}
        for one in series
        for point in thinned(one.points, _MOST_LISTED)
    ]
    values = Column(y_label, "value", with_interval(plain))
    columns = [Column(f"time [{unit}]", "time", plain), values]
    return make_table(columns, rows, group=lambda row: row["device"])
