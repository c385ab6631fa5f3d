"""How the minutes are split over the parts of a card, by parts.csv."""

import bisect
import dataclasses
import math
from collections.abc import Iterator

from jaxbench.cards.figures import PARTS
from jaxbench.errors import BadInput

FEWEST_MINUTES, MOST_MINUTES = 1.0, 7 * 24 * 60.0


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

    def part_s(self, name: str, passed_s: float) -> float:
        """Return the seconds of a part that begins `passed_s` after the start.

        A part gets what those before it have left. The soak gets less if they took more.
        """
        planned_s, names = self.times_s[name], [*self.times_s]
        left_s = sum(self.times_s[one] for one in names[: names.index(name)]) - passed_s
        if name != "soak":
            return planned_s + max(0.0, left_s)
        if self.soak_is_fixed:
            return planned_s
        return max(planned_s + left_s, min(planned_s, PARTS["soak"].least_s))

    def lines(self) -> Iterator[str]:
        """Yield what a user is told before it starts."""
        parts = ", ".join(f"{name} {time_s:.0f} s" for name, time_s in self.times_s.items())
        yield f"plan: {parts}"
        for name, reason in self.skipped.items():
            yield f"  not {name}: {reason}"


def make_plan(
    minutes: float,
    *,
    num_devices: int,
    on_cpu: bool,
    soak_minutes: float | None = None,
    only_doctor: str | None = None,
) -> Plan:
    """Split the minutes over the parts.

    Args:
      only_doctor: why nothing but the doctor runs, if so.

    Raises:
      BadInput: minutes are too few for a card.
    """
    if not FEWEST_MINUTES <= minutes <= MOST_MINUTES:  # nan fails it too
        raise BadInput(
            f"--minutes={minutes:g}: must be {FEWEST_MINUTES:g} at least, {MOST_MINUTES:g} at most"
        )
    if soak_minutes is not None and not 0 <= soak_minutes <= minutes:
        raise BadInput(f"--soak_minutes={soak_minutes:g}: must lie within 0 and --minutes")
    left_s, kinds = 60 * minutes, sorted(PARTS.values(), key=lambda kind: kind.priority)
    least_s = {
        kind.name: kind.least_on_cpu_s if on_cpu else kind.least_s
        for kind in kinds
        if not kind.measured_in
    }
    skipped = {name: only_doctor for name in least_s if only_doctor and name != "doctor"}
    if num_devices < 2:
        skipped["collectives"] = "there is one device"
    if soak_minutes:
        del least_s["soak"]
        least_s = {"soak": 60 * soak_minutes, **least_s}  # what was asked for comes first
    elif soak_minutes is not None:
        skipped["soak"] = "--soak_minutes=0"
    times_s: dict[str, float] = {}
    for name in least_s:
        if name not in skipped and least_s[name] > left_s:
            skipped[name] = f"it takes {least_s[name]:.0f} s, {left_s:.0f} s are left"
        if name not in skipped:
            times_s[name] = least_s[name]
            left_s -= least_s[name]
    spare_s = left_s
    for name in times_s:
        more_s = min(PARTS[name].fraction * spare_s, PARTS[name].most_s)
        times_s[name] += more_s
        left_s -= more_s
    if "soak" in times_s and soak_minutes is None:
        times_s["soak"] += left_s
    ordered_s = {name: times_s[name] for name in PARTS if name in times_s}
    return Plan(ordered_s, skipped, soak_minutes is not None)


def minutes_for(plan: Plan, networks_s: float, num_devices: int, on_cpu: bool) -> int | None:
    """Return the fewest whole minutes of a card like this plan whose networks have this time.

    None if parts.csv allows no card so much.
    """
    soak_minutes = plan.times_s.get("soak", 0.0) / 60 if plan.soak_is_fixed else None

    def has_time(minutes: int) -> bool:
        fields = {"num_devices": num_devices, "on_cpu": on_cpu, "soak_minutes": soak_minutes}
        times_s = make_plan(minutes, **fields).times_s  # type: ignore[arg-type]
        return times_s.get("networks", 0.0) >= networks_s

    # A longer card has no less time for them.
    all_minutes = range(math.ceil(plan.total_s / 60), int(MOST_MINUTES) + 1)
    place = bisect.bisect_left(all_minutes, True, key=has_time)
    return all_minutes[place] if place < len(all_minutes) else None
