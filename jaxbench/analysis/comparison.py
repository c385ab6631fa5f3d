"""The ratio of two rates, with the interval of what changes between runs, and what it says.

A run's own interval holds what changes within it, not what changes between runs: where its arrays
lie, what the processor's clock does, who else is on the machine. Only repeats show that. So a ratio
of single runs has the interval that their own intervals allow, and no verdict.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# A rate and the ends of its 95 % interval.
Interval = tuple[float, float, float]


class Ratio(NamedTuple):
    """A ratio of rates, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    # Whether the interval holds what changes between runs.
    repeated: bool

    @property
    def verdict(self) -> str:
        """What the ratio says, where nothing else speaks against it."""
        if not self.repeated:
            return "inconclusive: one run of each; repeats show what changes between runs"
        if self.low <= 1 <= self.high:
            return "no significant difference"
        return "faster" if self.low > 1 else "slower"


def ratio(first: Sequence[Interval], second: Sequence[Interval]) -> Ratio:
    """Return the second side's rate over the first's.

    With repeats of at least one side it is that of the geometric means, and the interval is
    Student's, from the deviation of the repeats' logarithms, pooled over both sides. It is never
    narrower than what the runs' own intervals leave open.

    Args:
      first, second: the rates of the repeats of each side, one or more.
    """
    sides = [[math.log(rate) for rate, _, _ in side] for side in (first, second)]
    value = math.exp(statistics.fmean(sides[1]) - statistics.fmean(sides[0]))
    freedom = len(first) + len(second) - 2
    if not freedom:
        [(_, low, high)], [(_, base_low, base_high)] = second, first
        return Ratio(value, low / base_high, high / base_low, False)
    # A report is made without SciPy where nothing was repeated.
    from scipy.special import stdtrit

    squares = sum(math.fsum((x - statistics.fmean(own)) ** 2 for x in own) for own in sides)
    error = math.sqrt(squares / freedom * (1 / len(first) + 1 / len(second)))
    # Of the means of independent runs, as standard errors in logarithms.
    within = math.hypot(*(_half_width(side) / math.sqrt(len(side)) for side in (first, second)))
    margin = max(float(stdtrit(freedom, 0.975)) * error, within)
    return Ratio(value, value * math.exp(-margin), value * math.exp(margin), True)


def _half_width(side: Sequence[Interval]) -> float:
    """Return half the width of a run's interval, in logarithms, in the mean over repeats."""
    return statistics.fmean(math.log(high / low) / 2 for _, low, high in side)
