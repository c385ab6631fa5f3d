"""What the hardware did meanwhile, over the run's own clock."""

import array
import csv
import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from jaxbench.files import open_regular, read_lines
from jaxbench.metrics import count, plain, words
from jaxbench.reports.blocks import LineChart, Point, Section, Series, Table
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.fields import Estimate, find, known
from jaxbench.reports.formats import mebibytes, span, with_interval
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.settings import in_parts, thinned
from jaxbench.reports.tables import Column, make_table, run_ids, shared

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
    Column("memory, most [MiB]", "figures.memory_used_bytes_max", mebibytes),
    Column("temperature, most [°C]", "figures.temperature_c_max", count),
    Column("power, mean [W]", "figures.power_w_mean", plain),
    Column("most [W]", "figures.power_w_max", plain),
    Column("clock reasons", "reasons"),
    Column("energy [J/image]", "run.summary.telemetry.joules_per_image", plain),
    Column("energy covers", "run.summary.telemetry.energy_covers"),
)
# A week of 72 devices is 200 million values. So the samples of a long run are joined into spans
# of _IN_STRETCH neighbours while they are read; a run of up to _MOST_SINGLE samples keeps each.
_IN_STRETCH, _MOST_SINGLE = 64, 64 * _BUCKETS
# Of one or more samples: their mean time and value, the least, the greatest, and how many.
_STRETCH = np.dtype([(name, np.float64) for name in ("time", "mean", "low", "high", "count")])


class _Curve:
    """The samples of one device and column, in order."""

    def __init__(self):
        self.times, self.values = array.array("d"), array.array("d")
        self._spans: list[np.ndarray] = []

    def spans(self) -> np.ndarray:
        """Return all samples, those without a value left out."""
        return np.concatenate([*self._spans, singles(self.times, self.values)])

    def fold(self) -> None:
        """Make spans of the samples that are kept one by one."""
        single = singles(self.times, self.values)
        whole = len(single) // _IN_STRETCH * _IN_STRETCH
        starts = np.arange(0, whole, _IN_STRETCH)
        self._spans.append(_merged(single[:whole], starts))
        self.times = array.array("d", single["time"][whole:])
        self.values = array.array("d", single["mean"][whole:])


# {device: {column: its samples}}
_Readings = dict[str, dict[str, _Curve]]


def singles(times: Sequence[float], values: Sequence[float]) -> np.ndarray:
    """Return spans of one sample each, those without a value left out."""
    found = np.ones(len(times), _STRETCH)
    found["time"] = times
    for name in ("mean", "low", "high"):
        found[name] = values
    return found[np.isfinite(found["mean"])]


