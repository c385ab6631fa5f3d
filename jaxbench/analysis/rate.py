"""The rate of a run, of repeats and of seeds, with its interval; and which of two is higher.

No other module computes a rate, compares intervals, or decides that something is faster.

* The rate of a run is the median of its windows, or of its complete epochs from the second on. The
  first epoch is warm-up. From `FEWEST_FOR_INTERVAL` samples on it has a 95 % interval, by order
  statistics.
* The rate of several runs of one setting is their geometric mean. From `FEWEST_RUNS` runs on it has
  a 95 % interval, by Student's t. Scores over seeds are summarized likewise.
* The interval of one run contains what changes within the run. It does not contain what changes
  between runs: the placement of arrays, the processor's clock, other users. Only repeats show that.
  So a verdict needs repeats of both sides, interleaved if they share a host, and Welch's interval.

`benchmarks/verdicts.py` simulates how often a verdict is wrong, and how often one is missed.
"""

import enum
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, mean_interval, median_interval
from jaxbench.metrics import UNKNOWN, plain
from jaxbench.schema import (
    EpochRecord,
    InputRecord,
    Record,
    ScalingRecord,
    ThroughputRecord,
    value_of,
)

# Of fewer runs or seeds nobody can tell how much they differ. Fewer seeds are no result.
FEWEST_RUNS, FEWEST_SEEDS = 3, 5
_LEVEL, _NORMAL_95 = 0.95, 1.96
# The stage that the rate of a run is of, the first of them that it has.
MAIN_STAGES = ("train_step", "training")


class Estimate(NamedTuple):
    """A value with the ends of its interval, which is of 95 % if nothing else is said.

    Attributes:
      value: None if it is unknown.
      low, high: None without an interval.
      n: how many samples, runs or seeds the value is of.
      counts: what n counts: runs or seeds; empty for the samples of one run.
      range: the least and the greatest of samples that are several, but too few for an interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    counts: str = ""
    range: tuple[float, float] | None = None

    @property
    def span(self) -> tuple[float, float | None, float | None]:
        """The value, which is known, and its ends."""
        if self.value is None:
            raise ValueError("the value is unknown")
        return self.value, self.low, self.high

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def basis(self) -> str:
        """What the value is of, and whether it has an interval."""
        counted = f"{self.n} {self.counts}" if self.counts else f"n = {self.n or 1}"
        return f"{counted}, {'95 %' if self.interval else 'no'} interval"

    @property
    def ends_in_words(self) -> str:
        """The interval, or the range; empty without either."""
        name, ends = ("range", self.range) if self.range else ("95 % interval", self[1:3])
        return "" if None in ends else f"{name} {' to '.join(map(plain, ends))}"

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Return the estimate of a monotonic function of the value."""
        # Of nothing, such as the time of an image at no images a second, nothing is known.
        value, *ends = (function(x) if x else None for x in self[:3])
        low, high = (None, None) if None in ends else sorted(x for x in ends if x is not None)
        return Estimate(value, low, high, self.n, self.counts)

    def fields(self, name: str) -> dict[str, Any]:
        """Return the value and its ends as records, tables and JSON name them."""
        return dict(zip((name, f"{name}_low", f"{name}_high"), self[:3], strict=True))

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any] | None, name: str) -> "Estimate":
        """Return what `fields` was made of; an unknown value without fields."""
        value, low, high = ((fields or {}).get(one) for one in cls().fields(name))
        return cls(value, low, high)


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median of a run's samples and its interval; none if a sample is infinite."""
    if not samples:
        return Estimate()
    if math.inf in samples:
        return Estimate(statistics.median(samples), n=len(samples))
    median, low, high = median_interval(samples)
    if len(samples) >= FEWEST_FOR_INTERVAL:
        return Estimate(median, low, high, len(samples))
    return Estimate(median, n=len(samples), range=(low, high) if len(samples) > 1 else None)


class _Run(Protocol):
    """What a rate is read from: `RunRecords`, or a run of the report."""

    @property
    def records(self) -> Sequence[Record]: ...


def rates_of(run: _Run) -> dict[str, Estimate]:
    """Return {stage: images/s} of all that a run has measured, in the order of its records.

    The stages are those of --mode=throughput and --mode=input, `training`, and of --mode=scaling
    one for each number of devices.
    """
    rates = {}
    for record in run.records:
        if isinstance(record, ThroughputRecord | InputRecord):
            rates[record.stage] = of_windows(record, "images_per_s")
        elif isinstance(record, ScalingRecord):
            rates[scaling_stage(record)] = of_windows(record, "images_per_s")
    rates["training"] = steady_rate(one for one in run.records if isinstance(one, EpochRecord))
    return {stage: rate for stage, rate in rates.items() if rate.value}


