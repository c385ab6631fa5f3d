"""Summarize the readings of a run: loads, energy, warnings."""

import array
import collections
import csv
import itertools
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxbench.analysis.pricing import J_PER_KWH
from jaxbench.analysis.statistics import drift
from jaxbench.clock import seconds_since_1970
from jaxbench.files import open_regular, read_lines
from jaxbench.hardware.system import is_disturbed
from jaxbench.hardware.telemetry.nvml import LOWERED_LIMIT
from jaxbench.hardware.telemetry.sensors import bounds, impossible

# Reasons for lower clocks that slow a run down: not an idle GPU, clocks set by the user, or boards
# that are clocked together.
THROTTLING = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
# A GPU at full load is held at its board's power limit: only a limit that was lowered is a warning.
_WARNED = {*THROTTLING, LOWERED_LIMIT} - {"sw_power_cap"}
# A drop of clocks that is worth a warning, and a difference in mean load, in points.
_CLOCK_DROP, _IMBALANCE = 0.02, 10.0
# Energy is known if windows hold at least this many intervals ...
_LEAST_INTERVALS = 10
# ... and the gaps between their ends and the nearest samples are at most this share of them.
_LONGEST_GAPS = 0.1
# A gap of more intervals is one.
_LOST_SAMPLES = 3
# An energy counter is wrong if it counts this many times what the power readings make, or they this
# many times what it counts: they may see a part of the time. Or if it stands still for so long.
_APART, _STILL_S = 2.0, 2.0
# NVML's power reading may be a mean over the second before.
_POWER_MEAN_S = 1.0
OTHER_WORK = (
    "other processes took {other_cpu_percent_mean:.0f} % of the host's processor: rates may be too "
    "low"
)
# {column of telemetry.csv: its statistics in the summary}: over the measured windows, but for
# `greatest`, which is over the whole run, and `energy`.
COLUMNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("time", "elapsed_s", "device", "kind"), ()),
    "load_percent": ("mean", "max"),
    "memory_used_bytes": ("greatest",),
    "memory_total_bytes": (),
    "sm_clock_mhz": ("median",),
    "memory_clock_mhz": (),
    "temperature_c": ("greatest",),
    "fan_percent": (),
    "power_w": ("mean", "max"),
    "energy_j": ("energy",),
    "throttle_reasons": (),
    "cpu_percent": ("mean", "max"),
    "rss_bytes": ("greatest",),
    "load_1min": ("max",),
    "other_cpu_percent": ("mean", "max"),
}
_STATISTICS: dict[str, Any] = {"mean": np.mean, "max": np.max, "median": np.median}
_SUMMARIZED = [name for name, statistics_of in COLUMNS.items() if statistics_of]
_READ = (*_SUMMARIZED, "memory_total_bytes")
# The run's clock stands still between two processes: the date goes apart from it by more than this,
# ahead or, if it was set back, behind.
_JUMP_S = 0.5


class Window(NamedTuple):
    """A measured interval of the run's clock, and the number of images in it."""

    start_s: float
    end_s: float
    images: int


