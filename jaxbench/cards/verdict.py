"""Judge a card by stated limits.

A finding is `pass`, `warn` or `fail`. It is `not_judged` if nothing is known to judge by, as on a
CPU, which has no published peak; `inconclusive` instead of `warn` and `fail` if other work on the
host may be the cause, and instead of `pass` if its interval reaches beyond the gravest limit; and
`incomplete` of a part of the standard set, or a network of the preset, that was not measured. The
outcome of the card is the first of these that holds: `fail` if a finding is, `inconclusive` if one
is or the load of the host is not known, `incomplete`, `warn`, `pass`. The exit code is 1 for `fail`
only.
"""

import collections
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxbench.cards.card import Card, Finding, HostLoad, Part, Verdict
from jaxbench.cards.figures import COLLECTIVES, FIGURES, MATMULS, MEMORY, PARTS
from jaxbench.cards.preset import PRESETS
from jaxbench.cards.thresholds import Thresholds, load_thresholds
from jaxbench.terminal import four_digits

OUTCOMES = ("fail", "inconclusive", "incomplete", "warn", "pass", "not_judged")
_TRANSFERS = ("h2d_gb_per_s", "d2h_gb_per_s")
_MOST_MISSING = 6
_POWER_CAP = "sw_power_cap"
_BOARD_FAULTS = ("ecc_uncorrected", "row_remapping_pending", "row_remapping_failed")


class Judged(NamedTuple):
    """The better end of a value's interval, what it is of, and the worse end if there is one."""

    value: float
    what: str
    worse: float | None = None


class Rule(NamedTuple):
    """How a part is judged by the limits of the rule's name in thresholds.csv.

    Attributes:
      values: yields what is judged.
      least: whether the limit is the least that is allowed, not the most.
      disturbed: whether other work on the host may be the cause.
      missing: why there may be nothing to judge.
    """

    name: str
    part: str
    values: Callable[[Part, Card], Iterator[Judged]]
    least: bool = False
    disturbed: bool = True
    missing: str = "not measured"


def _shares(*names: str) -> Callable[[Part, Card], Iterator[Judged]]:
    def values(part: Part, card: Card) -> Iterator[Judged]:
        for figure in part.named(*names):
            if figure.nominal is not None:
                worse, better = (end / figure.nominal for end in figure.ends)
                yield Judged(better, str(figure), worse)

    return values


def _spreads(*names: str) -> Callable[[Part, Card], Iterator[Judged]]:
    def values(part: Part, card: Card) -> Iterator[Judged]:
        # Simulated devices share one processor.
        for name in names if card.environment["backend"] != "cpu" else ():
            figures = [figure for figure in part.named(name) if figure.device is not None]
            if len(figures) > 1 and min(figure.ends[1] for figure in figures) > 0:
                worst = min(figures, key=lambda figure: figure.ends[1])
                best = max(figures, key=lambda figure: figure.ends[0])
                spread = max(0.0, best.ends[0] / worst.ends[1] - 1)
                worse = max(
                    one.ends[1] / other.ends[0] - 1 if other.ends[0] > 0 else math.inf
                    for one, other in itertools.permutations(figures, 2)
                )
                yield Judged(spread, f"{name}, slowest: device {worst.device}", worse)

    return values


def _slowdowns(part: Part, card: Card) -> Iterator[Judged]:
    for figure in part.named("drift_percent"):
        worse, better = (max(0.0, -end) for end in figure.ends)
        yield Judged(better, str(figure), worse)


def _throttled(by_power: bool) -> Callable[[Part, Card], Iterator[Judged]]:
    def values(part: Part, card: Card) -> Iterator[Judged]:
        for figure in part.named("throttled_share"):
            if (figure.labels["reason"] == _POWER_CAP) == by_power:
                yield Judged(figure.ends[0], str(figure), figure.ends[1])

    return values


def _new_errors(corrected: bool) -> Callable[[Part, Card], Iterator[Judged]]:
    def values(part: Part, card: Card) -> Iterator[Judged]:
        before = {figure.key[1:]: figure.value for figure in part.named("errors_before")}
        for figure in part.named("errors_after"):
            counter = str(figure.labels["counter"]).lower()
            # Replays and corrected errors harm no result.
            is_corrected = "corrected" in counter and "uncorrected" not in counter
            if figure.key[1:] in before and ("replay" in counter or is_corrected) == corrected:
                what = str(figure).removeprefix("errors_after, ")
                yield Judged(figure.value - before[figure.key[1:]], what)

    return values


