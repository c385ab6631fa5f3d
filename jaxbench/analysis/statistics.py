"""Statistics of several measurements of one metric, and medians with their intervals."""

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.metrics import plain
from jaxbench.schema import value_of

# Of fewer, order statistics do not hold the true median with 95 %.
FEWEST_FOR_INTERVAL = 6
# Of fewer, the autocorrelation is all noise.
_FEWEST_FOR_CORRELATION = 8
# Work was held up if it took this many times the median of equal work, and this many seconds
# longer. With fewer samples there is no median to speak of.
_HELD_UP, _HELD_UP_S, _FEWEST_FOR_MEDIAN = 2.0, 0.5, 3
# A warning names no more of them.
_MOST_NAMED = 5
# Fewer runs are dots without a bar.
FEWEST_RUNS = 3


def autocorrelation(samples: Sequence[float]) -> float | None:
    """Return the correlation of each sample with the next one, None for fewer than eight.

    The plain estimate is too low by (1 + 4 r) / n; that is corrected.

    Args:
      samples: in the order in which they were taken.
    """
    count = len(samples)
    if count < _FEWEST_FOR_CORRELATION:
        return None
    mean = statistics.fmean(samples)
    off = [sample - mean for sample in samples]
    variance = sum(map(operator.mul, off, off))
    if not variance:
        return None
    plain = sum(map(operator.mul, off[1:], off)) / variance
    return max(-1.0, min(1.0, (count * plain + 1) / (count - 4)))


