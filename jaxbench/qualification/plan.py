"""How the minutes are split over the parts of a card."""

import dataclasses
import math
from collections.abc import Iterator

from jaxbench.errors import BadInput

FEWEST_MINUTES, MOST_MINUTES = 1.0, 7 * 24 * 60.0
POWER_CURVE = "power_curve"
# What a part takes at least, in seconds, the most important part first.
_LEAST_S = {
    **{"doctor": 5.0, "networks": 40.0, "ceilings": 30.0, "soak": 10.0, "collectives": 20.0},
    **{"storage": 20.0},
}
# Small networks and small matrices compile quickly.
_LEAST_ON_CPU_S = _LEAST_S | {"networks": 20.0, "ceilings": 10.0, "collectives": 8.0}
_LIMIT_S = 20.0  # of each power limit
# Shares of what is left then, and how much more a part can use.
_SHARES = {"ceilings": (0.2, 80.0), "collectives": (0.1, 50.0), "networks": (0.5, 1800.0)}
# In the order in which they run.
ORDER = ("doctor", "ceilings", "collectives", "networks", "soak", "storage", POWER_CURVE)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Seconds for each part, in the order in which they run.

    `skipped` is {part: why it does not run}. If `soak_is_fixed`, the soak takes its seconds in any
    case, and not what the others leave.
    """

    times_s: dict[str, float]
    skipped: dict[str, str]
    soak_is_fixed: bool = False

    @property
    def total_s(self) -> float:
        return sum(self.times_s.values())

    def soak_s(self, passed_s: float) -> float:
        """Return the seconds left for the soak, `passed_s` after the start."""
        planned_s = self.times_s["soak"]
        if self.soak_is_fixed:
            return planned_s
        after_s = sum(self.times_s.get(name, 0.0) for name in ORDER[ORDER.index("soak") + 1 :])
        return max(self.total_s - after_s - passed_s, min(planned_s, _LEAST_S["soak"]))

    def lines(self) -> Iterator[str]:
        """Yield what a user is told before it starts."""
        parts = ", ".join(f"{_words(name)} {time_s:.0f} s" for name, time_s in self.times_s.items())
        yield f"plan: {parts}"
        for name, reason in self.skipped.items():
            yield f"  not {_words(name)}: {reason}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _check_minutes(minutes: float, soak_minutes: float | None) -> None:
    if not FEWEST_MINUTES <= minutes <= MOST_MINUTES:  # nan fails it too
        raise BadInput(
            f"--minutes={minutes:g}: must be {FEWEST_MINUTES:g} at least, {MOST_MINUTES:g} at most"
        )
    if soak_minutes is not None and not 0 <= soak_minutes <= minutes:
        raise BadInput(f"--soak_minutes={soak_minutes:g}: must lie within 0 and --minutes")


def make_links_plan(minutes: float) -> Plan:
    """Return the plan of several processes together: collectives and pairs only."""
    _check_minutes(minutes, None)
    reason = "not measured over several processes"
    others = (name for name in ORDER if name not in ("collectives", POWER_CURVE))
    _, most_s = _SHARES["collectives"]
    most_s += _LEAST_S["collectives"]
    return Plan({"collectives": min(60 * minutes, most_s)}, dict.fromkeys(others, reason))


def make_plan(
    minutes: float,
    *,
    num_devices: int,
    on_cpu: bool,
    soak_minutes: float | None = None,
    storage: bool = False,
    power_limits: int = 0,
) -> Plan:
    """Split the minutes over the parts.

    Args:
      soak_minutes: of the soak; None for what the others leave.
      power_limits: number of points of the power curve.

    Raises:
      BadInput: minutes are too few for a card, or for what was asked for.
    """
    _check_minutes(minutes, soak_minutes)
    least_s, skipped = dict(_LEAST_ON_CPU_S if on_cpu else _LEAST_S), {}
    if soak_minutes is not None:
        least_s["soak"] = 60 * soak_minutes
        if not soak_minutes:
            skipped["soak"] = "--soak_minutes=0"
    if num_devices < 2:
        skipped["collectives"] = "there is one device"
    if not storage:
        skipped["storage"] = "give --storage to measure it"
    if power_limits:
        least_s[POWER_CURVE] = power_limits * _LIMIT_S
    times_s: dict[str, float] = {}
    left_s = 60 * minutes
    # What was asked for by a flag comes before what every card has.
    flags = {POWER_CURVE: power_limits, "soak": soak_minutes, "storage": storage}
    asked = [name for name, flag in flags.items() if flag]
    if (asked_s := sum(least_s[name] for name in asked)) > 60 * minutes:
        named = ", ".join(f"{_words(name)} {least_s[name]:.0f} s" for name in asked)
        raise BadInput(
            f"--minutes={minutes:g}: too few for what the flags ask for ({named}); "
            f"give {math.ceil(asked_s / 60)} at least"
        )
    for name in dict.fromkeys([*asked, *least_s]):
        if name not in skipped and least_s[name] > left_s:
            skipped[name] = f"it takes {least_s[name]:.0f} s, {left_s:.0f} s are left"
        if name not in skipped:
            times_s[name] = least_s[name]
            left_s -= least_s[name]
    spare_s = left_s
    for name, (share, most_s) in _SHARES.items():
        if name in times_s:
            more_s = min(share * spare_s, most_s)
            times_s[name] += more_s
            left_s -= more_s
    if "soak" in times_s and soak_minutes is None:
        times_s["soak"] += left_s
    ordered_s = {name: times_s[name] for name in ORDER if name in times_s}
    return Plan(ordered_s, skipped, soak_minutes is not None)