def _board_faults(part: Part, card: Card) -> Iterator[Judged]:
    """Yield the counters of which any count says that the board is to be reset or replaced."""
    for figure in part.named("errors_before", "errors_after"):
        if figure.labels["counter"] in _BOARD_FAULTS:
            yield Judged(figure.value, str(figure))


def _mismatches(part: Part, card: Card) -> Iterator[Judged]:
    """Yield the results that differ, all devices together; some of them have a name."""
    counted = [figure for figure in part.named("mismatches") if figure.value]
    named = sorted(
        part.named("mismatched_values"), key=lambda figure: str(figure.labels["round"]).zfill(18)
    )
    count = max(sum(figure.value for figure in counted), len(named))
    what = "results that differ"
    for first in (named or counted)[:1]:
        what += f"; first: device {first.device}"
        if named:
            what += (
                f", round {first.labels['round']}, tensor {first.labels['tensor']!s:.60}, "
                f"{_shown(first.value)} elements"
            )
    if count > 1:
        what += f"; {_shown(count - 1)} more"
    if count or any(part.named("mismatches")):
        yield Judged(count, what)


def _checks(status: str) -> Callable[[Part, Card], Iterator[Judged]]:
    def values(part: Part, card: Card) -> Iterator[Judged]:
        if part.checks:
            names = [check.name for check in part.checks if check.status == status]
            yield Judged(len(names), ", ".join(names) or f"checks: {len(part.checks)}")

    return values


_NO_PEAK = "no published peak of these devices is known"
_ALONE = "it takes two devices or more, and simulated ones do not count"
_NO_READINGS = "the device does not tell"
RULES = (
    Rule("problems", "doctor", _checks("problem"), disturbed=False),
    Rule("warnings", "doctor", _checks("warning"), disturbed=False),
    Rule("matmul_share_of_nominal", "ceilings", _shares(*MATMULS), least=True, missing=_NO_PEAK),
    Rule("bandwidth_share_of_nominal", "ceilings", _shares(*MEMORY), least=True, missing=_NO_PEAK),
    Rule("device_spread", "ceilings", _spreads(*MATMULS, *MEMORY), missing=_ALONE),
    Rule("transfer_spread", "ceilings", _spreads(*_TRANSFERS), missing=_ALONE),
    Rule("slowdown_percent", "soak", _slowdowns),
    Rule("throttled_share", "soak", _throttled(False), missing=_NO_READINGS),
    Rule("power_capped_share", "soak", _throttled(True), missing=_NO_READINGS),
    Rule("board_faults", "soak", _board_faults, disturbed=False, missing=_NO_READINGS),
    Rule("errors", "soak", _new_errors(False), disturbed=False, missing=_NO_READINGS),
    Rule("corrected_errors", "soak", _new_errors(True), disturbed=False, missing=_NO_READINGS),
    Rule("mismatches", "corruption", _mismatches, disturbed=False),
)


def judge(card: Card, thresholds: Thresholds | None = None) -> Verdict:
    """Return what the rules say of a card.

    Args:
      thresholds: the limits; None for those that ship with jaxbench.
    """
    thresholds = load_thresholds() if thresholds is None else thresholds
    findings = [*_busy(card.load, thresholds)]
    is_busy = bool(findings)
    for name in PARTS:
        part = card.part(name)
        findings += _left_out(name, part, card)
        if part is None or part.status != "measured":
            continue
        rules = [rule for rule in RULES if rule.part == name]
        findings += [_apply(rule, part, card, thresholds, is_busy) for rule in rules]
        if not rules:
            text = "measured; there is no limit for its figures"
            findings.append(Finding(name, "status", "not_judged", text))
    statuses = {finding.status for finding in findings}
    outcome = next((status for status in OUTCOMES if status in statuses), "not_judged")
    return Verdict(outcome=outcome, findings=tuple(findings), thresholds=dict(thresholds))


def _left_out(name: str, part: Part | None, card: Card) -> Iterator[Finding]:
    """Yield that a part failed, or that all or some of it was not measured."""
    alone = name == "collectives" and card.environment["num_devices"] < 2
    status = "not_judged" if alone or name == "storage" else "incomplete"
    if part is None:
        if status == "incomplete":
            yield Finding(name, "status", status, "not in the card")
    elif part.status == "failed":
        yield Finding(name, "status", "fail", f"failed: {part.reason}")
    elif part.status == "skipped":
        yield Finding(name, "status", status, f"skipped: {part.reason}")
    elif not part.figures and not part.checks:
        yield Finding(name, "status", status, "nothing was measured")
    else:
        # Networks that there was no time or memory for.
        for check in part.checks if name == "networks" else ():
            if check.status != "ok":
                yield Finding(name, "status", status, f"{check.name}: {check.found}")
        if missing := [*_missing_figures(part, card)]:
            more = len(missing) - _MOST_MISSING
            text = ", ".join(missing[:_MOST_MISSING]) + (f" and {more} more" if more > 0 else "")
            yield Finding(name, "status", status, f"not measured: {text}")


