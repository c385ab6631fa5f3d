"""Values out of records that anybody may have written, and their medians with intervals."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, mean_interval, median_interval

# Fewer runs are dots without a bar.
FEWEST_RUNS = 3
_LARGEST = 1e30


def find(record: Any, *path: str) -> Any:
    """Return what a path of keys and attributes leads to, None where it ends early."""
    for name in path:
        if isinstance(record, Mapping):
            record = record.get(name)
        elif record is None or isinstance(record, (str, int, float, list)):
            return None
        else:
            record = getattr(record, name)
    return record


def number(record: Any, *path: str) -> float | None:
    """Return a finite number out of nested mappings; None for whatever else is there."""
    value = find(record, *path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # No figure of a run is as large; whole numbers that no float holds are larger still.
    return value if -_LARGEST < value < _LARGEST else None


def text(record: Any, *path: str) -> str | None:
    """Return a piece of text out of nested mappings; None for whatever else is there."""
    value = find(record, *path)
    return value if isinstance(value, str) and value else None


def mapping(record: Any, *path: str) -> dict[str, Any]:
    """Return a mapping out of nested mappings; an empty one for whatever else is there."""
    value = find(record, *path)
    return value if isinstance(value, dict) else {}


def items(record: Any, *path: str) -> list[Any]:
    """Return a list out of nested mappings; an empty one for whatever else is there."""
    value = find(record, *path)
    return value if isinstance(value, list) else []


def known(values: Any) -> list[Any]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def total(record: Any, *names: str) -> float | None:
    """Return the sum of numbers of a record, None where one of them is not known."""
    values = [number(record, name) for name in names]
    return None if None in values else sum(values)


class Estimate(NamedTuple):
    """A median with the ends of its 95 % interval; what is unknown is None.

    Attributes:
      n: samples. Fewer than `FEWEST_FOR_INTERVAL` have no interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    span = property(lambda self: self[:3])

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Return the estimate of a monotonic function of the figure."""
        value, *ends = (x and function(x) for x in self.span)
        low, high = ends if None in ends else sorted(ends)
        return Estimate(value, low, high, self.n)


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median of samples and its interval."""
    if not samples:
        return Estimate()
    median, low, high = median_interval(samples)
    ends = (low, high) if len(samples) >= FEWEST_FOR_INTERVAL else (None, None)
    return Estimate(median, *ends, len(samples))


def of_windows(record: Mapping[str, Any], name: str) -> Estimate:
    """Return a figure that a record has with its interval, of as many windows as it lists."""
    n = len(items(record, "windows_s") or items(record, "windows_images_per_s"))
    enough = n >= FEWEST_FOR_INTERVAL
    ends = (number(record, f"{name}_{end}") if enough else None for end in ("low", "high"))
    return Estimate(number(record, name), *ends, n or None)


def of_rounds(record: Mapping[str, Any], name: str) -> Estimate:
    """Return a time of a convolution's record, with the interval of its rounds."""
    time_s = number(record, name)
    if time_s is None:
        return Estimate()
    rounds = estimate(known(number(sample) for sample in items(record, "samples", name)))
    return rounds._replace(value=time_s)


def over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the only estimate, or the geometric mean of several runs; n is then that of runs.

    From `FEWEST_RUNS` on it has the interval that a verdict rests on: Student's over the runs, of
    their logarithms, never narrower than what their own intervals leave open.
    """
    if len(estimates) == 1:
        return estimates[0]
    values = [one.value for one in estimates]
    if min(values) <= 0:
        return Estimate(statistics.median(values), n=len(values))
    mean, *ends = mean_interval(values)
    if len(values) < FEWEST_RUNS or None in ends:
        return Estimate(mean, n=len(values))
    widths = [math.log(one.high / one.low) for one in estimates if 0 < (one.low or 0) <= one.high]
    within = math.exp(sum(widths) / 2 / len(values) ** 1.5)
    return Estimate(mean, min(ends[0], mean / within), max(ends[1], mean * within), len(values))


def bar_words(of: Estimate, runs: int) -> str:
    """Return what the bar at a point is, of the only estimate or of `over_runs`."""
    counted = f"{runs} runs" if runs > 1 else f"n = {of.n or 1}"
    return f"{counted}, {'no' if None in (of.low, of.high) else '95 %'} interval"


def with_range(values: Sequence[float]) -> Estimate:
    """Return the median of values, from the least to the most."""
    return Estimate(statistics.median(values), min(values), max(values))
