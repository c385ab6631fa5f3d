"""Rank machines by what an image costs there, if the rates are known with intervals."""

import functools
from collections.abc import Sequence

from jaxbench.analysis.pricing import usd
from jaxbench.analysis.statistics import Estimate
from jaxbench.metrics import UNKNOWN


def costs_to_expect(
    rates: Sequence[Estimate], usd_per_hour: Sequence[float | None]
) -> list[Estimate]:
    """Return the USD per million images of each machine; without any price, the time of an image.

    A cost without its rate, or without a price beside others that have one, is unknown.
    """
    if not any(usd_per_hour):
        return [rate.map(lambda one: 1 / one) for rate in rates]
    million_s = [rate.map(lambda one: 1e6 / one) for rate in rates]
    return [
        time_s.map(functools.partial(usd, usd_per_hour=hourly)) if hourly else Estimate()
        for time_s, hourly in zip(million_s, usd_per_hour, strict=True)
    ]


def rank(costs: Sequence[Estimate]) -> list[tuple[int, str]]:
    """Return (index, possible ranks in words) of costs, the lowest first, unknown ones last.

    Two costs are told apart if their intervals do not overlap, so one that overlaps with others has
    several possible ranks. Predictions of two devices err independently: the intervals need not be
    wider. benchmarks/prediction_error.py prints how many pairs that are told apart are in the
    published order.
    """
    known = [index for index, cost in enumerate(costs) if cost.low is not None]
    ranks = []
    for index in sorted(known, key=lambda index: costs[index].value):
        below = sum(costs[other].high < costs[index].low for other in known)
        not_above = sum(costs[other].low <= costs[index].high for other in known)
        ranks.append((index, " to ".join(dict.fromkeys((str(below + 1), str(not_above))))))
    return ranks + [(index, UNKNOWN) for index in range(len(costs)) if index not in known]
