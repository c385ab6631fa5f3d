"""What the hardware did meanwhile, over the run's own clock."""

import array
import csv
import math
import os
import pathlib
from typing import Any

import numpy as np

from jaxbench.report.blocks import LineChart, Point, Section, Series, Table, Text
from jaxbench.report.collect import ReportedRun
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.sections.material import ReportContext, run_cell, run_ids, status_cell
from jaxbench.report.values import count, mapping, mebibytes, number, plain, text, words

# Runs whose panels are drawn: the longest. The table has all of them.
_MOST_RUNS = 4
# Of a day's samples each point is the mean of a bucket, its band from the least to the most.
_BUCKETS = 96
_COLUMNS = {
    "load_percent": ("load", "load [%]", 1.0),
    "cpu_percent": ("processor load of the host", "load [%]", 1.0),
    "sm_clock_mhz": ("SM clock", "clock [MHz]", 1.0),
    "memory_used_bytes": ("memory used", "memory [MiB]", 2.0**-20),
    "temperature_c": ("temperature", "temperature [°C]", 1.0),
    "power_w": ("power", "power [W]", 1.0),
}

_NEEDED = {"device", "elapsed_s"}

# {device: {column: (elapsed_s, values)}}
Readings = dict[str, dict[str, tuple[array.array, array.array]]]


def telemetry(material: ReportContext) -> Section | None:
    """Panels of the longest runs: load, clock, memory, temperature, power; a table of all."""
    runs = [run for run in material.runs if os.path.isfile(run.path / "telemetry.csv")]
    table = _table([run for run in material.runs if mapping(run.summary, "telemetry", "devices")])
    longest = sorted(runs, key=lambda run: -_size(run.path / "telemetry.csv"))
    charts: list[Any] = []
    drawn = []
    corrupt = [run.id for run in runs if not _has_header(run.path / "telemetry.csv")]
    for run in longest[: 2 * _MOST_RUNS]:
        if len(drawn) < _MOST_RUNS:
            readings, skipped = read_readings(run.path / "telemetry.csv")
            panels = _panels(run, readings, skipped)
            charts += panels
            drawn += [run] if panels else []
    if not charts and table is None and not corrupt:
        return None
    more = len(runs) - len(drawn)
    return Section(
        "telemetry",
        "Telemetry",
        "Load, clocks, memory, temperature and power as they were sampled beside the run. Of many "
        "samples the line is the mean of each stretch of time, in a band from its least to its "
        "most reading."
        + (f" Panels of the {len(drawn)} longest of {len(runs)} runs." if more > 0 else ""),
        [*_complaints(corrupt), *charts, *([table] if table else [])],
    )


