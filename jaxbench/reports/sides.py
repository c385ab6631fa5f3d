"""The sides of a comparison: a run, repeats of one, or the trials of a sweep."""

import dataclasses
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.rate import (
    FEWEST_RUNS,
    Estimate,
    are_interleaved,
    design_doubts,
    rates_of,
    verdict,
)
from jaxbench.errors import BadInput
from jaxbench.metrics import plain
from jaxbench.modes.options import COORDINATOR_FLAGS
from jaxbench.records.reader import flat
from jaxbench.records.same import differing, is_other_work, others_of
from jaxbench.reports.collect import collect
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import grouped
from jaxbench.schema import EpochRecord
from jaxbench.terminal import printable

# An interval that ends at more than this many times the ratio says nothing.
_WIDEST = 100


@dataclasses.dataclass(frozen=True)
class Side:
    """Runs that are repeats of one another.

    Attributes:
      name: what the command line calls them.
      short: what reasons call them; A and B if it is empty.
    """

    name: str
    runs: Sequence[ReportedRun]
    short: str = ""

    host = property(lambda self: self.runs[0].host)
    starts = property(lambda self: [run.document.started_at for run in self.runs])
    is_done = property(lambda self: all(run.status == "done" for run in self.runs))

    def checked(self) -> "Side":
        """Return the side without its runs that are too short for a rate.

        Raises:
          BadInput: not all runs ended well and did the same, or one is a copy.
        """
        processes = set()
        for run in self.runs:
            process = run.host, run.document.pid, run.document.started_at
            if process in processes:
                raise BadInput(f"{run.path}: another run of {self.name} is a copy of it")
            processes.add(process)
            if run.status != "done":
                raise BadInput(
                    f"{run.path}: its status is {run.status} ({run.reason or 'no reason given'}); "
                    "only runs that are done can be compared"
                )
            if run.changed_devices:
                raise BadInput(
                    f"{run.path}: was resumed on other devices; its rate is of two machines"
                )
            if unlike := differences(self.runs[0], run):
                raise BadInput(
                    f"{self.name}: its runs are no repeats, they differ in {', '.join(unlike)}; "
                    "name one of them"
                )
        rated = [run for run in self.runs if _rates(run)]
        return dataclasses.replace(self, runs=rated or self.runs)

    def rates(self) -> dict[str, list[Estimate]]:
        """Return {stage: each repeat's rate} of the stages that all of them have."""
        each = [_rates(run) for run in self.runs]
        stages = [stage for stage in each[0] if all(stage in rates for rates in each)]
        return {stage: [rates[stage] for rates in each] for stage in stages}

    @property
    def other_cpu_percent(self) -> float | None:
        """What other processes took of the host's processor, at most; None if not all know."""
        hosts = [run.telemetry.get("devices", {}).get("host", {}) for run in self.runs]
        percents = [host.get("other_cpu_percent_mean") for host in hosts]
        return None if None in percents else max(percents)

    @property
    def doubt(self) -> str | None:
        """Why no run of its host can be believed; None if all can."""
        if doubts := dict.fromkeys(one for run in self.runs for one in run.doubts):
            return "; ".join(doubts)
        busy = [run.telemetry.get("host_busy") for run in self.runs]
        return "the load of the host is not known" if None in busy else None


def read_sides(*paths: str) -> dict[str, Side]:
    """Return the side that run directories, or folders of repeats, are; or a sweep's, by trial.

    Trials that differ in nothing but their seed are repeats.
    """
    collection = collect(paths)
    for run in collection.runs:
        run.check_measured()
    path = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not collection.runs and not collection.sweeps:
        raise BadInput(f"{path}: holds only cards; name each of them")
    if not collection.sweeps:
        return {"": Side(path, collection.runs)}
    sweep, *more = collection.sweeps
    if more or not all(run.path.is_relative_to(sweep.path) for run in collection.runs):
        raise BadInput(f"{path}: holds a sweep and more; name one of them")
    if sweep.problem:
        raise BadInput(sweep.problem)
    trials = grouped([run for run in [*collection.runs, *sweep.missing] if run.point], _label)
    return {
        label: Side(f"{path}: {label}" if label else path, runs) for label, runs in trials.items()
    }


def _label(trial: ReportedRun) -> str:
    return " ".join(f"{name}={value}" for name, value in others_of(trial.point, "seed").items())


def _rates(run: ReportedRun) -> dict[str, Estimate]:
    rates = rates_of(run)
    for stage, rate in rates.items():
        if rate.interval and not 0 < rate.interval[0] <= rate.span[0] <= rate.interval[1]:
            raise BadInput(f"{run.path}: its rate of {stage!r} is impossible: {rate.span}")
    return rates


def differences(first: ReportedRun, second: ReportedRun) -> dict[str, list[Any]]:
    """Return {field: [first's, second's]} of what two runs differ in, but their seed."""
    settings = [{**run.setting, "batch_size": run.batch_size} for run in (first, second)]
    return {name: [one.get(name) for one in settings] for name in differing(settings)}