def rate_of(run: _Run) -> Estimate:
    """Return the images/s of a run: of its training step, its training, or its last scaling step.

    It is unknown if the run has measured none of these.
    """
    rates = rates_of(run)
    for stage in MAIN_STAGES:
        if stage in rates:
            return rates[stage]
    scaled = [one for one in run.records if isinstance(one, ScalingRecord)]
    # From few devices to all: the last may be out of memory, and has no rate then.
    return rates.get(scaling_stage(scaled[-1]), Estimate()) if scaled else Estimate()


def scaling_stage(record: ScalingRecord) -> str:
    """Return the name of a step of --mode=scaling among the stages of its run."""
    return f"{record.scaling} scaling on {record.num_devices}"


def steady_epochs(epochs: Iterable[EpochRecord]) -> list[EpochRecord]:
    """Return the complete epochs with a rate from the second on: the first one is warm-up."""
    return [one for one in epochs if one.complete and one.epoch > 1 and one.images_per_s]


def steady_rate(epochs: Iterable[EpochRecord]) -> Estimate:
    """Return the median images/s of the steady epochs; unknown if there is no such epoch."""
    return estimate([one.images_per_s for one in steady_epochs(epochs) if one.images_per_s])


def describe_steady_rate(rate: Estimate) -> str:
    """Return what the rate of a run that has one is, with its interval or range."""
    if rate.n == 1:
        return "of one epoch, not the 1st"
    return f"median of {rate.n} epochs from the 2nd on, {rate.ends_in_words}"


def of_windows(record: Record, name: str) -> Estimate:
    """Return a metric that a record has with its interval, of as many windows as it lists."""
    n = len(value_of(record, "windows_s") or value_of(record, "windows_images_per_s") or ())
    value, low, high = (getattr(record, name + end) for end in ("", "_low", "_high"))
    if n < FEWEST_FOR_INTERVAL or None in (low, high):
        low = high = None
    return Estimate(value, low, high, n or None)


def of_rounds(record: Any, name: str) -> Estimate:
    """Return a time of a convolution's record, with the interval of its rounds."""
    time_s = getattr(record, name)
    if time_s is None:
        return Estimate()
    return estimate(record.samples.get(name, ()))._replace(value=time_s)


def of_repeats(
    estimates: Sequence[Estimate], counts: str = "runs", most: float = math.inf
) -> Estimate:
    """Return the only estimate, or the geometric mean of several runs; unknown ones do not count.

    The interval is Student's over the runs, of their logarithms, and never narrower than what the
    runs' own intervals leave open. Seeds that never reached their target take endlessly. With one
    of them, or a value of 0, it is the median, without interval.

    Args:
      most: what no value exceeds, such as 1 for a fraction.
    """
    values = [one.value for one in estimates if one.value is not None]
    if not values:
        return Estimate()
    if len(estimates) == 1:
        only = estimates[0]
        return only if counts == "runs" else only._replace(n=1, counts=counts)
    if min(values) <= 0 or not math.isfinite(max(values)):
        return Estimate(statistics.median(values), n=len(values), counts=counts)
    mean, low, high = mean_interval(values)
    if low is None or high is None or len(values) < FEWEST_RUNS:
        return Estimate(mean, n=len(values), counts=counts)
    own = [one.interval for one in estimates if one.interval]
    widths = [math.log(high / low) for low, high in own if 0 < low <= high]
    within = math.exp(sum(widths) / 2 / len(values) ** 1.5)
    low, high = min(low, mean / within), max(high, mean * within)
    return Estimate(mean, low, min(high, most), len(values), counts)


def of_seeds(values: Sequence[float], most: float = math.inf) -> Estimate:
    """Return what seeds came to, without intervals of their own, see `of_repeats`."""
    return of_repeats([*map(Estimate, values)], "seeds", most)


