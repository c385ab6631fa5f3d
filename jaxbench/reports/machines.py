"""The best values of each machine: rate, score, time and cost to a target, energy."""

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.comparison import Interval, ratio
from jaxbench.analysis.pricing import usd
from jaxbench.analysis.statistics import FEWEST_RUNS, Estimate, estimate, of_windows, over_runs
from jaxbench.records.schema import ScalingRecord
from jaxbench.reports import work
from jaxbench.reports.context import STAGES, ReportContext
from jaxbench.reports.prices import price_mark
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.time_to_target import FEWEST_SEEDS, NEVER_REACHED, TimeToTarget


class Best(NamedTuple):
    """A machine's best value.

    Attributes:
      run: that it is of (of repeats, the first).
      counted: what n counts, such as "3 seeds", and what makes the value doubtful.
      is_result: whether it has an interval, or seeds enough.
    """

    of: Estimate
    run: ReportedRun
    counted: str
    is_result: bool


@dataclasses.dataclass(frozen=True)
class Rate:
    """A rate of a run on a machine.

    Attributes:
      machine: the devices and their number; for CPU devices, the processor too.
      rate: without a value if a training failed.
      work: what else must be equal if rates are compared: the network, the images, the stage.
      setting: the run's, with the batch size of this rate.
      repeats: how many runs the rate is of.
    """

    run: ReportedRun
    machine: str
    stage: str
    rate: Estimate
    work: tuple
    setting: Mapping[str, Any]
    repeats: int = 1

    value = property(lambda self: self.rate.value or 0.0)
    has_interval = property(lambda self: bool(self.rate.low))

    @property
    def interval(self) -> Interval:
        """The rate with its interval; a rate without one stands for both ends."""
        return self.rate.span if self.has_interval else (self.value,) * 3


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine reached in one kind of work; a value that nobody measured is None.

    Attributes:
      fastest: its fastest setting, among those with an interval if there are any.
      speedup: over the slowest machine, at equal work.
      score: of its best setting, the median of the seeds.
      time_s, usd: to the target, of its fastest setting; infinite if it was never reached.
      joules_per_image: of its most frugal run.
      runs: how many it has in this kind of work that are done.
    """

    name: str
    fastest: Rate
    speedup: Estimate | None
    score: Best | None
    time_s: Best | None
    usd: Best | None
    joules_per_image: Best | None
    runs: int

    @property
    def rate(self) -> Best | None:
        """The rate of the fastest setting."""
        rate, repeats = self.fastest.rate, self.fastest.repeats
        if rate.value is None:
            return None
        counted = f"{repeats} runs" if repeats > 1 else f"n = {rate.n or 1}"
        return Best(rate, self.fastest.run, counted, self.fastest.has_interval)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The machines that did one kind of work, the fastest first.

    Attributes:
      target: the label of the target that times are of.
      at: the setting of the speed-ups; None if no two machines did equal work.
    """

    rates: Sequence[Rate]
    machines: Sequence[Machine]
    target: str | None
    at: str | None

    first = property(lambda self: self.rates[0])


def compare_machines(context: ReportContext) -> list[Comparison]:
    """Return the machines of each experiment, stage and feed; whole trainings come first."""
    by_work = work.grouped(_rates(context), lambda rate: rate.work)
    comparisons = [_compare(context, rates) for rates in by_work.values()]
    experiments = [*dict.fromkeys(one.run.experiment for one in context.measurements)]
    stages = [*STAGES.values(), "weak scaling", "strong scaling"]
    comparisons.sort(
        key=lambda one: (experiments.index(one.first.run.experiment), stages.index(one.first.stage))
    )
    return [one for one in comparisons if one.machines]


def _machine_name(run: ReportedRun, num_devices: int | None) -> str:
    devices = run.devices(num_devices)
    return f"{devices} ({run.processor})" if run.processor else devices


def _rates(context: ReportContext) -> Iterator[Rate]:
    """Yield the rates of whole trainings and of training steps, of runs that ended well."""
    for one in context.measurements:
        run = one.run
        one_machine = not run.changed_devices and (run.id or not one.usable)
        # A training too short for a rate may have come to a score, or to its target. One that
        # failed has no rate, and counts as a seed that failed.
        counts = run.mode == "train" or one.rate.value
        ended = one.usable or (run.mode == "train" and run.status in NEVER_REACHED)
        if ended and one.stage in STAGES and one_machine and counts:
            setting = {**one.setting, "batch_size": run.batch_size}
            name = _machine_name(run, run.num_devices)
            rate = one.rate if one.usable else Estimate()
            yield Rate(run, name, STAGES[one.stage], rate, one.work, setting)
    for run, record in context.of_kind(ScalingRecord):
        rate = of_windows(record, "images_per_s")
        if run.status == "done" and rate.value:
            stage = f"{record.scaling} scaling"
            setting = work.setting_of(run)
            of = work.work_of(run, setting | {"stage": stage})
            setting["batch_size"] = record.batch_size
            yield Rate(run, _machine_name(run, record.num_devices), stage, rate, of, setting)


def _compare(context: ReportContext, rates: Sequence[Rate]) -> Comparison:
    at, speedups = _speedups(rates)
    trained = [rate.run for rate in rates if rate.run.mode == "train"]
    times = {run: t for run in trained if (t := context.times_to_target.get(run)) and t.ended}
    labels = collections.Counter((time.target, time.label) for time in times.values())
    target, label = max(labels, key=labels.get, default=(None, None))
    machines = []
    for name, own_rates in work.grouped(rates, lambda rate: rate.machine).items():
        runs = {rate.run for rate in own_rates}
        own_times = {r: time for r, time in times.items() if r in runs and time.target == target}
        machine = Machine(
            name,
            _fastest(own_rates),
            speedups.get(name),
            _score([run for run in trained if run in runs]),
            *_to_target(context, own_times),
            _energy(own_rates),
            sum(run.status == "done" for run in runs),
        )
        if machine.rate or machine.score or machine.time_s or machine.joules_per_image:
            machines.append(machine)
    machines.sort(key=lambda machine: -machine.fastest.value)
    return Comparison(rates, machines, label, at)


