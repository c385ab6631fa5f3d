"""The best figures of each machine: rate, score, time and cost to a target, energy."""

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.comparison import Interval, ratio
from jaxbench.analysis.estimates import (
    FEWEST_RUNS,
    Estimate,
    estimate,
    of_windows,
    over_runs,
)
from jaxbench.analysis.pricing import usd
from jaxbench.records.schema import ScalingRecord
from jaxbench.reports.context import STAGES, ReportContext
from jaxbench.reports.prices import is_of_other_hardware, price_mark
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.time_to_target import FEWEST_SEEDS, NEVER_REACHED, TimeToTarget
from jaxbench.reports.work import (
    differing,
    grouped,
    is_work,
    setting_key,
    setting_of,
    training_setting,
    work_of,
)


class Best(NamedTuple):
    """A machine's best figure.

    Attributes:
      run: that it is of (of repeats, the first).
      counted: what n counts, such as "3 seeds", and what speaks against the figure.
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
      rate: None in all of a training that failed.
      work: what else must be equal where rates are compared: the network, the images, the stage.
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

    @property
    def same_work(self) -> tuple:
        """What `jaxbench.compare` asks to be equal before it gives a verdict."""
        return setting_key(self.setting, is_work)

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known, and can be: a record may hold anything."""
        return 0 < (self.rate.low or 0) <= (self.rate.high or 0)

    @property
    def interval(self) -> Interval:
        """The rate with its interval; a rate without one stands for both ends."""
        value, low, high = self.rate.span
        return (value, low, high) if self.has_interval else (value, value, value)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine came to in one kind of work; a figure that nobody measured is None.

    Attributes:
      rate: of its fastest setting, among those with an interval if there are any.
      speedup: over the slowest machine, at equal work.
      score: of its best setting, the median of the seeds.
      time_s, usd: to the target, of its fastest setting; infinite where it was never reached.
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
      at: the setting in which the speed-ups are; None where no two machines did equal work.
    """

    rates: Sequence[Rate]
    machines: Sequence[Machine]
    target: str | None
    at: str | None

    first = property(lambda self: self.rates[0])


def compare_machines(context: ReportContext) -> list[Comparison]:
    """Return the machines of each experiment, stage and feed; whole trainings come first."""
    by_work = grouped(_rates(context), lambda rate: rate.work)
    found = [_compare(context, rates) for rates in by_work.values()]
    experiments = [run.experiment for run in context.runs]
    found.sort(key=lambda own: (experiments.index(own.first.run.experiment), _stage_at(own)))
    return [own for own in found if any(map(_has_figure, own.machines))]


def _stage_at(own: Comparison) -> int:
    stages = [*STAGES.values()]
    return stages.index(own.first.stage) if own.first.stage in stages else len(stages)


def _has_figure(machine: Machine) -> bool:
    return any((machine.rate, machine.score, machine.time_s, machine.joules_per_image))


def machine_name(run: ReportedRun, num_devices: float | None) -> str:
    """Return a machine's devices and their number, with the processor of CPU devices."""
    devices = run.devices(num_devices)
    return f"{devices} ({run.processor})" if run.processor else devices


def _rates(context: ReportContext) -> Iterator[Rate]:
    """Yield the rates of whole trainings and of training steps, of runs that ended well."""
    for own in context.measurements:
        run = own.run
        known_devices = not run.changed_devices and (run.id or not own.usable)
        # A training too short for a rate may have come to a score, or to its target. One that
        # failed has no rate, and counts as a seed that failed.
        counts = run.mode == "train" or (own.rate.value or 0) > 0
        ended = own.usable or (run.mode == "train" and run.status in NEVER_REACHED)
        if ended and own.stage in STAGES and known_devices and counts:
            setting = {**own.setting, "batch_size": run.batch_size}
            name = machine_name(run, run.num_devices)
            rate = own.rate if own.usable else Estimate()
            yield Rate(run, name, STAGES[own.stage], rate, own.work, setting)
    for run, record in context.of_kind(ScalingRecord):
        rate = of_windows(record, "images_per_s")
        if run.status == "done" and (rate.value or 0) > 0:
            stage = f"{record.scaling} scaling"
            name = machine_name(run, record.num_devices)
            setting = {**setting_of(run), "batch_size": record.batch_size}
            yield Rate(run, name, stage, rate, work_of(run, setting | {"stage": stage}), setting)


def _compare(context: ReportContext, rates: Sequence[Rate]) -> Comparison:
    by_machine = grouped(rates, lambda rate: rate.machine)
    at, speedups = _speedups(rates)
    trained = [rate.run for rate in rates if rate.run.mode == "train"]
    times = {run: own for run in trained if (own := context.times_to_target.get(run)) and own.ended}
    labels = [(own.target, own.label) for own in times.values()]
    targets = collections.Counter(labels).most_common(1)
    target, label = targets[0][0] if targets else (None, None)
    machines = []
    for name, own in by_machine.items():
        runs = {rate.run for rate in own}
        own_times = {r: t for r, t in times.items() if r in runs and t.target == target}
        time_s = _time(own_times)
        machines.append(
            Machine(
                name,
                _fastest(own),
                speedups.get(name),
                _score([run for run in trained if run in runs]),
                time_s,
                _usd(context, time_s, own_times),
                _energy(own),
                sum(run.status == "done" for run in runs),
            )
        )
    machines = [*filter(_has_figure, machines)]
    machines.sort(key=lambda machine: -_value(machine.fastest))
    return Comparison(rates, machines, label, at)