def effective_size(samples: Sequence[float]) -> float:
    """Return how many independent samples say as much: n (1 - r) / (1 + r), at least one."""
    r = max(0.0, autocorrelation(samples) or 0.0)
    return max(1.0, len(samples) * (1 - r) / (1 + r))


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the order statistics between which the true one lies with 95 %.

    Nothing is assumed of the distribution. As many samples lie below the interval as above it.
    Samples that resemble the ones before them widen it, see `effective_size`; of fewer than eight
    nobody can tell, see `dependent`. With fewer than `FEWEST_FOR_INTERVAL` samples the interval is
    their whole range, and 95 % is not reached.

    Args:
      samples: in the order in which they were taken.
    """
    ordered = sorted(samples)
    count = len(ordered)
    # With 0.98 independent samples reach 95 % at every count from 6 to 2,000 (binomial, exact).
    margin = 0.98 * count / math.sqrt(effective_size(samples))
    outside = max(0, math.floor((count - 1) / 2 - margin))
    return statistics.median(ordered), ordered[outside], ordered[count - 1 - outside]


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return n, median, means, sample deviation and extremes; the geometric mean's 95 % interval.

    Infinite values count: half of them make the median infinite, one of them the means; there is no
    deviation and no interval then, nor of a single value.
    """
    finite = all(map(math.isfinite, values))
    geometric_mean, low, high = mean_interval(values) if min(values) > 0 else (None, None, None)
    return {
        "n": len(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "geometric_mean": geometric_mean,
        "geometric_mean_low": low,
        "geometric_mean_high": high,
        "std": statistics.stdev(values) if finite and len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }


def mean_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of values above 0 and the ends of its 95 % interval.

    The interval is Student's, of the logarithms, so that it never reaches 0. A single value, or an
    infinite one, leaves no interval.
    """
    mean = math.exp(statistics.fmean(map(math.log, values)))
    if len(values) < 2 or not math.isfinite(mean):
        return mean, None, None
    # For those alone who need it: its import takes long.
    from scipy.special import stdtrit

    error = statistics.stdev(map(math.log, values)) / math.sqrt(len(values))
    factor = math.exp(min(float(stdtrit(len(values) - 1, 0.975)) * error, 700.0))
    return mean, mean / factor, mean * factor


def drift(samples: Sequence[float]) -> float | None:
    """Return by what share the second half's median differs from the first's: 0.03 is 3 % more.

    0 if the two halves' intervals overlap: noise is no drift. None for fewer than eight
    samples, of which noise alone would too often sort the halves.
    """
    half = len(samples) // 2
    if half < 4:
        return None
    first, first_low, first_high = median_interval(samples[:half])
    second, second_low, second_high = median_interval(samples[-half:])
    if second_low <= first_high and first_low <= second_high:
        return 0.0
    return second / first - 1


def change_of_median(first: Sequence[float], last: Sequence[float]) -> tuple[float, float, float]:
    """Return by what share the median of later samples differs from earlier ones', with its ends.

    The ends are those of both intervals, the farthest apart: a careful interval, with
    `FEWEST_FOR_INTERVAL` samples or more on both sides.
    """
    before, before_low, before_high = median_interval(first)
    after, after_low, after_high = median_interval(last)
    return after / before - 1, after_low / before_high - 1, after_high / before_low - 1


def dependent(name: str, samples: Sequence[float]) -> list[str]:
    """Return the warning that samples are not independent, or too few to tell.

    Independent samples get the first one in 5 % of all cases. The estimate's standard deviation is
    that of the plain one, (n - 2) / (n sqrt(n - 1)) (Moran 1948), times its correction n / (n - 4);
    5 % of normal samples lie 1.68 of it above 0 (simulated, n from 8 to 50).

    Args:
      name: what was measured, in the plural.
      samples: in the order in which they were taken.
    """
    count, r = len(samples), autocorrelation(samples)
    if FEWEST_FOR_INTERVAL <= count < _FEWEST_FOR_CORRELATION:
        return [f"{name} are too few ({count}) to check that they are independent"]
    if r is None or r <= 1.68 * (count - 2) / ((count - 4) * math.sqrt(count - 1)):
        return []
    return [f"{name} are not independent (autocorrelation {r:.2f}): the interval is widened"]


def slowed_down(name: str, times: Sequence[float]) -> list[str]:
    """Return the warning that equal work took longer and longer, if it did: by more than 2 %.

    Args:
      name: what was measured, in the plural.
      times: of equal work, one after another.
    """
    change = drift(times)
    if change is None or change <= 0.02:
        return []
    return [f"{name} of the second half took {change:.1%} longer than those of the first"]


def held_up(name: str, times: Mapping[int, float]) -> list[str]:
    """Return the warning that some of equal work took far longer than the rest, if it did.

    Args:
      name: what was measured, in the singular.
      times: seconds of equal work by its number.
    """
    if len(times) < _FEWEST_FOR_MEDIAN:
        return []
    median_s = statistics.median(times.values())
    longest_s = max(_HELD_UP * median_s, median_s + _HELD_UP_S)
    longer = {number: time_s for number, time_s in times.items() if time_s > longest_s}
    if not longer:
        return []
    named = [f"{number} ({time_s:.2f} s)" for number, time_s in list(longer.items())[:_MOST_NAMED]]
    more = f" and {len(longer) - len(named)} more" if len(longer) > len(named) else ""
    times_s = ", ".join(named) + more
    return [f"{name} {times_s} took more than twice the median of {median_s:.2f} s"]


class Estimate(NamedTuple):
    """A median with the ends of its 95 % interval; what is unknown is None.

    Attributes:
      n: samples. Fewer than `FEWEST_FOR_INTERVAL` have no interval.
      range: the least and the greatest of samples that are several, but too few for an interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    range: tuple[float, float] | None = None

    @property
    def span(self) -> tuple[float | None, float | None, float | None]:
        return self[:3]

    @property
    def ends_in_words(self) -> str:
        """The interval, or the range; empty without either."""
        name, ends = ("range", self.range) if self.range else ("95 % interval", self[1:3])
        return "" if None in ends else f"{name} {' to '.join(map(plain, ends))}"

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Return the estimate of a monotonic function of the figure."""
        value, *ends = (x and function(x) for x in self.span)
        low, high = ends if None in ends else sorted(ends)
        return Estimate(value, low, high, self.n)


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median of samples and its interval; none if a sample is infinite."""
    if not samples:
        return Estimate()
    if math.inf in samples:
        return Estimate(statistics.median(samples), n=len(samples))
    median, low, high = median_interval(samples)
    if len(samples) >= FEWEST_FOR_INTERVAL:
        return Estimate(median, low, high, len(samples))
    return Estimate(median, n=len(samples), range=(low, high) if len(samples) > 1 else None)


def of_windows(record: Any, name: str) -> Estimate:
    """Return a metric that a record has with its interval, of as many windows as it lists."""
    n = len(value_of(record, "windows_s") or value_of(record, "windows_images_per_s") or ())
    enough = n >= FEWEST_FOR_INTERVAL
    low, high = (getattr(record, f"{name}_{end}") if enough else None for end in ("low", "high"))
    return Estimate(getattr(record, name), low, high, n or None)


def of_rounds(record: Any, name: str) -> Estimate:
    """Return a time of a convolution's record, with the interval of its rounds."""
    time_s = getattr(record, name)
    if time_s is None:
        return Estimate()
    return estimate(record.samples.get(name, ()))._replace(value=time_s)


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
