"""Statistics of several measurements of one figure."""

import math
import statistics
from collections.abc import Sequence

# Of fewer, order statistics do not hold the true median with 95 %.
FEWEST_FOR_INTERVAL = 6


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the order statistics between which the true one lies with 95 %.

    Nothing is assumed of the distribution. With fewer than `FEWEST_FOR_INTERVAL` samples the
    interval is their whole range, and 95 % is not reached.
    """
    ordered = sorted(samples)
    count = len(ordered)
    margin = math.ceil(0.98 * math.sqrt(count))
    low = ordered[max(0, count // 2 - margin)]
    high = ordered[min(count - 1, count // 2 + margin)]
    return statistics.median(ordered), low, high


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return n, median, mean, sample deviation and extremes.

    Infinite values count: half of them make the median infinite, one of them the mean; there is no
    deviation then, nor of a single value.
    """
    finite = all(map(math.isfinite, values))
    return {
        "n": len(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if finite and len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }


def drift(samples: Sequence[float]) -> float | None:
    """Return by what share the second half's median differs from the first's: 0.03 is 3 % more.

    0 where the two halves' intervals overlap: noise is no drift. None for fewer than eight
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


def slowed_down(what: str, times: Sequence[float]) -> list[str]:
    """Return the warning that equal work took longer and longer, if it did: by more than 2 %.

    Args:
      what: was measured, in the plural.
      times: of equal work, one after another.
    """
    change = drift(times)
    if change is None or change <= 0.02:
        return []
    return [f"{what} of the second half took {change:.1%} longer than those of the first"]
