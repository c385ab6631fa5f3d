"""A median of several samples with its interval."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval
from jaxbench.report.fields import items, known, mapping, number


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A median with the ends of its 95 % interval; what is unknown is None.

    Attributes:
      n: samples. Fewer than `FEWEST_FOR_INTERVAL` have no interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def span(self) -> tuple[float | None, float | None, float | None]:
        return self.value, self.low, self.high

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
    rounds = estimate(known(number(sample) for sample in items(mapping(record, "samples"), name)))
    return dataclasses.replace(rounds, value=time_s)


def over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the only estimate, or the median of several runs, from the least to the most."""
    if len(estimates) == 1:
        return estimates[0]
    values = [one.value for one in estimates]
    return Estimate(statistics.median(values), min(values), max(values))
