"""Statistics of samples: medians and means with their intervals, drift, and what held work up."""

import math
import operator
import statistics
from collections.abc import Mapping, Sequence

# Of fewer, order statistics do not hold the true median with 95 %.
FEWEST_FOR_INTERVAL = 6
# Of fewer, the autocorrelation is all noise.
_FEWEST_FOR_CORRELATION = 8
# Work was held up if it took this many times the median of equal work, and this many seconds
# longer. With fewer samples there is no median to speak of.
_HELD_UP, _HELD_UP_S, _FEWEST_FOR_MEDIAN = 2.0, 0.5, 3
# A warning names no more of them.
_MOST_NAMED = 5


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
    """
    change = drift(times)
    if change is None or change <= 0.02:
        return []
    return [f"{name} of the second half took {change:.1%} longer than those of the first"]


def held_up(name: str, times: Mapping[int, float]) -> list[str]:
    """Return the warning that some of equal work took far longer than the rest, if it did.

    Args:
      name: what was measured, in the singular.
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
