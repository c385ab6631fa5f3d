"""The answers first: what each machine came to at best."""

import collections
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.comparison import Interval, ratio
from jaxbench.analysis.pricing import usd
from jaxbench.analysis.statistics import FEWEST_RUNS, Estimate, estimate, of_windows, over_runs
from jaxbench.metrics import UNKNOWN, clock_time, count, percent, plain
from jaxbench.records.schema import ScalingRecord
from jaxbench.reports import work
from jaxbench.reports.blocks import Section
from jaxbench.reports.context import STAGES, ReportContext, make_section
from jaxbench.reports.prices import price_mark
from jaxbench.reports.runs import FEWEST_SEEDS, NEVER_REACHED, SCORES, ReportedRun, TimeToTarget
from jaxbench.tables.columns import Cell, Column, interval, metric_column
from jaxbench.tables.table import make_table

# What fits on a screen or two; further rows are folded.
_MOST_ROWS = 30
_NOTE = (
    "images/s: over all devices together, of the fastest setting with an interval: the median of "
    "a run, or the geometric mean of three or more. Score: of the last epoch, the median of the "
    "seeds of the best setting. Time to the target: since the run's start, the median of the "
    "seeds of the fastest setting; seeds that failed never get there. USD: that time at the "
    "lowest known price. In brackets: the 95 % interval, and how many epochs or windows (n), runs "
    "or seeds. Grey, “only”: no interval, or fewer than five seeds, and nothing better. Speed-up: "
    "over the slowest machine, if experiment, images, precision and global batch are equal; "
    "otherwise none is given."
)


class _Best(NamedTuple):
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
class _Rate:
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

    @property
    def best(self) -> _Best | None:
        if self.rate.value is None:
            return None
        counted = f"{self.repeats} runs" if self.repeats > 1 else f"n = {self.rate.n or 1}"
        return _Best(self.rate, self.run, counted, self.has_interval)


class _Comparison(NamedTuple):
    """The machines that did one kind of work, the fastest first.

    Attributes:
      machines: what each reached; a value that nobody measured is None.
      target: the label of the target that times are of.
      at: the setting of the speed-ups; None if no two machines did equal work.
    """

    first: _Rate
    machines: Sequence[dict[str, Any]]
    target: str | None
    at: str | None


def overview(context: ReportContext) -> Section | None:
    """Return the best figures of each machine, by experiment, stage and feed."""
    comparisons = _compare_machines(context)
    headed = [*zip(comparisons, _headings(comparisons), strict=True)]
    totals = itertools.accumulate(len(one.machines) for one in comparisons)
    first = max(1, sum(total <= _MOST_ROWS for total in totals))
    parts = {"Best of each machine": headed[:first], "Further experiments": headed[first:]}
    tables = []
    for title, part in parts.items():
        rows = [row | {"heading": heading} for one, heading in part for row in one.machines]
        columns = _columns([one for one, _ in part])
        table = make_table(columns, rows, title, group=lambda row: row["heading"])
        tables.append(table._replace(folded=bool(tables), note="" if tables else _NOTE))
    return make_section(
        "overview",
        "Overview",
        "The best that each machine came to. Training and the training step alone, and the feeds, "
        "are different figures and never mixed.",
        tables,
    )


def _columns(comparisons: Sequence[_Comparison]) -> list[Column]:
    bests = [row["score"] for one in comparisons for row in one.machines if row["score"]]
    scores = {SCORES[best.run.score_field] for best in bests}
    targets = {one.target for one in comparisons if one.target}
    score = scores.pop() if len(scores) == 1 else "score"
    target = f"{targets.pop()} %" if len(targets) == 1 else "the target"
    return [
        Column("machine", "name"),
        metric_column("images_per_s", _best("rate", plain)),
        metric_column("speedup", _speedup),
        metric_column("best_score", _best("score", percent), score),
        metric_column("duration_s", _best("time_s", _time), f" to {target}"),
        metric_column("usd", _best("usd", plain), f" to {target}"),
        metric_column("joules_per_image", _best("joules_per_image", plain)),
        Column("fastest with", _fastest_with),
        metric_column("runs"),
    ]


