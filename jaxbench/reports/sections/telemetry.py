"""Where the time of runs went, and what the hardware did meanwhile."""

import array
import csv
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxbench.files import open_regular, read_lines
from jaxbench.hardware.telemetry.sensors import impossible
from jaxbench.metrics import words
from jaxbench.records.goodput import CAUSES
from jaxbench.reports.blocks import Block, LineChart, Point, Section, Series
from jaxbench.reports.columns import shared
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import in_parts
from jaxbench.schema import METRICS, value_of
from jaxbench.tables.columns import Column, metric_column, metric_columns, span
from jaxbench.tables.table import make_table

# {metric: the clock's phases that it adds up}; a phase that is not listed counts as other.
_PARTS = {
    "initialise_s": ("devices", "attention", "build", "init", "init_from_images"),
    "read_data_s": ("read_data", "place_data"),
    "compile_s": ("lower", "compile"),
    "data_wait_s": ("data_wait",),
    "train_time_s": ("train", "first_step"),
    "eval_time_s": ("eval",),
    "measure_s": ("warm_up", "measure", "scipy", "compare", "run", "profile"),
    "checkpoint_s": ("checkpoint", "restore"),
    # `records`: event files and what wandb is told.
    "other_s": ("records", "other"),
}
_PART_OF = {phase: part for part, phases in _PARTS.items() for phase in phases}
# The metrics of `CAUSES`.
_BADPUT = ("startup_s", "compile_s", "data_wait_s", "eval_time_s", "checkpoint_s")
_BADPUT += ("lost_work_s", "down_s", "other_s")
_COLUMNS = (
    *shared("run", "status", "experiment", "mode"),
    *metric_columns(*_PARTS, of="parts_s."),
    *metric_columns("sum_s", "run.summary.wall_s"),
    Column("compilation cache", "run.compile_cache"),
)
_GOODPUT = (
    *shared("run", "status", "experiment"),
    *metric_columns("run.summary.num_resumes", "run.summary.goodput"),
    *(
        metric_column(name, f"run.summary.badput_s.{cause}")
        for cause, name in zip(CAUSES, _BADPUT, strict=True)
    ),
    metric_column("run.summary.total_wall_s"),
)


def time_split(context: ReportContext) -> Section | None:
    """Return the seconds of every part of each run beside the whole, and the goodput."""
    rows = [row for run in context.runs if (row := _split(run))["sum_s"] > 0]
    note = "; ".join(f"{METRICS[part].title}: {', '.join(of)}" for part, of in _PARTS.items())
    table = make_table(_COLUMNS, rows, title="Seconds", note=f"{note} (the names in run.json).")
    rows = [{"run": run} for run in context.runs if value_of(run.summary, "goodput") is not None]
    goodput = make_table(
        _GOODPUT,
        rows,
        title="Goodput",
        note="Share of the wall time that was steps whose result is in the final state, and the "
        "seconds of the rest by cause, from the start of a run's first process to its end. "
        "lost work: done again after a resume. down: between two processes.",
    )
    return make_section(
        "time",
        "Where the time went",
        "The clock's phases do not overlap, so the parts add up to the whole run. Time of no "
        "phase is other.",
        [table, goodput],
    )


def _split(run: ReportedRun) -> dict[str, Any]:
    parts_s = dict.fromkeys(_PARTS, 0.0)
    phases_s = run.summary.phases_s or {}
    for phase in phases_s:
        parts_s[_PART_OF.get(phase, "other_s")] += phases_s[phase]
    return {"run": run, "parts_s": parts_s, "sum_s": sum(parts_s.values())}


# Runs whose panels are drawn: the longest. The table has all of them.
_MOST_RUNS = 2
# Of a day's samples each point is the mean of a bucket, its band from the least to the most.
_BUCKETS = 96
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
_TELEMETRY_COLUMNS = (
    *shared("run", "status"),
    Column("device", "device"),
    metric_column("n", "figures.samples"),
    metric_column("load"),
    *metric_columns("sm_clock_mhz_median", "memory_used_bytes_max", of="figures."),
    *metric_columns("temperature_c_max", "power_w_mean", "power_w_max", of="figures."),
    Column("clock reasons", "reasons"),
    metric_column("run.telemetry.joules_per_image"),
    Column("energy covers", "run.telemetry.energy_covers"),
)
# {device: {column: (seconds, values)}}
_Readings = dict[str, dict[str, tuple[array.array, array.array]]]