def _fastest(rates: Sequence[Rate]) -> Rate:
    """Return the fastest setting's rate, among those with an interval if there are any.

    Of three runs of a setting or more it is that of all of them, of fewer the slowest: the luckiest
    run says nothing of the next one.
    """
    found = []
    for own in grouped(rates, lambda rate: setting_key(rate.setting)).values():
        known = [rate for rate in own if _value(rate)] or own[:1]
        if len(known) < FEWEST_RUNS:
            known = [rate for rate in known if rate.has_interval] or known
            found.append(min(known, key=_value))
        else:
            rate = over_runs([rate.rate for rate in known])
            found.append(dataclasses.replace(known[0], rate=rate, repeats=len(known)))
    return max(found, key=lambda rate: (rate.has_interval, _value(rate)))


def _value(rate: Rate) -> float:
    return max(rate.rate.value or 0.0, 0.0)


def _speedups(rates: Sequence[Rate]) -> tuple[str | None, dict[str, Estimate]]:
    """Return the setting that most machines share, and their speed-ups over the slowest in it."""
    shared = grouped(filter(_value, rates), lambda rate: rate.same_work)
    most = max(
        shared.values(),
        key=lambda own: (len({rate.machine for rate in own}), max(map(_value, own))),
        default=(),
    )
    sides = grouped(most, lambda rate: rate.machine)
    if len(sides) < 2:
        return None, {}
    # As `ratio` does, or a machine could be slower than the slowest.
    means = {name: statistics.geometric_mean(map(_value, own)) for name, own in sides.items()}
    base = min(means, key=means.get)
    found = {name: _ratio(sides[base], own, len(sides) - 1) for name, own in sides.items()}
    first, others = most[0], [own[0].setting for own in shared.values()]
    batch = first.setting.get("batch_size")
    own = {name: value for name, value in first.setting.items() if is_work(name)}
    others = [{name: other.get(name) for name in own if name != "batch_size"} for other in others]
    more = differing(own, others)
    told = [first.run.precision, f"batch {batch:,.0f}" if batch else "", more]
    return ", ".join(filter(None, told)), found | {base: Estimate(1.0)}


def _ratio(base: Sequence[Rate], other: Sequence[Rate], num_verdicts: int) -> Estimate:
    sides = ([rate.interval for rate in side] for side in (base, other))
    found = ratio(*sides, num_verdicts)
    # A single run does not say how the runs of its machine differ.
    repeated = min(len(base), len(other)) > 1
    return Estimate(found.value, *((found.low, found.high) if repeated else (None, None)))


def _score(runs: Sequence[ReportedRun]) -> Best | None:
    found = []
    for own in _seeds(runs):
        scored = [run for run in own if run.status == "done" and run.score is not None]
        if scored:
            of = estimate([run.score for run in scored])
            failed = sum(run.status != "done" for run in own)
            found.append(_of_seeds(of, scored[0], f", {failed} failed" if failed else ""))
    return max(found, key=lambda best: (best.is_result, best.of.value), default=None)


def _of_seeds(of: Estimate, run: ReportedRun, more: str = "") -> Best:
    """Return a figure over seeds, which is a result from five of them on."""
    return Best(of, run, f"{of.n} seed{'s' * (of.n != 1)}{more}", of.n >= FEWEST_SEEDS)


def _seeds(runs: Iterable[ReportedRun]) -> Iterator[list[ReportedRun]]:
    """Yield the runs that differ in their seed alone; of a seed that was run again, the first."""
    for own in grouped(runs, lambda run: setting_key(training_setting(run))).values():
        by_seed: dict[Any, ReportedRun] = {}
        for run in own:
            by_seed.setdefault(run.id if run.seed is None else run.seed, run)
        yield [*by_seed.values()]


def _time(times: Mapping[ReportedRun, TimeToTarget], field: str = "time_s") -> Best | None:
    found = []
    for own in _seeds(times):
        times_s = [getattr(times[run], field) for run in own]
        reached = math.inf not in times_s
        of = estimate(times_s) if reached else Estimate(statistics.median(times_s), n=len(own))
        found.append(_of_seeds(of, own[0]))
    return min(found, key=lambda best: (not best.is_result, best.of.value), default=None)


def _usd(
    context: ReportContext, time_s: Best | None, times: Mapping[ReportedRun, TimeToTarget]
) -> Best | None:
    """Return what that time costs at the lowest price of its own hardware.

    A price of more devices than the run used comes last, and is marked.
    """
    if time_s is None or time_s.of.value == math.inf:
        return None
    run = time_s.run
    prices = [p for p in context.prices.of(run) if not is_of_other_hardware(p, run)]
    if not prices:
        return None
    price = min(prices, key=lambda p: (price_mark(p, run), p.usd_per_hour))
    own = next(own for own in _seeds(times) if own[0] is run)
    paid_s = _time({run: times[run] for run in own}, "paid_s")
    told = ", ".join(filter(None, [paid_s.counted, price_mark(price, run)]))
    usd_of = paid_s.of.map(lambda own_s: usd(own_s, price.usd_per_hour))
    return Best(usd_of, run, told, paid_s.is_result)


def _energy(rates: Sequence[Rate]) -> Best | None:
    found = [
        Best(Estimate(joules), rate.run, "1 run", False)
        for rate in rates
        if (joules := rate.run.telemetry.get("joules_per_image")) is not None
        and rate.run.status == "done"
        and "scaling" not in rate.stage
    ]
    return min(found, key=lambda best: best.of.value, default=None)
