"""Judge a card by the limits of thresholds.csv.

A finding is `pass`, `warn` or `fail`. It is `not_judged` if nothing is known to judge by, as on a
CPU, which has no published peak; `inconclusive` instead of `warn` and `fail` if other work on the
host or a setting for debugging may be the cause, and instead of `pass` if its interval reaches
beyond the gravest limit; and `incomplete` of a part that every card has, or a network of the
preset, that was not measured. The outcome of the card is the first of these that holds: `fail` if a
finding is, `inconclusive` if one is or the load of the host is not known, `incomplete`, `warn`,
`pass`. The exit code is 1 for `fail` only.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

from jaxbench.cards.card import Card, Figure, Finding, Outcome, Part, Verdict
from jaxbench.cards.figures import FIGURES, MATMULS, MEMORY
from jaxbench.files import read_table
from jaxbench.hardware.system import is_disturbed
from jaxbench.terminal import four_digits

_OUTCOMES = get_args(Outcome)
# {rule: {level: limit}}; the graver level is the last.
LIMITS: dict[str, dict[str, float]] = {}
for _row in read_table(__file__, "thresholds.csv"):
    LIMITS.setdefault(_row["name"], {})[_row["level"]] = float(_row["limit"])
# Rules that no other work disturbs.
_UNDISTURBED = ("problems", "warnings", "board_faults", "errors", "corrected_errors", "mismatches")
_BOARD_FAULTS = ("ecc_uncorrected", "row_remapping_pending", "row_remapping_failed")


class _Judged(NamedTuple):
    """A value that a rule judges: the better end of its interval, its name, and the worse end."""

    value: float
    name: str
    worse: float = 0.0


def _values_of(figures: Iterable[Figure], chosen: Callable[[Any], bool]) -> Iterator[_Judged]:
    """Yield figures whose only label is a chosen one."""
    return (_Judged(one.value, str(one)) for one in figures if chosen(*one.labels.values()))


def _slowdown(part: Part) -> Iterator[_Judged]:
    for figure in part.named("drift_percent"):
        worse, better = (max(0.0, -end) for end in figure.ends)
        yield _Judged(better, str(figure), worse)


def _below(part: Part, basis: str) -> Iterator[_Judged]:
    """Yield how far rates are below what was expected of them, by one basis."""
    for figure in part.figures:
        one = figure.expected
        if one and one.basis == basis:
            better, worse = (max(0.0, 1 - end / one.low) for end in figure.ends[::-1])
            yield _Judged(better, f"{figure}: {four_digits(figure.value)}, expected {one}", worse)


def _spreads(part: Part, names: Sequence[str]) -> Iterator[_Judged]:
    for name in names:
        figures = [one for one in part.named(name) if one.ends[0] > 0]
        if len(figures) > 1:
            worst = min(figures, key=lambda figure: figure.ends[1])
            best = max(figures, key=lambda figure: figure.ends[0])
            pairs = itertools.permutations(figures, 2)
            worse = max(one.ends[1] / other.ends[0] - 1 for one, other in pairs)
            spread = max(0.0, best.ends[0] / worst.ends[1] - 1)
            yield _Judged(spread, f"{name}, slowest: device {worst.device}", worse)


def _new_errors(part: Part, corrected: bool) -> Iterator[_Judged]:
    before = {(one.device, one.labels["counter"]): one for one in part.named("errors_before")}
    for after in part.named("errors_after"):
        counter = str(after.labels["counter"])
        # Replays and corrected errors harm no result.
        is_corrected = "replay" in counter or "_corrected" in counter
        if is_corrected == corrected and (first := before.get((after.device, counter))):
            name = str(after).removeprefix("errors_after, ")
            yield _Judged(after.value - first.value, name)


def _mismatches(part: Part) -> Iterator[_Judged]:
    """Yield the results that differ, of all devices together, and name the first."""
    counted = [*part.named("mismatches")]
    named = [*part.named("mismatched_values")]
    text = "results that differ"
    if first := min(named, key=lambda one: one.labels["round"], default=None):
        # If two devices disagree, either may be wrong.
        devices = " and ".join(str(one.device) for one in named if one.labels == first.labels)
        text += (
            f"; first: device {devices}, round {first.labels['round']}, tensor "
            f"{first.labels['tensor']!s:.60}, {_shown(first.value)} elements"
        )
    if counted:
        yield _Judged(sum(figure.value for figure in counted), text)


def _checks(part: Part, status: str) -> Iterator[_Judged]:
    if part.checks:
        names = [check.name for check in part.checks if check.status == status]
        yield _Judged(len(names), ", ".join(names) or f"checks: {len(part.checks)}")


def _values(part: Part) -> dict[str, Iterator[_Judged]]:
    """Return what is judged of a part, by the rule of thresholds.csv."""
    below = {
        "slower_than_fleet": _below(part, "fleet"),
        "slower_than_predicted": _below(part, "predicted"),
        "below_floor": _below(part, "floor"),
    }
    match part.name:
        case "networks" | "collectives":
            return below
        case "doctor":
            return {"problems": _checks(part, "problem"), "warnings": _checks(part, "warning")}
        case "ceilings":
            return below | {
                "device_spread": _spreads(part, (*MATMULS, *MEMORY)),
                "transfer_spread": _spreads(part, ("h2d_gb_per_s", "d2h_gb_per_s")),
            }
        case "soak":
            throttled = part.named("throttled_share")
            counters = part.named("errors_before", "errors_after")
            return {
                "slowdown_percent": _slowdown(part),
                # A power cap is normal on most boards.
                "throttled_share": _values_of(throttled, lambda why: why != "sw_power_cap"),
                # Any count says that the board is to be reset or replaced.
                "board_faults": _values_of(counters, lambda counter: counter in _BOARD_FAULTS),
                "errors": _new_errors(part, corrected=False),
                "corrected_errors": _new_errors(part, corrected=True),
            }
        case "corruption":
            return {"mismatches": _mismatches(part)}
    return {}


def judge(card: Card) -> Verdict:
    """Return what the rules say of a card, whose rates have their expectations."""
    findings = [*_disturbed(card)]
    disturbed = findings[0].text.partition(":")[0] if findings else ""
    for part in card.parts:
        findings += _missing(part, card)
        if part.status == "measured":
            findings += [
                Finding(part.name, rule, *_apply(rule, [*values], disturbed))  # type: ignore[arg-type]
                for rule, values in _values(part).items()
            ]
    statuses: Iterator[Outcome] = (finding.status for finding in findings)
    outcome: Outcome = min(statuses, key=_OUTCOMES.index, default="not_judged")
    return Verdict(outcome, tuple(findings))


def _missing(part: Part, card: Card) -> Iterator[Finding]:
    """Yield that a part failed, or that all or some of it was not measured."""
    has_no_links = part.name == "collectives" and card.environment["num_devices"] < 2
    status: Any = "not_judged" if has_no_links else "incomplete"
    if part.status == "failed":
        yield Finding(part.name, "status", "fail", f"failed: {part.reason}")
    elif part.status == "skipped":
        yield Finding(part.name, "status", status, f"skipped: {part.reason}")
    elif not part.figures and not part.checks:
        yield Finding(part.name, "status", status, "nothing was measured")
    else:
        # Networks that there was no time or memory for.
        for check in part.checks if part.name == "networks" else ():
            if check.status != "ok":
                yield Finding(part.name, "status", status, f"{check.name}: {check.detail}")
        measured = {(figure.name, figure.device) for figure in part.figures}
        names = {name for name, _ in measured}
        needed = [one.name for one in FIGURES.values() if one.is_needed and one.part == part.name]
        missing = [name for name in needed if name not in names]
        # Of simulated devices only the first is measured.
        if part.name == "ceilings" and card.environment["backend"] != "cpu":
            ids = [device["id"] for device in card.environment["devices"]]
            pairs = itertools.product(sorted(names), ids)
            missing += [f"{name}, device {n}" for name, n in pairs if (name, n) not in measured]
        if missing:
            yield Finding(part.name, "status", status, f"not measured: {', '.join(missing)}")


def _disturbed(card: Card) -> Iterator[Finding]:
    """Yield why figures of this host say nothing."""
    if distorters := card.environment.get("distorters"):
        text = f"rates are distorted: {'; '.join(distorters)}"
        yield Finding("host", "distorters", "inconclusive", text)
    on_cpu, busy = card.environment["backend"] == "cpu", card.load.cpu_percent
    busy = 100.0 if busy is None else busy
    for rule in ("other_cpu_percent", "other_gpu_processes"):
        value, limit = getattr(card.load, rule), LIMITS[rule]["inconclusive"]
        # Without a GPU nobody counts its processes.
        if value is None and rule == "other_gpu_processes":
            continue
        if value is None:
            yield Finding("host", rule, "inconclusive", "the load of the host is not known")
        elif value > limit and (rule == "other_gpu_processes" or is_disturbed(value, busy, on_cpu)):
            text = f"the host was busy: {_shown(value)}, limit {limit:g}"
            yield Finding("host", rule, "inconclusive", text)


def _apply(rule: str, values: Sequence[_Judged], disturbed: str) -> tuple[str, str]:
    """Return what a rule says by the worst of its values, and why."""
    limits = LIMITS[rule]
    if not values:
        return "not_judged", "not measured, or nothing is published to judge it by"
    worst = max(values, key=lambda one: one.value)
    passed = [level for level, limit in limits.items() if worst.value > limit]
    limit = limits[passed[-1]] if passed else next(iter(limits.values()))
    text = f"{_shown(worst.value)} ({worst.name}); most {limit:g}"
    if passed:
        if more := sum(one.value > limit for one in values) - 1:
            text += f"; {more} more of {len(values)} beyond it"
        if disturbed and rule not in _UNDISTURBED:
            return "inconclusive", f"{text}; {disturbed}"
        return passed[-1], text
    *_, gravest = limits.values()
    one = max(values, key=lambda one: one.worse)
    if one.worse > gravest:
        return "inconclusive", (
            f"{_shown(one.value)} to {_shown(one.worse)} ({one.name}): too uncertain to tell "
            f"whether it is within {gravest:g}"
        )
    return "pass", text


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


def summary_of(card: Card) -> str:
    """Return how the card's rates compare with what was expected of them, and by what."""
    figures = [(one, one.expected) for one in card.figures() if one.expected]
    if not figures:
        return "no expectation"
    bases = {"fleet": "cards of its kind", "predicted": "published rates", "floor": "floors"}
    by = ", ".join(dict.fromkeys(bases[expected.basis] for _, expected in figures))
    slower = [pair for pair in figures if pair[0].comparison == "slower"]
    if not slower:
        return f"as expected (by {by})"
    worst, _ = min(slower, key=lambda pair: pair[0].value / pair[1].low)
    most = ", at most" * (len(slower) > 1)
    return f"{len(slower)} of {len(figures)} rates {worst.comparison_text}{most}"