def telemetry(context: ReportContext) -> Section | None:
    """Return panels of the longest runs: load, clock, memory, temperature, power; and a table."""
    sampled = [run for run in context.runs if os.path.isfile(run.path / _FILE)]
    blocks: list[Block] = []
    num_drawn = 0
    for run in sorted(sampled, key=_duration_s, reverse=True):
        readings, skipped = _read_readings(run.path / _FILE, run.device_kind)
        if readings is None:
            blocks.append(f"{run.id}: {_FILE} is corrupt.")
        elif panels := [*_panels(run, readings, skipped)]:
            blocks += panels
            num_drawn += 1
        if num_drawn == _MOST_RUNS:
            break
    more = f" Panels of the {num_drawn} longest of {len(sampled)} runs."
    rows = []
    for run in context.runs:
        boards = run.environment.get("boards", ())
        limits_w = {board.get("device"): board.get("power_limit_w") for board in boards}
        for device, figures in run.telemetry.get("devices", {}).items():
            # A host's load is that of its processor.
            load = figures.get("load_percent_mean", figures.get("cpu_percent_mean"))
            shares = figures.get("throttle_reasons") or {}
            reasons = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
            if "sw_power_cap" in shares and (limit_w := limits_w.get(device)):
                reasons += f"; its power limit is {limit_w:g} W"
            row = {"run": run, "device": device, "figures": figures}
            rows.append(row | {"load": load if load is None else load / 100, "reasons": reasons})
    table = make_table(
        _TELEMETRY_COLUMNS,
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
        + (more if len(sampled) > num_drawn else ""),
        [*blocks, table],
    )


def _duration_s(run: ReportedRun) -> float:
    """Return how long a run took; of one without a summary, up to its last record with a time."""
    times_s = (value_of(record, "elapsed_s") or 0.0 for record in run.records)
    return run.summary.wall_s or max(times_s, default=0.0)


def _read_readings(path: pathlib.Path, device_kind: str) -> tuple[_Readings | None, int]:
    """Return telemetry.csv, and how many lines are corrupt or have readings that cannot be.

    None if all lines are corrupt.
    """
    readings: _Readings = {}
    skipped = 0
    try:
        with open_regular(
            path, newline="", encoding="utf-8", errors="replace", most_bytes=math.inf
        ) as file:
            rows = csv.DictReader(line.replace("\0", "") for line in read_lines(file))
            # A file that is empty has just been begun.
            if not _NEEDED.issubset(rows.fieldnames or _NEEDED):
                return None, 0
            for row in rows:
                try:
                    elapsed_s = float(row["elapsed_s"])
                    values = {name: float(row[name]) for name in _PANELS if row.get(name)}
                    if None in (*row, *row.values()) or not math.isfinite(elapsed_s):
                        raise ValueError("not a whole line")
                except (ValueError, TypeError):
                    skipped += 1
                    continue
                device = readings.setdefault(row["device"], {})
                wrong = impossible(values, device_kind)
                skipped += bool(wrong)
                for name, value in values.items():
                    # Narrow: a week of 72 GPUs has 200 million values.
                    curve = device.setdefault(name, (array.array("f"), array.array("f")))
                    if name not in wrong:
                        curve[0].append(elapsed_s)
                        curve[1].append(value)
    except (OSError, csv.Error):
        skipped += 1
    return readings if readings or not skipped else None, skipped


def _panels(run: ReportedRun, readings: _Readings, skipped: int) -> Iterator[LineChart]:
    ends_s = [times[-1] for curves in readings.values() for times, _ in curves.values() if times]
    longest_s = max(ends_s, default=0.0)
    units = (("s", 1.0, 600), ("min", 60.0, 3 * 3600), ("h", 3600.0, math.inf))
    unit, unit_s = next((name, size) for name, size, most in units if longest_s < most)
    for column, (title, y_label, factor) in _PANELS.items():
        curves = {
            device: points
            for device, columns in readings.items()
            if column in columns and (points := _buckets(*columns[column], unit_s, factor))
        }
        # gpu10 comes after gpu9.
        devices = sorted(curves, key=lambda name: (name.rstrip("0123456789"), len(name), name))
        for which, names in in_parts(devices):
            series = [Series(name, curves[name], band=True) for name in names]
            title_of = f"{run.id} {run.experiment} {run.mode}: {title}{which}"
            labels = (f"since the run began [{unit}]", y_label)
            banded = any(point.low is not None for one in series for point in one.points)
            drawn = "line: mean, band: least to most" if banded else "all are drawn"
            samples = span(len(readings[name][column][0]) for name in names)
            every = words(run.document.telemetry_s)
            note = f"n = {samples} samples a device, every {every} s; {drawn}; {run.id}"
            note += f"; {skipped} corrupt lines or impossible readings left out" if skipped else ""
            from_zero = column in ("load_percent", "cpu_percent", "power_w")
            yield LineChart(title_of, note, *labels, series, from_zero=from_zero, numbers=True)


def _buckets(
    times: Sequence[float], values: Sequence[float], unit_s: float = 1.0, factor: float = 1.0
) -> list[Point]:
    """Return the mean, least and most of up to `_BUCKETS` equal spans of time."""
    x, y = np.array([times, values], float)[:, np.argsort(times, kind="stable")]
    x, y = x / unit_s, y * factor
    width = (x[-1] - x[0]) / _BUCKETS if len(x) else 0
    if len(x) <= _BUCKETS or width <= 0:
        return list(map(Point, x[:_BUCKETS].tolist(), y[:_BUCKETS].tolist()))
    place = np.minimum((x - x[0]) // width, _BUCKETS - 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.diff(starts, append=len(x))
    means = [np.add.reduceat(samples, starts) / counts for samples in (x, y)]
    columns = (*means, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))
    rows, words = np.transpose(columns).tolist(), "mean, least to most"
    return [Point(at, mean, low, high, words) for at, mean, low, high in rows]