def _merged(spans: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return one span from each start to the next one."""
    found = np.empty(len(starts), _STRETCH)
    if len(starts):
        found["count"] = np.add.reduceat(spans["count"], starts)
        for name in ("time", "mean"):
            total = np.add.reduceat(spans[name] * spans["count"], starts)
            found[name] = total / found["count"]
        found["low"] = np.minimum.reduceat(spans["low"], starts)
        found["high"] = np.maximum.reduceat(spans["high"], starts)
    return found


def telemetry(context: ReportContext) -> Section | None:
    """Return panels of the longest runs: load, clock, memory, temperature, power; and a table."""
    files = {run: run.path / _FILE for run in context.runs if os.path.isfile(run.path / _FILE)}
    corrupt = [run for run, path in files.items() if not _has_header(path)]
    told = f"{_FILE} is corrupt, its first line names no columns: no panels."
    complaints = [f"{run_ids(corrupt)}: {told}"] if corrupt else []
    longest = sorted(files, key=lambda run: -_duration_s(run))[: 2 * _MOST_RUNS]
    panels = (own for run in longest if (own := [*_panels(run, *read_readings(files[run]))]))
    drawn = [*itertools.islice(panels, _MOST_RUNS)]
    more = f" Panels of the {len(drawn)} longest of {len(files)} runs."
    rows = []
    for run in context.runs:
        for device, figures in run.telemetry.get("devices", {}).items():
            # A host's load is that of its processor.
            load = find(figures, "load_percent_mean") or find(figures, "cpu_percent_mean")
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
    times_s = known(record.elapsed_s for record in run.records)
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
            rows = csv.reader(line.replace("\0", "") for line in read_lines(file))
            header = next(rows, [])
            if not set(header) >= _NEEDED:
                return {}, 0
            device_at, elapsed_at = header.index("device"), header.index("elapsed_s")
            columns = [(name, header.index(name)) for name in _PANELS if name in header]
            for row in rows:
                try:
                    elapsed_s = float(row[elapsed_at])
                    values = [(name, float(row[at])) for name, at in columns if row[at]]
                    if len(row) != len(header) or not math.isfinite(elapsed_s):
                        raise ValueError("not a whole line")
                except (ValueError, IndexError):
                    skipped += 1
                    continue
                device = readings.setdefault(row[device_at], {})
                for name, value in values:
                    curve = device.get(name)
                    if curve is None:
                        curve = device[name] = _Curve()
                    curve.times.append(elapsed_s)
                    curve.values.append(value)
                    if len(curve.times) > _MOST_SINGLE:
                        curve.fold()
    except (OSError, csv.Error):
        skipped += 1
    return readings, skipped


def _panels(run: ReportedRun, readings: _Readings, skipped: int) -> Iterator[LineChart]:
    curves = {
        device: {name: curve.spans() for name, curve in own.items()}
        for device, own in readings.items()
    }
    last_s = [own["time"][-1] for device in curves.values() for own in device.values() if len(own)]
    longest_s = max(last_s, default=0.0)
    units = (("s", 1.0, 600), ("min", 60.0, 3 * 3600), ("h", 3600.0, math.inf))
    unit, unit_s = next((name, size) for name, size, most in units if longest_s < most)
    every = words(run.document.telemetry_s)
    for column, (title, y_label, factor) in _PANELS.items():
        devices = [name for name, own in curves.items() if len(own.get(column, ()))]
        # gpu10 comes after gpu9.
        devices.sort(key=lambda name: (name.rstrip("0123456789"), len(name), name))
        parts = in_parts(devices)
        for part, names in enumerate(parts, 1):
            series, samples = [], []
            for name in names:
                own = curves[name][column]
                samples.append(int(own["count"].sum()))
                own["time"] /= unit_s
                for kind in ("mean", "low", "high"):
                    own[kind] *= factor
                series.append(Series(name, buckets(own), band=True))
            which = f" ({part} of {len(parts)})" if len(parts) > 1 else ""
            name = f"{run.id} {run.experiment} {run.mode}: {title}{which}"
            labels = (f"since the run began [{unit}]", y_label)
            banded = any(point.low is not None for one in series for point in one.points)
            drawn = "line: mean, band: least to most" if banded else "all are drawn"
            note = f"n = {span(samples)} samples a device, every {every} s; {drawn}; {run.id}"
            note += f"; {skipped} corrupt lines left out" if skipped else ""
            table = _table(unit, y_label, series)
            from_zero = column in ("load_percent", "cpu_percent", "power_w")
            yield LineChart(name, note, *labels, series, table, from_zero=from_zero)


def buckets(spans: np.ndarray) -> list[Point]:
    """Return the mean, least and most of up to `_BUCKETS` equal spans of time."""
    spans = spans[np.argsort(spans["time"], kind="stable")]
    times = spans["time"]
    width = (times[-1] - times[0]) / _BUCKETS
    if len(times) <= _BUCKETS or width <= 0:
        return [Point(float(one["time"]), float(one["mean"])) for one in spans[:_BUCKETS]]
    place = np.minimum((times - times[0]) // width, _BUCKETS - 1).astype(int)
    found = _merged(spans, np.flatnonzero(np.diff(place, prepend=-1)))
    told = "mean, least to most"
    return [Point(*map(float, [one[name] for name in _STRETCH.names[:4]]), told) for one in found]


def _table(unit: str, y_label: str, series: Sequence[Series]) -> Table:
    rows = [
        {"device": one.label, "time": point.x, "value": Estimate(point.y, point.low, point.high)}
        for one in series
        for point in thinned(one.points, _MOST_LISTED)
    ]
    values = Column(y_label, "value", with_interval(plain))
    columns = [Column(f"time [{unit}]", "time", plain), values]
    return make_table(columns, rows, group=lambda row: row["device"])