def _fastest(rates: Sequence[Rate]) -> Rate:
    """Return the fastest setting's rate, among those with an interval if there are any.

    Of three runs of a setting or more it is that of all of them, of fewer the slowest: the luckiest
    run says nothing of the next one.
    """
    of_settings = []
    for same in work.grouped(rates, lambda rate: work.setting_key(rate.setting)).values():
        repeats = [rate for rate in same if rate.value] or same[:1]
        if len(repeats) < FEWEST_RUNS:
            repeats = [rate for rate in repeats if rate.has_interval] or repeats
            of_settings.append(min(repeats, key=lambda rate: rate.value))
        else:
            rate = over_runs([rate.rate for rate in repeats])
            of_settings.append(dataclasses.replace(repeats[0], rate=rate, repeats=len(repeats)))
    return max(of_settings, key=lambda rate: (rate.has_interval, rate.value))


def _speedups(rates: Sequence[Rate]) -> tuple[str | None, dict[str, Estimate]]:
    """Return the setting that most machines share, and their speed-ups over the slowest in it."""
    measured = [rate for rate in rates if rate.value]
    shared = work.grouped(measured, lambda rate: work.setting_key(rate.setting, work.is_work))
    most = max(
        shared.values(),
        key=lambda same: (len({rate.machine for rate in same}), max(rate.value for rate in same)),
        default=(),
    )
    sides = work.grouped(most, lambda rate: rate.machine)
    if len(sides) < 2:
        return None, {}
    # As `ratio` does, or a machine could be slower than the slowest.
    means = {
        name: statistics.geometric_mean(rate.value for rate in side) for name, side in sides.items()
    }
    base = min(means, key=means.get)
    speedups = {name: _ratio(sides[base], side, len(sides) - 1) for name, side in sides.items()}
    first = most[0].setting
    same = {name: value for name, value in first.items() if work.is_work(name)}
    others = [
        {name: rates[0].setting.get(name) for name in same if name != "batch_size"}
        for rates in shared.values()
    ]
    batch, more = first["batch_size"], work.differing(same, others)
    words = [most[0].run.precision, f"batch {batch:,.0f}" if batch else "", more]
    return ", ".join(filter(None, words)), speedups | {base: Estimate(1.0)}


def _ratio(base: Sequence[Rate], other: Sequence[Rate], num_verdicts: int) -> Estimate:
    one = ratio(*([rate.interval for rate in side] for side in (base, other)), num_verdicts)
    # A single run does not say how the runs of its machine differ.
    repeated = min(len(base), len(other)) > 1
    return Estimate(*one) if repeated else Estimate(one.value)


def _score(runs: Sequence[ReportedRun]) -> Best | None:
    bests = []
    for seeds in _seeds(runs):
        scored = [run for run in seeds if run.status == "done" and run.score is not None]
        if scored:
            failed = sum(run.status != "done" for run in seeds)
            of = estimate([run.score for run in scored])
            bests.append(_of_seeds(of, scored[0], f", {failed} failed" if failed else ""))
    return max(bests, key=lambda best: (best.is_result, best.of.value), default=None)


def _of_seeds(of: Estimate, run: ReportedRun, more: str = "") -> Best:
    """Return a value over seeds, which is a result from five of them on."""
    return Best(of, run, f"{of.n} seed{'s' * (of.n != 1)}{more}", of.n >= FEWEST_SEEDS)


def _seeds(runs: Iterable[ReportedRun]) -> Iterator[list[ReportedRun]]:
    """Yield the runs that differ only in their seed; of a seed that was run again, the first."""
    for same in work.grouped(runs, work.training_key).values():
        yield [repeats[0] for repeats in work.grouped(same, lambda run: run.sample).values()]


def _to_target(
    context: ReportContext, times: Mapping[ReportedRun, TimeToTarget]
) -> tuple[Best | None, Best | None]:
    """Return the shortest time to the target, and what it costs at the lowest price."""
    bests = {
        _of_seeds(_median([times[run].time_s for run in seeds]), seeds[0]): seeds
        for seeds in _seeds(times)
    }
    best = min(bests, key=lambda best: (not best.is_result, best.of.value), default=None)
    price = best and context.prices.lowest(best.run)
    if price is None or best.of.value == math.inf:
        return best, None
    paid_s = _median([times[run].paid_s for run in bests[best]])
    counted = ", ".join(filter(None, [best.counted, price_mark(price, best.run)]))
    paid = paid_s.map(lambda time_s: usd(time_s, price.usd_per_hour))
    return best, best._replace(of=paid, counted=counted)


def _median(times_s: Sequence[float]) -> Estimate:
    """Return the median; without an interval if some seeds never get there."""
    if math.inf in times_s:
        return Estimate(statistics.median(times_s), n=len(times_s))
    return estimate(times_s)


def _energy(rates: Sequence[Rate]) -> Best | None:
    bests = [
        Best(Estimate(joules), rate.run, "1 run", False)
        for rate in rates
        if (joules := rate.run.telemetry.get("joules_per_image")) is not None
        and rate.run.status == "done"
        and "scaling" not in rate.stage
    ]
    return min(bests, key=lambda best: best.of.value, default=None)
