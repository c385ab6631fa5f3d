"""What several measurements of one thing say together."""

import math
import statistics
from collections.abc import Sequence


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and the order statistics between which the true one lies with 95 %.

    Nothing is assumed of the distribution. With fewer than six samples the interval is their
    whole range, and 95 % is not reached.
    """
    ordered = sorted(samples)
    count = len(ordered)
    margin = math.ceil(0.98 * math.sqrt(count))
    low = ordered[max(0, count // 2 - margin)]
    high = ordered[min(count - 1, count // 2 + margin)]
    return statistics.median(ordered), low, high
