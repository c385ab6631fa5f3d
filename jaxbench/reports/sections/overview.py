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
from jaxbench.analysis.statistics import (
    FEWEST_RUNS,
    Estimate,
    bar_words,
    estimate,
    of_windows,
    over_runs,
)
from jaxbench.metrics import METRICS, UNKNOWN, clock_time, count, percent, plain
from jaxbench.records.schema import ScalingRecord
from jaxbench.reports import work
from jaxbench.reports.blocks import Answer, Dot, DotChart, Section, Tile
from jaxbench.reports.columns import run_cell
from jaxbench.reports.context import STAGES, ReportContext, make_section
from jaxbench.reports.prices import price_mark
from jaxbench.reports.runs import FEWEST_SEEDS, NEVER_REACHED, SCORES, ReportedRun, TimeToTarget
from jaxbench.reports.sections.runs import trust
from jaxbench.tables.columns import Cell, Column, interval, metric_column, span
from jaxbench.tables.table import make_table

# What fits on a screen or two; further rows are folded.
_MOST_ROWS = 30
# Machines with large values; settings in the chart.
_MOST_ANSWERS, _MOST_DOTS = 3, 12
_NOTE = (
    "images/s: of all devices; the median of a run, or the geometric mean of three or more. Score "
    "and time to the target: medians over seeds; those that failed never get there. USD: at the "
    "lowest known price. In brackets: the 95 % interval and what it is of. Grey: no interval, or "
    "fewer than five seeds. Speed-up: over the slowest machine at equal work."
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
    """Return what each machine came to, a chart, warnings, and a table by experiment and feed."""
    comparisons = _compare_machines(context)
    headed = [*zip(comparisons, _headings(comparisons), strict=True)]
    answers: dict[str, Answer] = {}
    for one, heading in headed:
        for row in one.machines:
            if len(answers) < _MOST_ANSWERS and row["name"] not in answers:
                answers[row["name"]] = _answer(row, one, heading)
    totals = itertools.accumulate(len(one.machines) for one in comparisons)
    first = max(1, sum(total <= _MOST_ROWS for total in totals))
    parts = {"Best of each machine": headed[:first], "Further experiments": headed[first:]}
    tables = []
    for title, part in parts.items():
        rows = [
            row | {"heading": heading + _speedup_words(one)}
            for one, heading in part
            for row in one.machines
        ]
        columns = _columns([one for one, _ in part])
        table = make_table(columns, rows, title, group=lambda row: row["heading"])
        is_above = len(rows) <= len(answers)
        folded, note = bool(tables) or is_above, "" if tables else _NOTE
        tables.append(table._replace(folded=folded, note=note))
    return make_section(
        "overview",
        "Overview",
        "The best values of each machine. Whole trainings are not mixed with single training "
        "steps, nor one feed with another.",
        [*trust(context), *answers.values(), *_chart(comparisons), *tables],
    )


def _answer(row: dict[str, Any], comparison: _Comparison, heading: str) -> Answer:
    """Return the best values of a machine, and a sentence on what is fastest."""
    tiles = []
    titles = _titles([row], {*filter(None, [comparison.target])})
    for name, show in _SHOWS.items():
        if best := row[name]:
            value, details = _parts(best, show)
            tile = Tile(titles[name], value, "; ".join(details), best.run.id, best.is_result)
            tiles.append(tile)
    first, *others = row["settings"]
    sentence = f"No setting of {row['name']} has an interval yet: run longer, or three times."
    if first.has_interval:
        ends = interval(plain)(first.rate)
        is_fastest = "is fastest" if others else "is the only setting"
        sentence = f"{_setting_words(first)} {is_fastest}: {plain(first.value)} images/s ({ends})."
        if second := next((other for other in others if other.has_interval), None):
            overlap = (second.rate.high or 0.0) >= (first.rate.low or 0.0)
            apart = "their intervals overlap" if overlap else "their intervals do not overlap"
            sentence += f" Next is {_setting_words(second)}, {plain(second.value)}: {apart}."
    return Answer(f"{row['name']} · {heading}", sentence, tiles, _marks(first.run))


def _marks(run: ReportedRun) -> list[str]:
    """Return what makes the values of a run no figures of real work on an accelerator."""
    found = {
        "simulated devices": run.are_simulated(run.num_devices),
        "tiny network": run.experiment.endswith(":tiny"),
        "synthetic data": "synthetic" in (run.rate_feed, run.data_config.get("source")),
    }
    return [mark for mark, holds in found.items() if holds]


def _chart(comparisons: Sequence[_Comparison]) -> list[DotChart]:
    """Return the settings of the first work that has several, each with its interval."""
    for one in comparisons:
        rates = [rate for row in one.machines for rate in row["settings"] if rate.value]
        if len(rates) > 1:
            break
    else:
        return []
    rates = sorted(rates, key=lambda rate: rate.value)[-_MOST_DOTS:]
    dots = [
        Dot(f"{label}, {rate.run.id}", *rate.rate.span, tooltip=bar_words(rate.rate, rate.repeats))
        for label, rate in work.labelled(rates, lambda rate: rate.setting)
    ]
    run, x_label = one.first.run, METRICS["images_per_s"].heading
    note = (
        f"{run.network}; {run.data_of(run.rate_feed)}; bars: 95 % interval, "
        f"n = {span(rate.rate.n or 0 for rate in rates)} epochs, windows or runs; no bar: fewer "
        f"than {FEWEST_RUNS} runs and too few epochs or windows"
    )
    title = f"{run.experiment} · {one.first.stage} · {run.rate_feed} feed: {x_label} by setting"
    return [DotChart(title, note, x_label, dots)]


def _columns(comparisons: Sequence[_Comparison]) -> list[Column]:
    machines = [row for one in comparisons for row in one.machines]
    titles = _titles(machines, {one.target for one in comparisons if one.target})
    rate, *others = (
        Column(titles[name], _best(name, show), left=False) for name, show in _SHOWS.items()
    )
    return [
        Column("machine", "name"),
        *(rate, metric_column("speedup", _speedup), *others),
        Column("fastest with", lambda row: _setting_words(row["settings"][0])),
        Column("run", lambda row: run_cell(row["settings"][0].run.id)),
        metric_column("runs"),
    ]


def _titles(machines: Sequence[dict[str, Any]], targets: set[str]) -> dict[str, str]:
    """Return {value of a machine: its title}; scores and targets are named if they are all one."""
    scores = {SCORES[row["score"].run.score_field] for row in machines if row["score"]}
    score = scores.pop() if len(scores) == 1 else "score"
    target = targets.pop() if len(targets) == 1 else "the target"
    return {
        "rate": METRICS["images_per_s"].heading,
        "score": f"best {score} [%]",
        "time_s": f"{METRICS['duration_s'].title} to {target}",
        "usd": f"USD to {target}",
        "joules_per_image": METRICS["joules_per_image"].heading,
    }


def _best(name: str, show: Callable[[Any], str]) -> Callable[[dict[str, Any]], Cell]:
    def cell(row: dict[str, Any]) -> Cell:
        best: _Best | None = row[name]
        if best is None:
            return Cell(UNKNOWN)
        value, details = _parts(best, show)
        mark = "" if best.is_result else "soft"
        return Cell(f"{value} ({'; '.join(details)})", mark, run=best.run.id, sort=best.of.value)

    return cell


def _parts(best: _Best, show: Callable[[Any], str]) -> tuple[str, list[str]]:
    """Return a value, and its interval with what it is of."""
    ends = interval(show)(best.of)
    details = [ends, best.counted if best.is_result else f"only {best.counted}"]
    return show(best.of.value), [text for text in details if text != UNKNOWN]


def _time(time_s: float | None) -> str:
    """Show short times with their tenths: steps of a second would hide what differs."""
    if time_s == math.inf:
        return "never"
    return f"{time_s:.1f} s" if time_s is not None and time_s < 60 else clock_time(time_s)


# {value of a machine: how it is shown}.
_SHOWS = {
    "rate": plain,
    "score": percent,
    "time_s": _time,
    "usd": plain,
    "joules_per_image": plain,
}


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


def _setting_words(rate: _Rate) -> str:
    batch = rate.setting.get("batch_size")
    busy = rate.run.telemetry.get("host_busy") is True
    size = f"batch {count(batch)}" if batch else ""
    words = ", ".join(filter(None, (rate.run.precision, size)))
    return words + " (the host was busy)" * busy


def _headings(comparisons: Sequence[_Comparison]) -> Iterator[str]:
    """Yield the heading of each comparison; network and data too, if two would be alike."""
    runs = [one.first.run for one in comparisons]
    shorts = [
        f"{run.experiment} · {one.first.stage} · {run.rate_feed} feed"
        for run, one in zip(runs, comparisons, strict=True)
    ]
    for run, short in zip(runs, shorts, strict=True):
        more = f" · {run.network}; {run.data_of(run.rate_feed)}"
        yield short + more * (shorts.count(short) > 1)


def _speedup_words(comparison: _Comparison) -> str:
    if comparison.at:
        return f" · speed-up at {comparison.at}"
    alone = len(comparison.machines) < 2
    return "" if alone else " · no speed-up: no two machines did equal work"


def _compare_machines(context: ReportContext) -> list[_Comparison]:
    """Return the machines of each work; whole trainings come first, tiny networks last."""
    by_work = work.grouped(_rates(context), lambda rate: rate.work)
    experiments = [*dict.fromkeys(one.run.experiment for one in context.measurements)]
    stages = [*STAGES.values(), "weak scaling", "strong scaling"]
    comparisons = sorted(
        (_compare(context, rates) for rates in by_work.values()),
        key=lambda one: (
            one.first.run.experiment.endswith(":tiny"),
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
        settings = _settings(own_rates)
        times_here = {r: time for r, time in times.items() if r in runs and time.target == target}
        time_s, paid = _to_target(context, times_here)
        bests = {
            "rate": settings[0].best,
            "score": _score([run for run in trained if run in runs]),
            "time_s": time_s,
            "usd": paid,
            "joules_per_image": _energy(own_rates),
        }
        if any(bests.values()):
            row = {"name": name, "settings": settings, "speedup": speedups.get(name)}
            row["runs"] = sum(run.status == "done" for run in runs)
            machines.append(bests | row)
    machines.sort(key=lambda row: -row["settings"][0].value)
    return _Comparison(rates[0], machines, label, at)


def _settings(rates: Sequence[_Rate]) -> list[_Rate]:
    """Return the rate of each setting, the fastest with an interval first.

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
    return sorted(of_settings, key=lambda rate: (rate.has_interval, rate.value), reverse=True)


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
        # Nobody learns from synthetic images.
        scored = [run for run in seeds if run.status == "done" and run.score is not None]
        scored = [run for run in scored if run.data_config.get("source") != "synthetic"]
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