def _best(name: str, show: Callable[[Any], str]) -> Callable[[dict[str, Any]], Cell]:
    def cell(row: dict[str, Any]) -> Cell:
        best: _Best | None = row[name]
        if best is None:
            return Cell(UNKNOWN)
        ends = interval(show)(best.of)
        details = [ends, best.counted if best.is_result else f"only {best.counted}"]
        shown = f"{show(best.of.value)} ({'; '.join(text for text in details if text != UNKNOWN)})"
        mark = "" if best.is_result else "soft"
        return Cell(shown, mark, run=best.run.id, sort=best.of.value)

    return cell


def _time(time_s: float | None) -> str:
    """Show short times with their tenths: steps of a second would hide what differs."""
    if time_s == math.inf:
        return "never"
    return f"{time_s:.1f} s" if time_s is not None and time_s < 60 else clock_time(time_s)


def _speedup(row: dict[str, Any]) -> Cell | None:
    speedup: Estimate | None = row["speedup"]
    if speedup is None:
        return None
    if speedup == Estimate(1.0):
        return Cell("1 (slowest)", "soft")
    value, low, high = speedup.span
    ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
    if low is not None and high > 100 * low:
        ends = " (too few repeats for an interval)"
    return Cell(f"{value:.2f}{ends}", sort=value)


def _fastest_with(row: dict[str, Any]) -> str:
    rate = row["fastest"]
    batch = rate.setting.get("batch_size")
    busy = rate.run.telemetry.get("host_busy") is True
    size = f"batch {count(batch)}" if batch else ""
    parts = (rate.run.precision, size, rate.run.id, "host was busy" * busy)
    return ", ".join(filter(None, parts))


def _headings(comparisons: Sequence[_Comparison]) -> Iterator[str]:
    """Yield the heading of each comparison; network and data too, if two would be alike."""
    runs = [one.first.run for one in comparisons]
    shorts = [
        f"{run.experiment} · {one.first.stage} · {run.rate_feed} feed"
        for run, one in zip(runs, comparisons, strict=True)
    ]
    for run, comparison, short in zip(runs, comparisons, shorts, strict=True):
        parts = [short]
        if shorts.count(short) > 1:
            parts.append(f"{run.network}; {run.data_of(run.rate_feed)}")
        if comparison.at:
            parts.append(f"speed-up at {comparison.at}")
        elif len(comparison.machines) > 1:
            parts.append("no speed-up: no two machines did equal work")
        yield " · ".join(parts)


def _compare_machines(context: ReportContext) -> list[_Comparison]:
    """Return the machines of each experiment, stage and feed; whole trainings come first."""
    by_work = work.grouped(_rates(context), lambda rate: rate.work)
    experiments = [*dict.fromkeys(one.run.experiment for one in context.measurements)]
    stages = [*STAGES.values(), "weak scaling", "strong scaling"]
    comparisons = sorted(
        (_compare(context, rates) for rates in by_work.values()),
        key=lambda one: (
            experiments.index(one.first.run.experiment),
            stages.index(one.first.stage),
        ),
    )
    return [one for one in comparisons if one.machines]


def _rates(context: ReportContext) -> Iterator[_Rate]:
    """Yield the rates of whole trainings and of training steps, of runs that ended well."""

    def machine(run: ReportedRun, num_devices: int | None) -> str:
        return run.devices(num_devices) + (f" ({run.processor})" if run.processor else "")

    for one in context.measurements:
        run = one.run
        one_machine = not run.changed_devices and (run.id or not one.usable)
        # A training too short for a rate may have come to a score, or to its target. One that
        # failed has no rate, and counts as a seed that failed.
        counts = run.mode == "train" or one.rate.value
        ended = one.usable or (run.mode == "train" and run.status in NEVER_REACHED)
        if ended and one.stage in STAGES and one_machine and counts:
            setting = {**one.setting, "batch_size": run.batch_size}
            rate, name = one.rate if one.usable else Estimate(), machine(run, run.num_devices)
            yield _Rate(run, name, STAGES[one.stage], rate, one.work, setting)
    for run, record in context.of_kind(ScalingRecord):
        rate = of_windows(record, "images_per_s")
        if run.status == "done" and rate.value:
            stage, setting = f"{record.scaling} scaling", work.setting_of(run)
            of = work.work_of(run, setting | {"stage": stage})
            setting["batch_size"] = record.batch_size
            yield _Rate(run, machine(run, record.num_devices), stage, rate, of, setting)