class Match(NamedTuple):
    """Two sides that can be compared.

    Attributes:
      sides: what both are, and what they differ in.
      rates: {stage: each repeat's rate, of both sides} of the common stages.
      doubts: why there is no verdict; empty if there is one.
      same_work: whether repeats may lead to a verdict.
    """

    sides: Mapping[str, Any]
    rates: Mapping[str, tuple[Sequence[Estimate], Sequence[Estimate]]]
    doubts: Sequence[str]
    same_work: bool


def match(base: Side, other: Side) -> Match:
    """Return what two sides have measured, and what they differ in."""
    base, other = base.checked(), other.checked()
    feeds = base.runs[0].rate_feed, other.runs[0].rate_feed
    if feeds[0] != feeds[1]:
        raise BadInput(
            f"{base.name} was fed {feeds[0]}, {other.name} {feeds[1]}: those are two "
            "different figures"
        )
    first, second = base.rates(), other.rates()
    rates = {stage: (first[stage], second[stage]) for stage in first if stage in second}
    if not rates:
        raise BadInput(
            f"nothing that both have measured: {base.name} has {', '.join(first) or 'none'}, "
            f"{other.name} {', '.join(second) or 'none'} (stages of --mode=throughput, input or "
            "scaling, or training of two epochs and more)"
        )
    unlike = differences(base.runs[0], other.runs[0])
    # Hosts that are not known may be one.
    same_host = None in (base.host, other.host) or base.host == other.host
    starts = [(base.short or "A", base.starts), (other.short or "B", other.starts)]
    doubts = design_doubts(starts, same_host) + sorted({*filter(None, (base.doubt, other.doubt))})
    if other_work := [name for name in unlike if is_other_work(name)]:
        doubts = [f"they differ in {', '.join(other_work)}"]
    sides = {
        "base": base.name,
        "other": other.name,
        "runs": [len(base.runs), len(other.runs)],
        "other_cpu_percent": [base.other_cpu_percent, other.other_cpu_percent],
        "same_host": same_host,
        "interleaved": are_interleaved(base.starts, other.starts),
        "differences": unlike,
        "losses": compare_losses(base, other),
    }
    return Match(sides, rates, doubts, not other_work)


def compare_losses(base: Side, other: Side) -> dict[str, int | None] | None:
    """Return from which epoch on the losses of equal trainings differ in any digit, if they do.

    Equal trainings have the same experiment and seed; machines, versions and flags may differ.
    None if the sides have no such pair.
    """
    epochs, differing_epochs = [], []
    for first, second in itertools.product(base.runs, other.runs):
        if first.config != second.config:
            continue
        sides = (run.of_kind(EpochRecord) for run in (first, second))
        losses = [[(one.train_loss, one.eval_loss) for one in side] for side in sides]
        pairs = list(zip(*losses, strict=False))
        epochs.append(len(pairs))
        differing_epochs += [epoch for epoch, pair in enumerate(pairs, 1) if pair[0] != pair[1]][:1]
    if not (epochs := [*filter(None, epochs)]):
        return None
    return {"epochs": min(epochs), "differ_from_epoch": min(differing_epochs, default=None)}


def match_trials(base: Mapping[str, Side], other: Mapping[str, Side]) -> list[Match | str]:
    """Return the match of each trial, or why there is none."""
    if list(base) == list(other) == [""]:
        return [match_or_reason(base[""], other[""])]
    if "" in {*base, *other} or not base or not other:
        return ["a sweep is compared with a sweep, a run with a run"]
    return [
        match_or_reason(base[label], other[label], f"{label}: ")
        if label in base and label in other
        else f"{label}: only one of the sweeps has it"
        for label in dict.fromkeys([*base, *other])
    ]


def match_settings(sweep: Mapping[str, Side]) -> list[Match | str]:
    """Return the match of a sweep's first setting with each other one, or why there is none.

    A setting with a trial that is not done is not the first.
    """
    base, *others = sorted(sweep.values(), key=lambda side: not side.is_done)
    if not others:
        raise BadInput(f"{base.name}: is one setting; give what to compare it with")
    return [match_or_reason(base, other) for other in others]


def match_or_reason(base: Side, other: Side, prefix: str = "") -> Match | str:
    """Return the match of two sides, or why there is none."""
    try:
        return match(base, other)
    except BadInput as error:
        return f"{prefix}{error}"


