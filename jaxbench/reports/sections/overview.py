"""The answers first: what each machine came to, and which setting is fastest there."""

import collections
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.pricing import usd
from jaxbench.analysis.rate import (
    FEWEST_SEEDS,
    Estimate,
    Outcome,
    of_repeats,
    of_seeds,
    of_windows,
    scaling_stage,
)
from jaxbench.metrics import UNKNOWN, clock_time, percent, plain
from jaxbench.records.same import chart_key, setting_key
from jaxbench.reports import work
from jaxbench.reports.blocks import Answer, Section
from jaxbench.reports.columns import run_cell
from jaxbench.reports.context import STAGES, ReportContext, make_section
from jaxbench.reports.prices import price_mark
from jaxbench.reports.runs import SCORES, ReportedRun, TimeToTarget
from jaxbench.reports.sections.runs import trust
from jaxbench.reports.sides import (
    Match,
    Side,
    count_verdicts,
    how_to_repeat,
    judge,
    match_or_reason,
    ratio_words,
)
from jaxbench.schema import METRICS, ScalingRecord
from jaxbench.tables.columns import Cell, Column, interval, metric_column
from jaxbench.tables.table import make_table

# Machines with large values; settings in a sentence.
_MOST_ANSWERS, _MOST_IN_SENTENCE = 3, 3
_NOTE = (
    "images/s: the highest rate of a setting, of all devices; the median of a run, or the "
    "geometric mean of several. Score, time and USD: geometric means over seeds; a median if a "
    "seed never reached the target. USD: at the lowest known price. In brackets: the 95 % interval "
    "and what it is of. Grey: no interval, or fewer than five seeds."
)


_NOT_IN_ALL = {
    "verdict": Outcome.INCONCLUSIVE,
    "reasons": ("not all runs of a setting have this rate",),
}


class _Best(NamedTuple):
    """A machine's value.

    Attributes:
      run: that it is of (of repeats, the first).
      counted: what it is of, such as "3 seeds", and what makes it doubtful.
      is_result: whether it has an interval, or seeds enough.
    """

    of: Estimate
    run: ReportedRun
    counted: str
    is_result: bool


@dataclasses.dataclass(frozen=True)
class _Rate:
    """A rate on a machine: of a run, or of all runs of a setting.

    Attributes:
      key: its name among `rates_of` a run.
      rate: without a value if a training failed.
      label: what tells the setting apart from the machine's others.
      tried: all runs of the setting, those that failed too.
      of: the key of the setting in the context's `runs_of_setting`.
      lost: why a run has no rate here though it has one, or failed; empty if it has a rate.
    """

    runs: Sequence[ReportedRun]
    machine: str
    stage: str
    key: str
    rate: Estimate
    setting: Mapping[str, Any]
    label: str = ""
    tried: Sequence[ReportedRun] = ()
    of: tuple = ()
    lost: str = ""

    run = property(lambda self: self.runs[0])
    data = property(lambda self: self.run.data_of(self.setting["feed"]))
    value = property(lambda self: self.rate.value or 0.0)

    @property
    def best(self) -> _Best | None:
        if self.rate.value is None:
            return None
        counted = self.rate.basis.partition(",")[0]
        return _Best(self.rate, self.run, counted, self.rate.interval is not None)

    @property
    def words(self) -> str:
        ends = f" ({interval(self.rate, plain)})" if self.rate.interval else ""
        return f"{plain(self.rate.value)} images/s{ends}"

    def __str__(self) -> str:
        return f"{self.label}: {self.words}"


def overview(context: ReportContext) -> Section | None:
    """Return warnings, what each machine came to, and a table by experiment and feed."""
    rows = _machines(context)
    first = {row["name"]: row for row in reversed(rows)}
    answered = [row for row in rows if first[row["name"]] is row][:_MOST_ANSWERS]
    # All that the page says of two settings holds together.
    matches = [_matches(row["settings"]) for row in answered]
    num_verdicts = count_verdicts([m for each in matches for m in each if isinstance(m, Match)])
    answers = [_answer(*one, num_verdicts) for one in zip(answered, matches, strict=True)]
    by_heading = operator.itemgetter("heading")
    table = make_table(_columns(rows), rows, "Each machine", _NOTE, group=by_heading)
    return make_section(
        "overview",
        "Overview",
        "The values of each machine. Whole trainings are not mixed with single training "
        "steps, nor one feed with another.",
        [*trust(context), *answers, table._replace(folded=len(rows) <= len(answers))],
    )


