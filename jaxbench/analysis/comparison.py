"""The ratio of two rates with its interval, and when that is a verdict.

The interval of one run contains what changes within the run. It does not contain what changes
between runs: the placement of arrays, the processor's clock, other users. Only repeats show that.
So the interval of a ratio is Welch's, from the repeats of both sides, and a ratio is no verdict

* with one run on a side: how much its other runs would differ is unknown;
* of runs on one host that were not interleaved: the drift of the host would be the difference.

`benchmarks/verdicts.py` simulates how often a verdict is wrong, and how often one is missed.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# A rate and the ends of its 95 % interval.
Interval = tuple[float, float, float]

_LEVEL, _NORMAL_95 = 0.95, 1.96


class Ratio(NamedTuple):
    """A ratio of rates, and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """The verdict, if `design_doubts` has no objection."""
        if self.low <= 1 <= self.high:
            return "no significant difference"
        return "faster" if self.low > 1 else "slower"


def ratio(first: Sequence[Interval], second: Sequence[Interval], num_verdicts: int = 1) -> Ratio:
    """Return the second side's rate over the first's: the ratio of the geometric means.

    The interval is Welch's, on logarithms, which does not assume that both sides spread equally.
    It has the degrees of freedom of the side with fewer runs. Those of Welch and Satterthwaite are
    too many for few runs: with 2 against 10, up to 12 % of the verdicts on equal sides are wrong.
    The interval is never narrower than the runs' own intervals require. With one run on a side it
    is what the runs' own intervals leave open.

    Args:
      first, second: the rates of the repeats of each side, one or more.
      num_verdicts: how many ratios are judged together. Their intervals hold together at 95 %
        (Bonferroni).
    """
    logs = [[math.log(rate) for rate, _, _ in side] for side in (first, second)]
    means = [statistics.fmean(side) for side in logs]
    value = math.exp(means[1] - means[0])
    half_widths = [
        statistics.fmean(math.log(high / low) / 2 for _, low, high in side)
        for side in (first, second)
    ]
    freedom = min(map(len, logs)) - 1
    if not freedom:
        ends = [
            [statistics.geometric_mean(interval[end] for interval in side) for end in (1, 2)]
            for side in (first, second)
        ]
        (base_low, base_high), (low, high) = ends
        return Ratio(value, low / base_high, high / base_low)
    # A report is made without SciPy if nothing was repeated.
    from scipy.special import ndtri, stdtrit

    quantile = 1 - (1 - _LEVEL) / 2 / num_verdicts
    between = sum(
        math.fsum((x - mean) ** 2 for x in side) / (len(side) - 1) / len(side)
        for side, mean in zip(logs, means, strict=True)
    )
    within = sum(
        half_width**2 / len(side) for half_width, side in zip(half_widths, logs, strict=True)
    )
    margin = max(
        float(stdtrit(freedom, quantile)) * math.sqrt(between),
        float(ndtri(quantile)) / _NORMAL_95 * math.sqrt(within),
    )
    return Ratio(value, value * math.exp(-margin), value * math.exp(margin))


def design_doubts(
    first_starts: Sequence[str | None], second_starts: Sequence[str | None], same_host: bool
) -> list[str]:
    """Return why the runs allow no verdict, whatever their rates.

    Args:
      first_starts, second_starts: when the runs of each side began, see `are_interleaved`.
      same_host: whether both sides ran on one host.
    """
    counts = len(first_starts), len(second_starts)
    if single := [side for side, count in zip("AB", counts, strict=True) if count < 2]:
        return [f"one run of {' and of '.join(single)}: what changes between runs is unknown"]
    is_sound = not same_host or are_interleaved(first_starts, second_starts)
    return [] if is_sound else ["not interleaved"]


def are_interleaved(
    first_starts: Sequence[str | None], second_starts: Sequence[str | None]
) -> bool:
    """Return whether both sides were equally far at any time, as in A B A B or A B B A.

    The fractions of A's and of B's runs that have begun never differ by more than one run of the
    side with fewer runs. Then steady drift moves both means by nearly as much, and adds more to the
    spread than to the difference. A A B B and A A A B A are not interleaved.

    Args:
      first_starts, second_starts: when the runs of each side began, in a form that sorts; None if
        that is unknown.
    """
    counts, starts = (len(first_starts), len(second_starts)), (*first_starts, *second_starts)
    if min(counts) < 2 or None in starts:
        return False
    return all(
        abs(
            sum(start <= time for start in first_starts) * counts[1]
            - sum(start <= time for start in second_starts) * counts[0]
        )
        <= max(counts)
        for time in starts
    )