def _has_header(path: pathlib.Path) -> bool:
    """Whether it begins as telemetry does; one that is empty has just been begun."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return not head or set(head.decode(errors="replace").splitlines()[0].split(",")) >= _NEEDED


def _complaints(corrupt: list[str]) -> list[Text]:
    told = "telemetry.csv is corrupt, its first line names no columns: no panels."
    return [Text(f"{run_ids(corrupt)}: {told}")] if corrupt else []


def _size(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_readings(path: pathlib.Path) -> tuple[Readings, int]:
    """Reads telemetry.csv; returns it, and how many of its lines are corrupt."""
    readings: Readings = {}
    skipped = 0
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            rows = csv.reader(line.replace("\0", "") for line in file)
            header = next(rows, [])
            if not set(header) >= _NEEDED:
                return {}, 0
            device_at, elapsed_at = header.index("device"), header.index("elapsed_s")
            columns = [(name, header.index(name)) for name in _COLUMNS if name in header]
            width = len(header)
            for row in rows:
                try:
                    elapsed_s = float(row[elapsed_at])
                    if len(row) != width or not math.isfinite(elapsed_s):
                        raise ValueError
                    device = readings.setdefault(row[device_at], {})
                    for name, at in columns:
                        if row[at]:
                            value = float(row[at])
                            if name not in device:
                                device[name] = (array.array("d"), array.array("d"))
                            device[name][0].append(elapsed_s)
                            device[name][1].append(value)
                except (ValueError, IndexError):
                    skipped += 1
    except (OSError, csv.Error):
        skipped += 1
    return readings, skipped


def _panels(run: ReportedRun, readings: Readings, skipped: int) -> list[LineChart]:
    longest_s = max(
        (times[-1] for device in readings.values() for times, _ in device.values()), default=0.0
    )
    unit, per_unit = ("s", 1.0) if longest_s < 600 else ("min", 60.0)
    if longest_s >= 3 * 3600:
        unit, per_unit = "h", 3600.0
    panels = []
    for column, (title, y_label, factor) in _COLUMNS.items():
        devices = sorted(
            (name for name, device in readings.items() if column in device), key=_by_number
        )
        parts = max(1, -(-len(devices) // MOST_SERIES))
        size = -(-len(devices) // parts)
        for part in range(parts):
            series, samples = [], []
            for device in devices[part * size : (part + 1) * size]:
                elapsed_s, values = map(np.asarray, readings[device][column])
                finite = np.isfinite(values)
                if finite.any():
                    samples.append(int(finite.sum()))
                    points = buckets(elapsed_s[finite] / per_unit, values[finite] * factor)
                    series.append(Series(device, points, band=True))
            if series:
                n = sorted(set(samples))
                every = words(run.document.get("telemetry_s"))
                which = f" ({part + 1} of {parts})" if parts > 1 else ""
                banded = any(point.low is not None for one in series for point in one.points)
                drawn = "; line: mean, band: least to most" if banded else "; all are drawn"
                panels.append(
                    LineChart(
                        title=f"{run.id} {run.experiment} {run.mode}: {title}{which}",
                        note=(
                            f"n = {' to '.join(count(s) for s in n[:1] + n[1:][-1:])} samples a "
                            f"device, every {every} s{drawn}; {run.id}"
                            + (f"; {skipped} corrupt lines left out" if skipped else "")
                        ),
                        x_label=f"since the run began [{unit}]",
                        y_label=y_label,
                        series=series,
                        from_zero=column in ("load_percent", "cpu_percent", "power_w"),
                        table=_panel_table(unit, y_label, series),
                    )
                )
    return panels


def buckets(times: np.ndarray, values: np.ndarray) -> list[Point]:
    """Returns the mean, least and most of up to `_BUCKETS` equal stretches of time."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    width = (times[-1] - times[0]) / _BUCKETS
    if len(values) <= _BUCKETS or width <= 0:
        return [Point(float(t), float(v)) for t, v in zip(times, values, strict=True)][:_BUCKETS]
    place = np.minimum((times - times[0]) // width, _BUCKETS - 1).astype(int)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    sizes = np.diff(starts, append=len(place))
    stretches = zip(
        np.add.reduceat(times, starts) / sizes,
        np.add.reduceat(values, starts) / sizes,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
        strict=True,
    )
    return [Point(*map(float, stretch)) for stretch in stretches]


def _panel_table(unit: str, y_label: str, series: list[Series]) -> Table:
    rows = []
    for time, points in _by_time(series):
        cells = [plain(time)]
        for place in range(len(series)):
            point = points.get(place)
            band = ""
            if point is not None and point.low is not None:
                band = f" ({plain(point.low)} to {plain(point.high)})"
            cells.append(f"{plain(point and point.y)}{band}")
        rows.append(cells)
    return Table(
        (f"time [{unit}]", *(f"{one.label}, {y_label}" for one in series)),
        rows,
        note="mean (least to most) of each stretch of time",
        text_columns=(),
    )


def _by_time(series: list[Series]) -> list[tuple[float, dict[int, Point]]]:
    """(time, {place of the series: its point}): devices are sampled together, nearly.

    Points share a row that are nearer than half of what is between two of one series.
    """
    apart = [(s.points[-1].x - s.points[0].x) / (len(s.points) - 1) for s in series if s.points[1:]]
    near = min(apart, default=0.0) / 2
    rows: list[tuple[float, dict[int, Point]]] = []
    for point, place in sorted(
        ((point, place) for place, one in enumerate(series) for point in one.points),
        key=lambda entry: entry[0].x,
    ):
        if rows and place not in rows[-1][1] and point.x - rows[-1][0] <= near:
            rows[-1][1][place] = point
        else:
            rows.append((point.x, {place: point}))
    return rows


def _by_number(device: str) -> tuple[str, int, str]:
    """gpu10 comes after gpu9."""
    return device.rstrip("0123456789"), len(device), device


def _table(runs: list[ReportedRun]) -> Table | None:
    rows = []
    for run in runs:
        summed = mapping(run.summary, "telemetry")
        for device, figures in mapping(summed, "devices").items():
            mean = number(figures, "load_percent_mean")
            throttled = mapping(figures, "throttle_reasons")
            rows.append(
                [
                    run_cell(run.id),
                    status_cell(run.status),
                    device,
                    count(number(figures, "samples")),
                    plain(mean if mean is not None else number(figures, "cpu_percent_mean"), 3),
                    count(number(figures, "sm_clock_mhz_median")),
                    mebibytes(number(figures, "memory_used_bytes_max")),
                    count(number(figures, "temperature_c_max")),
                    plain(number(figures, "power_w_mean"), 3),
                    plain(number(figures, "power_w_max"), 3),
                    ", ".join(
                        f"{name} {100 * (number(throttled, name) or 0):.0f} %" for name in throttled
                    )
                    or "–",
                    plain(number(summed, "joules_per_image"), 3),
                    text(summed, "energy_covers") or "–",
                ]
            )
    if not rows:
        return None
    return Table(
        (
            "run",
            "status",
            "device",
            "n",
            "load, mean [%]",
            "SM clock, median [MHz]",
            "memory, most [MiB]",
            "temperature, most [°C]",
            "power, mean [W]",
            "most [W]",
            "clock reasons",
            "energy [J/image]",
            "energy covers",
        ),
        rows,
        title="Summed up",
        note="Loads, clocks and power over what was measured, memory and temperature over the run; "
        "n samples.",
        text_columns=(0, 1, 2, 10, 12),
    )