def spread(estimates: Sequence[Estimate], most: float = math.inf) -> dict[str, float | int | None]:
    """Return n, median, means, sample deviation and extremes of what seeds came to.

    The geometric mean and its ends are those of `of_repeats`. Infinite values count: half of them
    make the median infinite, one of them the mean; there is no geometric mean and no deviation
    then, nor a deviation of a single value.
    """
    values = [one.value for one in estimates if one.value is not None]
    finite = all(map(math.isfinite, values))
    of = of_repeats(estimates, "seeds", most) if finite and min(values) > 0 else Estimate()
    return {
        "n": len(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        **of.fields("geometric_mean"),
        "std": statistics.stdev(values) if finite and len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }


class Outcome(enum.StrEnum):
    """What the second of two sides is, compared with the first."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no significant difference"
    INCONCLUSIVE = "inconclusive"


class Verdict(NamedTuple):
    """Whether one of two rates is higher.

    Attributes:
      ratio: the second side's rate over the first's; its interval is None if it is unknown.
    """

    outcome: Outcome
    ratio: Estimate
    reasons: tuple[str, ...] = ()


def verdict(
    first: Sequence[Estimate],
    second: Sequence[Estimate],
    doubts: Sequence[str] = (),
    num_verdicts: int = 1,
) -> Verdict:
    """Return which of two sides is faster; the doubts are as of `design_doubts`."""
    of = ratio(first, second, num_verdicts)
    if doubts or not of.interval:
        return Verdict(Outcome.INCONCLUSIVE, of, tuple(doubts) or ("no interval",))
    low, high = of.interval
    if low <= 1 <= high:
        return Verdict(Outcome.NO_DIFFERENCE, of)
    return Verdict(Outcome.FASTER if low > 1 else Outcome.SLOWER, of)


def ratio(first: Sequence[Estimate], second: Sequence[Estimate], num_verdicts: int = 1) -> Estimate:
    """Return the second side's rate over the first's: the ratio of the geometric means.

    The interval is Welch's, on logarithms, which does not assume that both sides spread equally.
    It has the degrees of freedom of the side with fewer runs. Those of Welch and Satterthwaite are
    too many for few runs: with 2 against 10, up to 12 % of the verdicts on equal sides are wrong.
    The interval is never narrower than the runs' own intervals require. With one run on a side it
    is what the runs' own intervals leave open; unknown if one of them has none.

    Args:
      first, second: the rates of the repeats of each side, one or more.
      num_verdicts: how many ratios are judged together. Their intervals hold together at 95 %
        (Bonferroni).
    """
    sides = (first, second)
    logs = [[math.log(rate.value) for rate in side if rate.value] for side in sides]
    means = [statistics.fmean(side) for side in logs]
    value, freedom = math.exp(means[1] - means[0]), min(map(len, logs)) - 1
    own = [[rate.interval for rate in side if rate.interval] for side in sides]
    if not freedom:
        if any(len(ends) < len(side) for ends, side in zip(own, sides, strict=True)):
            return Estimate(value)
        (lows, highs), (other_lows, other_highs) = (
            map(statistics.geometric_mean, zip(*ends, strict=True)) for ends in own
        )
        return Estimate(value, other_lows / highs, other_highs / lows)
    # A report is made without SciPy if nothing was repeated.
    from scipy.special import ndtri, stdtrit

    quantile = 1 - (1 - _LEVEL) / 2 / num_verdicts
    between = sum(
        math.fsum((x - mean) ** 2 for x in side) / (len(side) - 1) / len(side)
        for side, mean in zip(logs, means, strict=True)
    )
    half_widths = [[math.log(high / low) / 2 for low, high in ends] for ends in own]
    within = sum(
        statistics.fmean(widths) ** 2 / len(side)
        for widths, side in zip(half_widths, sides, strict=True)
        if widths
    )
    margin = max(
        float(stdtrit(freedom, quantile)) * math.sqrt(between),
        float(ndtri(quantile)) / _NORMAL_95 * math.sqrt(within),
    )
    # Nothing is known then, and math.exp has an end.
    margin = min(margin, 700.0 - abs(math.log(value)))
    return Estimate(value, value * math.exp(-margin), value * math.exp(margin))


def design_doubts(starts: Sequence[tuple[str, Sequence[str | None]]], same_host: bool) -> list[str]:
    """Return why the runs allow no verdict, whatever their rates.

    `starts` has (name, when its runs began) of both sides, see `are_interleaved`.
    """
    single = [name for name, times in starts if len(times) < 2]
    if single:
        return ["one run each" if len(single) == 2 else f"one run of {single[0]}"]
    is_sound = not same_host or are_interleaved(*(times for _, times in starts))
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
    first, second = ([*filter(None, starts)] for starts in (first_starts, second_starts))
    counts = len(first), len(second)
    if min(counts) < 2 or sum(counts) < len(first_starts) + len(second_starts):
        return False
    return all(
        abs(
            sum(start <= time for start in first) * counts[1]
            - sum(start <= time for start in second) * counts[0]
        )
        <= max(counts)
        for time in (*first, *second)
    )


def apart(first: Estimate, second: Estimate) -> int:
    """Return 1 if the second's interval lies above the first's, -1 if below, 0 if they overlap.

    Use it for predictions, whose errors are independent, and for the parts of one interleaved
    measurement. Two runs need a `verdict`. Return 0 if one of the two has no interval.
    """
    if not (first.interval and second.interval):
        return 0
    return (second.interval[0] > first.interval[1]) - (second.interval[1] < first.interval[0])


def rank(costs: Sequence[Estimate]) -> list[tuple[int, str]]:
    """Return (index, possible ranks in words) of costs, the lowest first, unknown ones last.

    A cost whose interval overlaps with others has several possible ranks. For pairs whose intervals
    do not overlap, benchmarks/prediction_error.py prints how many are in the published order.
    """
    known = {i: one.value for i, one in enumerate(costs) if one.interval and one.value is not None}
    ranks = []
    for index in sorted(known, key=known.__getitem__):
        signs = [apart(costs[other], costs[index]) for other in known]
        best, worst = signs.count(1) + 1, len(known) - signs.count(-1)
        ranks.append((index, " to ".join(dict.fromkeys((str(best), str(worst))))))
    return ranks + [(index, UNKNOWN) for index in range(len(costs)) if index not in known]