def _missing_figures(part: Part, card: Card) -> Iterator[str]:
    """Yield what a part lacks that was measured; what its own notes name is left out."""
    devices = collections.defaultdict(set)
    for figure in part.figures:
        devices[figure.name].add(figure.device)
    needed = (one.name for one in FIGURES.values() if one.is_needed and one.part == part.name)
    yield from (name for name in needed if name not in devices)
    # Of simulated devices only the first is measured.
    if part.name == "ceilings" and card.environment["backend"] != "cpu":
        ids = [device["id"] for device in card.environment["devices"]]
        for name, measured in devices.items():
            yield from (f"{name}, device {one}" for one in ids if one not in measured)
    if part.name == "collectives":
        ran = {figure.labels["collective"] for figure in part.named("bus_gb_per_s")}
        yield from (name for name in COLLECTIVES if name not in ran)
    preset = PRESETS.get(card.preset) if part.name == "networks" else None
    notes = [f"{check.name}, {check.found}" for check in part.checks if check.status != "ok"]
    labels = [figure.labels for figure in part.named("images_per_s")]
    ran = {(one["network"], one["precision"]) for one in labels}
    for precision in preset.precisions if preset else ():
        for network in preset.networks:
            batch = network.batch_per_device * card.environment["num_devices"]
            name = f"{network.spec} {precision} {batch}"
            if (network.spec, precision) not in ran and not any(name in note for note in notes):
                yield name


def _busy(load: HostLoad, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield why figures of this host say nothing."""
    for rule in ("other_cpu_percent", "other_gpu_processes"):
        value, limit = getattr(load, rule), thresholds[f"{rule}.inconclusive"]
        # Where there is no GPU nobody counts its processes.
        if limit is None or (value is None and rule == "other_gpu_processes"):
            continue
        if value is None:
            yield Finding("host", rule, "inconclusive", "the load of the host is not known")
        elif value > limit:
            text = f"the host was busy: {_shown(value)}, limit {limit:g}"
            yield Finding("host", rule, "inconclusive", text)


def _apply(rule: Rule, part: Part, card: Card, limits: Thresholds, busy: bool) -> Finding:
    """Return what a rule says, by the worst of its values."""
    known = {level: limits.get(f"{rule.name}.{level}") for level in ("warn", "fail")}
    known = {level: limit for level, limit in known.items() if limit is not None}
    values = [*rule.values(part, card)]
    if not known or not values:
        why = rule.missing if known else "no limit is stated"
        return Finding(part.name, rule.name, "not_judged", why)

    def beyond(value: float, limit: float) -> bool:
        return value < limit if rule.least else value > limit

    worst = (min if rule.least else max)(values, key=lambda one: one.value)
    # The graver limit is looked at last.
    passed = [level for level, limit in known.items() if beyond(worst.value, limit)]
    status = passed[-1] if passed else "pass"
    limit = known[status] if passed else next(iter(known.values()))
    text = f"{_shown(worst.value)} ({worst.what}); {'least' if rule.least else 'most'} {limit:g}"
    if more := sum(beyond(one.value, limit) for one in values) - 1 if passed else 0:
        text += f"; {more} more of {len(values)} beyond it"
    if passed and busy and rule.disturbed:
        return Finding(part.name, rule.name, "inconclusive", f"{text}; the host was busy")
    *_, gravest = known.values()
    uncertain = [one for one in values if one.worse is not None and beyond(one.worse, gravest)]
    if not passed and uncertain:
        one = (min if rule.least else max)(uncertain, key=lambda one: one.worse)
        text = (
            f"{_shown(one.value)} to {_shown(one.worse)} ({one.what}): too uncertain to tell "
            f"whether it is within {gravest:g}"
        )
        return Finding(part.name, rule.name, "inconclusive", text)
    return Finding(part.name, rule.name, status, text)


def _shown(value: float) -> str:
    """Return a number; whole ones have no decimals."""
    return f"{value:,.0f}" if float(value).is_integer() else four_digits(value)


def failures(verdict: Verdict) -> list[str]:
    """Return a line for each failed finding; with one the exit code is 1, else 0."""
    return [
        f"{finding.part}: {finding.rule.replace('_', ' ')}: {finding.text}"
        for finding in verdict.findings
        if finding.status == "fail"
    ]