def _answer(row: dict[str, Any], matches: Sequence[Match | str], num_verdicts: int) -> Answer:
    """Return the values of a machine, and sentences on what is fastest and what is left out."""
    titles, settings = _titles([row]), row["settings"]
    tiles = [(titles[name], *_parts(row[name], show)) for name, show in _SHOWS.items() if row[name]]
    title = f"{row['name']} · {row['heading']}"
    sentence = _sentence(settings, matches, num_verdicts) + _left_out(settings)
    return Answer(title, sentence, tiles, _marks(settings[0]))


def _matches(settings: Sequence[_Rate]) -> list[Match | str]:
    """Return the match of each other setting with that of the highest rate, or why it has none."""
    sides = [Side(one.label, one.tried, one.label) for one in settings if one.value]
    return [match_or_reason(other, sides[0]) for other in sides[1:]]


def _left_out(settings: Sequence[_Rate]) -> str:
    """Say which settings have no run with a rate that can be used."""
    lost = [rate for rate in settings if rate.lost and not rate.value]
    words = []
    for rate in lost[:_MOST_IN_SENTENCE]:
        had = f", {plain(rate.run.rate.value)} images/s" if rate.run.rate.value else ""
        words.append(f"{rate.label} ({rate.lost}{had})")
    more = f", and {more} more" if (more := len(lost) - _MOST_IN_SENTENCE) > 0 else ""
    return f" Left out: {'; '.join(words)}{more}." if words else ""


def _sentence(settings: Sequence[_Rate], matches: Sequence[Match | str], num_verdicts: int) -> str:
    """Return which setting is fastest, if that is known; else the rates and what is missing."""
    first, *others = [rate for rate in settings if rate.value] or settings[:1]
    if not first.value and all(rate.lost for rate in settings):
        return "No rate that can be used."
    if not first.value:
        return "No rate: the first epoch is warm-up, so train for two epochs or more."
    if not others:
        return f"{first}. It is the only setting with a rate that can be used."
    comparisons = judge([one for one in matches if isinstance(one, Match)], num_verdicts)
    judged = iter(comparisons)
    # Without a match there is a reason. A step of scaling may have failed in one of the runs.
    stages = [
        next(judged)["stages"].get(first.key, _NOT_IN_ALL)
        if isinstance(one, Match)
        else {"verdict": Outcome.INCONCLUSIVE, "reasons": (one,)}
        for one in matches
    ]
    # The ratio of two alone has a narrower interval.
    together = f" {num_verdicts} ratios are judged together." if num_verdicts > 1 else ""
    if not all(one["same_host"] for one in comparisons):
        together += " Not all settings ran on one host."
    next_words = ""
    if stages[0]["verdict"] == Outcome.FASTER:
        next_words = f"its rate is {ratio_words(stages[0])} times that of {others[0].label}"
    if all(stage["verdict"] == Outcome.FASTER for stage in stages):
        return (
            f"{first.label} is fastest: {first.words}. Next is {others[0]}; {next_words}.{together}"
        )
    shown = "; ".join(map(str, (first, *others[: _MOST_IN_SENTENCE - 1])))
    if (more := len(others) + 1 - _MOST_IN_SENTENCE) > 0:
        shown += f"; and {more} more setting{'s' * (more > 1)}"
    if next_words:
        return f"{shown}. {first.label} is faster than {others[0].label}: {next_words}.{together}"
    if stages[0]["verdict"] == Outcome.NO_DIFFERENCE:
        ratio = ratio_words(stages[0])
        return f"{shown}. No significant difference between the first two: ratio {ratio}.{together}"
    reasons = "; ".join(stages[0]["reasons"])
    for run in (*first.tried, *others[0].tried):
        reasons = reasons.replace(str(run.path), run.id or run.name)
    one = matches[0]
    sides = [Side(rate.label, rate.tried) for rate in (first, others[0])]
    advice = how_to_repeat(*sides) if isinstance(one, Match) and one.same_work else ""
    return f"{shown}. Not compared: {reasons}. {advice}".rstrip()


def _marks(rate: _Rate) -> list[str]:
    """Return what makes a rate no rate of real work on an idle accelerator."""
    run = rate.run
    marks = {
        "simulated devices": run.are_simulated(rate.setting["num_devices"]),
        "tiny network": run.experiment.endswith(":tiny"),
        "synthetic data": "synthetic" in (run.rate_feed, run.data_config.get("source")),
    }
    doubts = dict.fromkeys(doubt for run in rate.runs for doubt in run.doubts)
    return [*(mark for mark, holds in marks.items() if holds), *doubts]