class Series:
    """One device's readings, in few bytes: 72 devices have 44 million a week."""

    def __init__(self, kind: str, device_kind: str | None = None):
        self.kind, self.device_kind = kind, device_kind
        # {column: its readings that are impossible}: how many, and the last.
        self.left_out: dict[str, tuple[int, float]] = {}
        # {column: its greatest value}, of those whose statistics are over the whole run.
        self.greatest: dict[str, float] = {}
        self._elapsed_s = array.array("d")
        # A host has no clock, a board no processor load: only what a device has takes room.
        self._columns: dict[str, array.array] = {}
        # Each sample's reasons, by their place in the list; a device has few combinations.
        self._reasons: list[str | None] = [None]
        self._throttle_reasons = array.array("H")
        self._is_resumed, self._shift_j = False, 0.0

    def resume(self) -> None:
        """Take what follows for the readings of the run's next process.

        Its energy goes on from the last reading: what was used in between is not the run's.
        """
        self._is_resumed = True

    def add(self, elapsed_s: float, values: Mapping[str, Any]) -> None:
        """Add a sample; readings that are impossible are counted, and left out."""
        if wrong := impossible(values, self.device_kind):
            for name in filter(_SUMMARIZED.__contains__, wrong):
                self.left_out[name] = self.left_out.get(name, (0, 0.0))[0] + 1, values[name]
            values = {name: value for name, value in values.items() if name not in wrong}
        for name in _SUMMARIZED:
            if COLUMNS[name] == ("greatest",):
                if values.get(name, math.nan) > self.greatest.get(name, -math.inf):
                    self.greatest[name] = values[name]
            elif name in values or name in self._columns:
                if name not in self._columns:
                    self._columns[name] = array.array("d", [math.nan]) * len(self)
                self._columns[name].append(values.get(name, math.nan))
        self._elapsed_s.append(elapsed_s)
        reasons = values.get("throttle_reasons")
        if reasons not in self._reasons:
            self._reasons.append(reasons)
        self._throttle_reasons.append(self._reasons.index(reasons))
        if energy_j := self._columns.get("energy_j"):
            if self._is_resumed and math.isfinite(energy_j[-1]):
                before_j = self.known("energy_j")[1][:-1]
                self._shift_j = float(before_j[-1] - energy_j[-1]) if len(before_j) else 0.0
                self._is_resumed = False
            energy_j[-1] += self._shift_j

    def __len__(self) -> int:
        return len(self._elapsed_s)

    def known(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the times at which a column has a value, and the values."""
        if name not in self._columns:
            return np.empty(0), np.empty(0)
        values = np.array(self._columns[name], np.float64)
        is_known = np.isfinite(values)
        return np.array(self._elapsed_s)[is_known], values[is_known]

    def throttle_reasons(self, windows: Sequence["Window"]) -> collections.Counter[tuple[str, ...]]:
        """Return how many samples inside the windows have which reasons."""
        inside = _inside(np.array(self._elapsed_s), windows)
        counts = collections.Counter(itertools.compress(self._throttle_reasons, inside))
        del counts[0]
        return collections.Counter(
            {
                tuple(filter(None, (self._reasons[n] or "").split("|"))): count
                for n, count in counts.items()
            }
        )


def read_series(
    path: pathlib.Path,
    device_kind: str | None = None,
    errors: collections.Counter[str] | None = None,
) -> dict[str, Series]:
    """Return what earlier processes of a resumed run wrote to telemetry.csv.

    Lines that are damaged, or whose time has no time zone, are left out, and counted in `errors`.
    So is what follows a line that is too long. What is added to a series is the next process's.
    """
    errors = collections.Counter() if errors is None else errors
    damaged = f"left out: a line of {path.name} that is damaged or has no time zone"
    series: dict[str, Series] = {}
    began_s: float | None = None
    try:
        with open_regular(
            path, newline="", encoding="utf-8", errors="replace", most_bytes=math.inf
        ) as file:
            for row in csv.DictReader(line.replace("\0", "") for line in read_lines(file)):
                try:
                    elapsed_s = float(row["elapsed_s"])
                    values: dict[str, Any] = {
                        name: float(row[name]) for name in _READ if row.get(name)
                    }
                    time_s = seconds_since_1970(row["time"])
                    device, kind = row["device"], row["kind"]
                    if time_s is None or not math.isfinite(elapsed_s):
                        raise ValueError(elapsed_s)
                except (KeyError, TypeError, ValueError, OverflowError):
                    errors[damaged] += 1
                    continue
                if kind in ("gpu", "mig"):
                    values["throttle_reasons"] = row.get("throttle_reasons") or ""
                new_began_s = time_s - elapsed_s
                if began_s is not None and abs(new_began_s - began_s) > _JUMP_S:
                    for one in series.values():
                        one.resume()
                began_s = new_began_s
                series.setdefault(device, Series(kind, device_kind)).add(elapsed_s, values)
    except (OSError, csv.Error) as error:
        errors[f"{path.name} is read only in part: {getattr(error, 'strerror', error)}"] += 1
    for one in series.values():
        one.resume()
    return series


def _inside(elapsed_s: np.ndarray, windows: Sequence[Window]) -> np.ndarray:
    """Return a mask: which times are inside one of the windows, in order; all without windows."""
    if not windows:
        return np.ones(len(elapsed_s), bool)
    starts_s = np.array([window.start_s for window in windows])
    ends_s = np.array([window.end_s for window in windows])
    window = np.searchsorted(starts_s, elapsed_s, side="right") - 1
    return (window >= 0) & (elapsed_s <= ends_s[window])


def summarize(
    series: Mapping[str, Series],
    windows: Sequence[Window],
    interval_s: float,
    errors: Mapping[str, int],
) -> tuple[dict[str, Any], list[str]]:
    """Return the summary's `telemetry`, and warnings.

    Windows, in order, are what the mode measured. Without any the statistics are over the whole
    run, and there is no energy per image. Errors are {message: how often}.
    """
    devices = {device: _describe(one, windows) for device, one in series.items()}
    busy = _host_is_busy(devices)
    energy, unused_counters = _energy(series, windows, interval_s)
    telemetry = {
        "interval_s": interval_s,
        "over": "the measured windows" if windows else "the run",
        "measured_s": sum(window.end_s - window.start_s for window in windows) or None,
        "measured_images": sum(window.images for window in windows) or None,
        # By which everything here can be computed again from telemetry.csv.
        "windows": [list(window) for window in windows],
        "host_busy": busy,
        "devices": devices,
        **energy,
        "errors": dict(errors),
    }
    warnings = [
        *(line for device, one in series.items() for line in _slowed(device, one, windows)),
        *_imbalance(devices),
        *(line for device, one in series.items() for line in _left_out(device, one)),
        *unused_counters,
        *([OTHER_WORK.format(**devices["host"])] if busy else []),
        *(f"telemetry: {message} ({count} times)" for message, count in errors.items()),
    ]
    return telemetry, warnings


def _describe(series: Series, windows: Sequence[Window]) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": series.kind, "samples": len(series)}
    for name in _SUMMARIZED:
        if name in series.greatest:
            described[f"{name}_max"] = float(series.greatest[name])
        elapsed_s, values = series.known(name)
        inside = _inside(elapsed_s, windows)
        # The host's loads are means since the last reading: of a run that is shorter than the
        # interval, the last one covers all windows.
        if inside.any() or series.kind != "host":
            values = values[inside]
        for kind in COLUMNS[name] if len(values) else ():
            if kind in _STATISTICS:
                described[f"{name}_{kind}"] = float(_STATISTICS[kind](values))
    if samples := series.throttle_reasons(windows):
        counts: collections.Counter[str] = collections.Counter()
        for reasons, count in samples.items():
            counts.update(dict.fromkeys(reasons, count))
        described["throttle_reasons"] = {
            reason: count / samples.total() for reason, count in sorted(counts.items())
        }
    return described


def _host_is_busy(devices: Mapping[str, Mapping[str, Any]]) -> bool | None:
    """Return whether other work held the processor that was measured; None if nobody knows."""
    host = devices.get("host", {})
    if "other_cpu_percent_mean" not in host:
        return None
    other_percent, busy_percent = host["other_cpu_percent_mean"], host["cpu_percent_mean"]
    return is_disturbed(other_percent, busy_percent, len(devices) == 1)


class _Meter(NamedTuple):
    """One board's energy in the windows, and how well its samples tell it."""

    energy_j: float
    method: str
    longest_gap_s: float  # of the windows' time, between two samples
    covered: float  # fraction of the windows' time in gaps that a few lost samples explain
    long_enough: bool


def _energy(
    series: Mapping[str, Series], windows: Sequence[Window], interval_s: float
) -> tuple[dict[str, Any], list[str]]:
    """Return the energy of the windows, of all GPUs, and the warnings of counters that are wrong.

    No joules if one GPU's samples are too few.
    """
    boards = {device: one for device, one in series.items() if one.kind in ("gpu", "mig")}
    meters, warnings = {}, []
    for device, one in boards.items():
        meter, doubt = _meter(one, windows, interval_s)
        meters |= {device: meter} if meter else {}
        if doubt:
            instead = "by its power readings" if meter else "unknown"
            warnings.append(
                f"{device}'s energy counter is not used: it {doubt}; the energy is {instead}"
            )
    names = ("energy_covers", "energy_window_s", "energy_window_long_enough")
    gaps = ("energy_longest_gap_s", "energy_covered")
    joules = ("energy_j", "joules_per_image", "images_per_kwh")
    if not meters or len(meters) < len(boards):
        return dict.fromkeys((*names, *gaps, *joules)), warnings
    covers = ", ".join(f"{device} by {one.method}" for device, one in meters.items())
    sliced = any(one.kind == "mig" for one in boards.values())
    energy = dict.fromkeys(joules) | {
        "energy_covers": (
            f"GPU boards: {covers}; not the host"
            + ("; whole boards, of which this run had a slice (MIG)" if sliced else "")
        ),
        "energy_window_s": sum(window.end_s - window.start_s for window in windows),
        "energy_longest_gap_s": max(one.longest_gap_s for one in meters.values()),
        "energy_covered": min(one.covered for one in meters.values()),
        "energy_window_long_enough": all(one.long_enough for one in meters.values()),
    }
    if energy["energy_window_long_enough"]:
        energy["energy_j"] = energy_j = sum(one.energy_j for one in meters.values())
        images = sum(window.images for window in windows)
        if images and energy_j and not sliced:  # a board's energy is not known by slice
            energy["joules_per_image"] = energy_j / images
            energy["images_per_kwh"] = J_PER_KWH * images / energy_j
    return energy, warnings


def _meter(
    series: Series, windows: Sequence[Window], interval_s: float
) -> tuple[_Meter | None, str | None]:
    """Return one board's energy in the windows, and why its counter is not used.

    The energy is None if its readings do not tell.
    """
    edges_s = np.array([(window.start_s, window.end_s) for window in windows])
    if not windows or not (measured_s := float((edges_s[:, 1] - edges_s[:, 0]).sum())):
        return None, None
    elapsed_s, power_w = series.known("power_w")
    steps_j = np.diff(elapsed_s) * (power_w[1:] + power_w[:-1]) / 2
    energy_j = np.concatenate([[0.0], np.cumsum(steps_j)])
    method = f"NVML's power reading every {interval_s:g} s"
    by_power = _measure(elapsed_s, energy_j, edges_s, interval_s, method, _POWER_MEAN_S / 2)
    # Power cannot be interpolated across a gap; the counter can.
    if by_power and by_power.longest_gap_s > _LOST_SAMPLES * interval_s:
        by_power = None
    elapsed_s, energy_j = series.known("energy_j")
    method = "NVML's total energy counter"
    by_counter = _measure(elapsed_s, energy_j, edges_s, interval_s, method, 0.0)
    if by_counter is None:
        return by_power, None
    if (np.diff(energy_j) < 0).any():
        return by_power, "went backwards"
    least_s = max(_STILL_S, _LOST_SAMPLES * interval_s)
    if (still_s := _longest_still_s(_in_windows(elapsed_s, edges_s), energy_j)) > least_s:
        return by_power, f"stood still for {still_s:.0f} s"
    counted_w = by_counter.energy_j / measured_s
    least_w, most_w = bounds("power_w", series.device_kind)
    if by_counter.long_enough and not least_w <= counted_w <= most_w:
        return by_power, f"counted {counted_w:.4g} W"
    if by_power and by_power.long_enough:
        powers_w = by_power.energy_j / measured_s
        if not powers_w / _APART <= counted_w <= powers_w * _APART:
            return by_power, f"counted {counted_w:.4g} W, the power readings {powers_w:.4g} W"
    return by_counter, None


def _in_windows(elapsed_s: np.ndarray, edges_s: np.ndarray) -> np.ndarray:
    """Return how many seconds of the windows are before each time."""
    lengths_s = edges_s[:, 1] - edges_s[:, 0]
    ends_s = np.cumsum(lengths_s)
    before_s = np.stack([ends_s - lengths_s, ends_s], axis=1)
    return np.interp(elapsed_s, edges_s.ravel(), before_s.ravel())


def _longest_still_s(elapsed_s: np.ndarray, energy_j: np.ndarray) -> float:
    """Return the longest time in which a counter did not move."""
    moved = np.flatnonzero(np.diff(energy_j, prepend=np.nan, append=np.nan) != 0)
    return float((elapsed_s[moved[1:] - 1] - elapsed_s[moved[:-1]]).max())


def _measure(
    elapsed_s: np.ndarray,
    energy_j: np.ndarray,
    edges_s: np.ndarray,
    interval_s: float,
    method: str,
    blur_s: float,
) -> _Meter | None:
    """Return the energy of the windows by that used up to each sample, if samples surround them."""
    if len(elapsed_s) < 2 or elapsed_s[0] > edges_s.min() or elapsed_s[-1] < edges_s.max():
        return None
    measured_s = float((edges_s[:, 1] - edges_s[:, 0]).sum())
    between_s = np.diff(_in_windows(elapsed_s, edges_s))
    at_edges_j = np.interp(edges_s, elapsed_s, energy_j)
    after = np.searchsorted(elapsed_s, edges_s).clip(1, len(elapsed_s) - 1)
    gaps_s = np.minimum(abs(elapsed_s[after] - edges_s), abs(edges_s - elapsed_s[after - 1]))
    is_long = measured_s >= _LEAST_INTERVALS * interval_s
    is_exact = float((gaps_s + blur_s).sum()) <= _LONGEST_GAPS * measured_s
    return _Meter(
        float((at_edges_j[:, 1] - at_edges_j[:, 0]).sum()),
        method,
        float(between_s.max()),
        float(between_s[between_s <= _LOST_SAMPLES * interval_s].sum() / measured_s),
        is_long and is_exact,
    )


def _slowed(device: str, series: Series, windows: Sequence[Window]) -> Iterator[str]:
    """Yield that a device was throttled, and that its clock fell."""
    samples = series.throttle_reasons(windows)
    seen = {reasons: count for reasons, count in samples.items() if _WARNED & {*reasons}}
    if seen:
        fraction = sum(seen.values()) / samples.total()
        names = ", ".join(sorted(_WARNED & {name for reasons in seen for name in reasons}))
        yield f"{device} was throttled in {fraction:.0%} of {samples.total()} samples: {names}"
    elapsed_s, clocks_mhz = series.known("sm_clock_mhz")
    clocks_mhz = clocks_mhz[_inside(elapsed_s, windows)]
    change = drift(clocks_mhz.tolist())
    if change is not None and change < -_CLOCK_DROP:
        half = len(clocks_mhz) // 2
        first, second = statistics.median(clocks_mhz[:half]), statistics.median(clocks_mhz[-half:])
        yield (
            f"{device}'s SM clock fell by {-change:.1%} from the first half to the second "
            f"({first:.0f} to {second:.0f} MHz)"
        )


def _left_out(device: str, series: Series) -> Iterator[str]:
    """Yield which readings no sensor can give, and how many."""
    if series.left_out:
        listed = ", ".join(
            f"{count} of {name} (such as {value:.4g})"
            for name, (count, value) in series.left_out.items()
        )
        yield f"{device}: impossible readings were left out of {len(series)} samples: {listed}"


def _imbalance(devices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    means = {device: described.get("load_percent_mean") for device, described in devices.items()}
    loads = {device: load for device, load in means.items() if load is not None}
    if loads and max(loads.values()) - min(loads.values()) > _IMBALANCE:
        listed = ", ".join(f"{device} {load:.0f} %" for device, load in loads.items())
        yield f"the devices were not equally loaded: {listed} (means)"
