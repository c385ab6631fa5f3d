"""Medians with their intervals: of samples, of a record, of several runs."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, mean_interval, median_interval

# Fewer runs are dots without a bar.
FEWEST_RUNS = 3


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


def of_windows(record: Any, name: str) -> Estimate:
    """Return a metric that a record has with its interval, of as many windows as it lists."""
    n = len(record.windows_s or record.windows_images_per_s or ())
    enough = n >= FEWEST_FOR_INTERVAL
    ends = (getattr(record, f"{name}_{end}") if enough else None for end in ("low", "high"))
    return Estimate(getattr(record, name), *ends, n or None)


def of_rounds(record: Any, name: str) -> Estimate:
    """Return a time of a convolution's record, with the interval of its rounds."""
    time_s = getattr(record, name)
    return Estimate() if time_s is None else estimate(record.samples[name])._replace(value=time_s)


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