def _columns(rows: Sequence[dict[str, Any]]) -> list[Column]:
    titles = _titles(rows)
    return [
        Column("machine", "name"),
        *(Column(titles[name], _best(name, show), left=False) for name, show in _SHOWS.items()),
        Column("rate of", lambda row: row["settings"][0].label),
        Column("run", lambda row: run_cell(row["settings"][0].run.id)),
        metric_column("runs"),
    ]


def _titles(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return {value of a machine: its title}; scores and targets are named if they are all one."""
    scores = {SCORES[row["score"].run.score_field] for row in rows if row["score"]}
    targets = {row["target"] for row in rows if row["target"]}
    score = scores.pop() if len(scores) == 1 else "score"
    target = targets.pop() if len(targets) == 1 else "the target"
    return {
        "rate": METRICS["images_per_s"].heading,
        "score": f"{score} [%]",
        "time_s": f"{METRICS['duration_s'].title} to {target}",
        "usd": f"USD to {target}",
    }


def _best(name: str, show: Callable[[Any], str]) -> Callable[[dict[str, Any]], Cell]:
    def cell(row: dict[str, Any]) -> Cell:
        if row[name] is None:
            return Cell(UNKNOWN)
        value, details = _parts(row[name], show)
        return value._replace(text=f"{value.text} ({details})", sort=row[name].of.value)

    return cell


def _parts(best: _Best, show: Callable[[Any], str]) -> tuple[Cell, str]:
    """Return a value, grey if it is no result, and its interval with what it is of."""
    ends = interval(best.of, show)
    counted = best.counted if best.is_result else f"only {best.counted}"
    value = Cell(show(best.of.value), "" if best.is_result else "soft", run=best.run.id)
    return value, counted if ends == UNKNOWN else f"{ends}; {counted}"


def _time(time_s: float | None) -> str:
    """Show short times with their tenths: steps of a second would hide what differs."""
    if time_s == math.inf:
        return "never"
    return f"{time_s:.1f} s" if time_s is not None and time_s < 60 else clock_time(time_s)


# {value of a machine: how it is shown}.
_SHOWS: dict[str, Callable] = {"rate": plain, "score": percent, "time_s": _time, "usd": plain}


def _machines(context: ReportContext) -> list[dict[str, Any]]:
    """Return a row for each machine and work; whole trainings come first, tiny networks last."""
    experiments = [*dict.fromkeys(one.run.experiment for one in context.measurements)]
    works = sorted(
        # What must be equal if rates are compared: the network, the images, the stage.
        work.grouped(_rates(context), lambda one: chart_key(one.data, one.setting)).values(),
        key=lambda rates: (
            rates[0].run.experiment.endswith(":tiny"),
            experiments.index(rates[0].run.experiment),
            # Scaling is no stage of a step and comes last.
            [*STAGES.values(), rates[0].stage].index(rates[0].stage),
        ),
    )
    compared = [(rates[0], rows) for rates in works if (rows := _compare(context, rates))]
    shorts = [f"{a.run.experiment} · {a.stage} · {a.run.rate_feed} feed" for a, _ in compared]
    for short, (first, rows) in zip(shorts, compared, strict=True):
        # Network and data too, if two would be alike.
        more = f" · {first.run.network}; {first.run.data_of(first.run.rate_feed)}"
        for row in rows:
            row["heading"] = short + more * (shorts.count(short) > 1)
    return [row for _, rows in compared for row in rows]


def _rates(context: ReportContext) -> Iterator[_Rate]:
    """Yield the rates of trainings, training steps and scaling, of runs that ended well."""
    for one in context.measurements:
        run = one.run
        # A training too short for a rate may have come to a score, or to its target. One that
        # failed counts as a seed that failed. Of a run that is gone only a failure is known.
        has_content = run.mode == "train" or one.rate.value
        if one.stage in STAGES and has_content and (run.id or not one.usable):
            setting = {**one.setting, "batch_size": run.batch_size}
            why = {"done": "resumed on other devices"}.get(run.status, run.status)
            rate, lost = (one.rate, "") if one.usable else (Estimate(), why)
            stage, key = STAGES[one.stage], setting_key(setting)
            yield _Rate([run], run.machine, stage, one.stage, rate, setting, of=key, lost=lost)
    for run, record in context.of_kind(ScalingRecord):
        rate, stage = of_windows(record, "images_per_s"), f"{record.scaling} scaling"
        if run.status == "done" and rate.value:
            setting = run.setting | {"stage": stage, "batch_size": record.batch_size}
            setting["num_devices"] = record.num_devices
            machine, key = run.machine_of(record.num_devices), scaling_stage(record)
            # That of the run, which has several steps.
            of = setting_key({**run.setting, "batch_size": run.batch_size})
            yield _Rate([run], machine, stage, key, rate, setting, of=of)


def _compare(context: ReportContext, rates: Sequence[_Rate]) -> list[dict[str, Any]]:
    """Return the machines that did one kind of work, the highest rate first."""
    # A seed that failed counts.
    ended = [rate.run for rate in rates if rate.run.ended and not rate.run.changed_devices]
    trained = [run for run in ended if run.mode == "train"]
    times = {run: t for run in trained if (t := context.times_to_target.get(run)) and t.ended}
    labels = collections.Counter((time.target, time.label) for time in times.values())
    target, label = max(labels, key=labels.__getitem__, default=(None, None))
    machines = []
    for name, rates_of_machine in work.grouped(rates, lambda rate: rate.machine).items():
        runs = {rate.run for rate in rates_of_machine}
        settings = _settings(rates_of_machine, context)
        times_here = {r: time for r, time in times.items() if r in runs and time.target == target}
        time_s, paid = _to_target(context, times_here)
        score = _score([run for run in trained if run in runs])
        bests = {"rate": settings[0].best, "score": score, "time_s": time_s, "usd": paid}
        if any(bests.values()):
            row = {"name": name, "settings": settings, "target": label}
            machines.append(bests | row | {"runs": sum(run.status == "done" for run in runs)})
    return sorted(machines, key=lambda row: -row["settings"][0].value)


def _settings(rates: Sequence[_Rate], context: ReportContext) -> list[_Rate]:
    """Return the rate of each setting with its label, the highest first."""
    of_settings = []
    for same in work.grouped(rates, lambda rate: setting_key(rate.setting)).values():
        repeats = [rate for rate in same if rate.value] or same[:1]
        runs = [rate.run for rate in repeats]
        rate = of_repeats([one.rate for one in repeats])
        tried = [*dict.fromkeys((*runs, *context.runs_of_setting.get(same[0].of, ())))]
        of_settings.append(dataclasses.replace(repeats[0], rate=rate, runs=runs, tried=tried))
    always = ("precision", "batch_size")
    labels = work.labelled(of_settings, lambda rate: rate.setting, always)
    named = [dataclasses.replace(rate, label=label) for label, rate in labels]
    return sorted(named, key=lambda rate: rate.value, reverse=True)


def _score(runs: Sequence[ReportedRun]) -> _Best | None:
    bests = []
    for seeds in _seeds(runs):
        # Nobody learns from synthetic images.
        scored = [run for run in seeds if run.status == "done" and run.score is not None]
        scored = [run for run in scored if run.data_config.get("source") != "synthetic"]
        if scored:
            failed = sum(run.status != "done" for run in seeds)
            of = of_seeds([run.score for run in scored], 1.0)
            bests.append(_of_seeds(of, scored[0], f", {failed} failed" if failed else ""))
    return max(bests, key=lambda best: (best.is_result, best.of.value), default=None)


def _of_seeds(of: Estimate, run: ReportedRun, more: str = "") -> _Best:
    """Return a value over seeds, which is a result from five of them on."""
    return _Best(of, run, f"{of.n} seed{'s' * (of.n != 1)}{more}", (of.n or 0) >= FEWEST_SEEDS)


def _seeds(runs: Iterable[ReportedRun]) -> Iterator[list[ReportedRun]]:
    """Yield the runs that differ only in their seed."""
    for same in work.grouped(runs, lambda run: run.training_key).values():
        yield work.one_of_each_seed(same)


def _to_target(
    context: ReportContext, times: Mapping[ReportedRun, TimeToTarget]
) -> tuple[_Best | None, _Best | None]:
    """Return the shortest time to the target, and what it costs at the lowest price."""
    bests = {
        _of_seeds(of_seeds([times[run].time_s for run in seeds]), seeds[0]): seeds
        for seeds in _seeds(times)
    }
    best = min(bests, key=lambda best: (not best.is_result, best.of.value), default=None)
    if best is None or best.of.value == math.inf:
        return best, None
    if (price := context.prices.lowest(best.run)) is None:
        return best, None
    paid = of_seeds([usd(times[run].paid_s, price.usd_per_hour) for run in bests[best]])
    counted = ", ".join(filter(None, [best.counted, price_mark(price, best.run)]))
    return best, best._replace(of=paid, counted=counted)