def how_to_repeat(base: Side, other: Side) -> str:
    """Return a sentence on how to measure two sides so that a verdict is possible.

    With repeats enough, it says what else to do, if that is known.
    It has a command if that gives both settings for sure: they differ only in fields of their
    experiment, and the command of the base is recorded whole.
    """
    if min(len(base.runs), len(other.runs)) >= FEWEST_RUNS and (
        base.host != other.host or are_interleaved(base.starts, other.starts)
    ):
        busy = {run.telemetry.get("host_busy") for run in (*base.runs, *other.runs)}
        if None not in busy:
            return "End the other work on the host, and measure again." if True in busy else ""
    first, second = base.runs[0], other.runs[0]
    line, spec = first.document.command_line, f"--experiment={first.experiment}"
    arguments = line[line.index(spec) + 1 :] if spec in line else [spec]
    is_whole = all(one.startswith("--no") or re.match("--[^=]+=", one) for one in arguments)
    # Variables are no part of the command line, and a sweep does not start several processes.
    is_whole &= not first.setting["XLA_FLAGS"]
    is_whole &= not any(one.lstrip("-").partition("=")[0] in COORDINATOR_FLAGS for one in arguments)
    is_whole &= (first.environment.get("num_processes") or 1) == 1
    configs = [dict(flat(run.config)) for run in (first, second)]
    axes = {name: [str(one.get(name)) for one in configs] for name in differences(first, second)}
    is_grid = all(
        len({*values}) == 2 and not any(re.search("^None$|[,`]", one) for one in values)
        for values in axes.values()
    )
    if spec not in line or not (axes and is_whole and is_grid):
        return "Measure both three times, interleaved: see docs/howto/compare.md."
    # Without readings nobody knows the load of the host.
    swept = {"--workdir", "--json", "--resume", "--telemetry_s"}
    swept |= {f"--experiment.{name}" for name in (*axes, "seed")}
    kept = [one for one in arguments if one.partition("=")[0] not in swept]
    grid = [f"--grid={name}={','.join(values)}" for name, values in axes.items()]
    command = shlex.join(["jaxbench", "sweep", spec, *kept, *grid, "--repeats=3"])
    which = "both" if len(axes) == 1 else "every combination"
    return f"Repeat {which} three times, interleaved, and report the new folder: `{command}`."


def judge(matches: Sequence[Match], num_verdicts: int = 0) -> list[dict[str, Any]]:
    """Return what two sides differ in, and {stage: other / base, its interval and a verdict}.

    It is inconclusive for other work, on a host that was busy or whose load nobody knows, and if
    `design_doubts` objects.

    Args:
      num_verdicts: how many ratios are judged together, so that all their intervals hold at 95 %;
        0 for all ratios of `matches`.
    """
    num_verdicts = num_verdicts or count_verdicts(matches)
    comparisons = []
    for match in matches:
        stages = {}
        for stage, sides in match.rates.items():
            judged = verdict(*sides, match.doubts, max(1, num_verdicts))
            stages[stage] = {
                "images_per_s": [[rate.value for rate in side] for side in sides],
                **judged.ratio.fields("ratio"),
                "verdict": judged.outcome,
                "reasons": judged.reasons,
            }
        comparisons.append({**match.sides, "num_verdicts": num_verdicts, "stages": stages})
    return comparisons


def count_verdicts(matches: Sequence[Match]) -> int:
    """Return how many ratios of some matches get a verdict."""
    return sum(len(match.rates) for match in matches if not match.doubts)


def ratio_words(stage: Mapping[str, Any]) -> str:
    """Return the ratio of a stage with its interval."""
    if stage["ratio_low"] is None:
        return "{ratio:.3f} (no interval)".format(**stage)
    if stage["ratio_high"] > _WIDEST * stage["ratio"]:
        return "{ratio:.3f} (too few runs for an interval)".format(**stage)
    return "{ratio:.3f} ({ratio_low:.3f} to {ratio_high:.3f})".format(**stage)


def describe_comparison(comparison: Mapping[str, Any]) -> list[str]:
    """Return the lines of what `judge` returned, for a console."""
    lines = []
    for name, letter, index in (("base", "A", 0), ("other", "B", 1)):
        runs, percent = (comparison[key][index] for key in ("runs", "other_cpu_percent"))
        load = "an unknown fraction" if percent is None else f"{percent:.0f} %"
        repeats = f"{runs} runs; " if runs > 1 else ""
        side = printable(comparison[name])
        lines.append(f"{letter} {side} ({repeats}other processes took {load} of its host)")
    for name, (first, second) in comparison["differences"].items():
        lines.append(printable(f"differs: {name}: {first} / {second}"))
    for stage, figures in comparison["stages"].items():
        first, second = (", ".join(map(plain, rates)) for rates in figures["images_per_s"])
        lines.append(
            f"{stage:<17} A {first}; B {second} images/s; B / A {ratio_words(figures)}: "
            + ": ".join(filter(None, (figures["verdict"], "; ".join(figures["reasons"]))))
        )
    if losses := comparison["losses"]:
        epoch = losses["differ_from_epoch"]
        equal = f"equal, digit for digit, in all {losses['epochs']} epochs"
        lines.append(f"{'losses':<17} {f'differ from epoch {epoch} on' if epoch else equal}")
    if not comparison["same_host"]:
        lines.append(
            "A and B ran on different hosts: the day, clocks and temperature of each host are part "
            "of the ratio and not of its interval."
        )
    return lines