def _compare(context: ReportContext, rates: Sequence[_Rate]) -> _Comparison:
    at, speedups = _speedups(rates)
    trained = [rate.run for rate in rates if rate.run.mode == "train"]
    times = {run: t for run in trained if (t := context.times_to_target.get(run)) and t.ended}
    labels = collections.Counter((time.target, time.label) for time in times.values())
    target, label = max(labels, key=labels.get, default=(None, None))
    machines = []
    for name, own_rates in work.grouped(rates, lambda rate: rate.machine).items():
        runs = {rate.run for rate in own_rates}
        fastest = _fastest(own_rates)
        times_here = {r: time for r, time in times.items() if r in runs and time.target == target}
        time_s, paid = _to_target(context, times_here)
        bests = {
            "rate": fastest.best,
            "score": _score([run for run in trained if run in runs]),
            "time_s": time_s,
            "usd": paid,
            "joules_per_image": _energy(own_rates),
        }
        if any(bests.values()):
            row = {"name": name, "fastest": fastest, "speedup": speedups.get(name)}
            row["runs"] = sum(run.status == "done" for run in runs)
            machines.append(bests | row)
    machines.sort(key=lambda row: -row["fastest"].value)
    return _Comparison(rates[0], machines, label, at)


def _fastest(rates: Sequence[_Rate]) -> _Rate:
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


def _speedups(rates: Sequence[_Rate]) -> tuple[str | None, dict[str, Estimate]]:
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
    slowest = min(
        sides, key=lambda name: statistics.geometric_mean(rate.value for rate in sides[name])
    )
    base = [rate.interval for rate in sides[slowest]]
    speedups = {slowest: Estimate(1.0)}
    for name, side in sides.items():
        if name != slowest:
            of = ratio(base, [rate.interval for rate in side], len(sides) - 1)
            # A single run does not say how the runs of its machine differ.
            repeated = min(len(base), len(side)) > 1
            speedups[name] = Estimate(*of) if repeated else Estimate(of.value)
    first = most[0].setting
    same = {name: value for name, value in first.items() if work.is_work(name)}
    others = [
        {name: rates[0].setting.get(name) for name in same if name != "batch_size"}
        for rates in shared.values()
    ]
    batch, more = first["batch_size"], work.differing(same, others)
    words = [most[0].run.precision, f"batch {batch:,.0f}" if batch else "", more]
    return ", ".join(filter(None, words)), speedups


def _score(runs: Sequence[ReportedRun]) -> _Best | None:
    bests = []
    for seeds in _seeds(runs):
        scored = [run for run in seeds if run.status == "done" and run.score is not None]
        if scored:
            failed = sum(run.status != "done" for run in seeds)
            of = estimate([run.score for run in scored])
            bests.append(_of_seeds(of, scored[0], f", {failed} failed" if failed else ""))
    return max(bests, key=lambda best: (best.is_result, best.of.value), default=None)


def _of_seeds(of: Estimate, run: ReportedRun, more: str = "") -> _Best:
    """Return a value over seeds, which is a result from five of them on."""
    return _Best(of, run, f"{of.n} seed{'s' * (of.n != 1)}{more}", of.n >= FEWEST_SEEDS)


def _seeds(runs: Iterable[ReportedRun]) -> Iterator[list[ReportedRun]]:
    """Yield the runs that differ only in their seed; of a seed that was run again, the first."""
    for same in work.grouped(runs, work.training_key).values():
        yield [repeats[0] for repeats in work.grouped(same, lambda run: run.sample).values()]


def _to_target(
    context: ReportContext, times: Mapping[ReportedRun, TimeToTarget]
) -> tuple[_Best | None, _Best | None]:
    """Return the shortest time to the target, and what it costs at the lowest price."""
    bests = {
        _of_seeds(estimate([times[run].time_s for run in seeds]), seeds[0]): seeds
        for seeds in _seeds(times)
    }
    best = min(bests, key=lambda best: (not best.is_result, best.of.value), default=None)
    price = best and context.prices.lowest(best.run)
    if price is None or best.of.value == math.inf:
        return best, None
    paid = estimate([usd(times[run].paid_s, price.usd_per_hour) for run in bests[best]])
    counted = ", ".join(filter(None, [best.counted, price_mark(price, best.run)]))
    return best, best._replace(of=paid, counted=counted)


def _energy(rates: Sequence[_Rate]) -> _Best | None:
    bests = [
        _Best(Estimate(joules), rate.run, "1 run", False)
        for rate in rates
        if (joules := rate.run.telemetry.get("joules_per_image")) is not None
        and rate.run.status == "done"
        and "scaling" not in rate.stage
    ]
    return min(bests, key=lambda best: best.of.value, default=None)
