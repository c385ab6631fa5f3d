"""The card: what the accelerators of a machine can do and did, measured in some minutes."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from jaxbench.analysis import rate
from jaxbench.analysis.rate import Estimate, apart
from jaxbench.cards.figures import FIGURES, PARTS, published_peak
from jaxbench.hardware.system import Check
from jaxbench.schema import Environment
from jaxbench.terminal import four_digits

# The gravest first.
Outcome = Literal["fail", "inconclusive", "incomplete", "warn", "pass", "not_judged"]


class _PartOfCard(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is decoded from card.json: no field of another name or type is accepted."""


class Expected(_PartOfCard, frozen=True):
    """What to expect of a rate.

    Attributes:
      basis: a fleet of the same machines, a prediction from published rates, or a floor.
      source: what the basis is, in words.
      expected: the rate to expect; None of a floor.
      low, high: within which it is as expected.
    """

    basis: Literal["fleet", "predicted", "floor"]
    source: str
    expected: float | None
    low: float
    high: float | None = None

    def __str__(self) -> str:
        if self.high is None:
            return f"{four_digits(self.low)} or more"
        return f"{four_digits(self.low)} to {four_digits(self.high)}"


class Figure(_PartOfCard, frozen=True):
    """One measured figure.

    Attributes:
      name: what it is, its unit included.
      value: the figure.
      value_low, value_high: ends of its 95 % interval; None without one.
      device: id of the device; None for all of them together.
      labels: what tells it apart from others of its name, such as the network.
      run: folder of the run directory that it is from, below the card's folder.
      expected: what was expected of it.
    """

    name: Literal[tuple(FIGURES)]  # type: ignore[valid-type]  # of a table
    value: float
    value_low: float | None = None
    value_high: float | None = None
    device: int | None = None
    labels: dict[str, str | int] = {}
    run: Annotated[str, msgspec.Meta(pattern=r"^runs/[^/.][^/]*$")] | None = None
    expected: Expected | None = None

    def __post_init__(self):
        if {*self.labels} != {*FIGURES[self.name].labels.split()}:
            raise ValueError(f"labels of {self.name} must be {FIGURES[self.name].labels or 'none'}")
        if not all(map(math.isfinite, (self.value, *self.ends))):
            raise ValueError(f"{self.name} is no finite number")
        if (self.value_low is None) != (self.value_high is None):
            raise ValueError(f"{self.name} has one end of an interval")

    @property
    def metric(self) -> tuple[str, tuple]:
        """What it has in common with figures of other devices: its name and labels."""
        return self.name, tuple(sorted(self.labels.items()))

    @property
    def estimate(self) -> Estimate:
        """The value with its interval."""
        return Estimate(self.value, self.value_low, self.value_high)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; without one the value itself, twice."""
        return self.estimate.interval or (self.value, self.value)

    @property
    def comparison(self) -> str:
        """How it compares with what was expected; its interval must leave the limits out."""
        if self.expected is None:
            return "no expectation"
        most = math.inf if self.expected.high is None else self.expected.high
        side = apart(Estimate(low=self.expected.low, high=most), Estimate(None, *self.ends))
        return {1: rate.Outcome.FASTER, -1: rate.Outcome.SLOWER}.get(side, "as expected")

    @property
    def comparison_text(self) -> str:
        """The comparison in words, with the distance from what was expected."""
        if self.expected is None or self.comparison == "as expected":
            return self.comparison
        off = self.value / (self.expected.expected or self.expected.low) - 1
        return f"{self.comparison} than expected by {abs(off):.0%}"

    def __str__(self) -> str:
        labels = "".join(f", {name} {value}" for name, value in self.labels.items())
        return self.name + labels + ("" if self.device is None else f", device {self.device}")


def measured(
    name: str,
    value: float | Estimate,
    *,
    device: int | None = None,
    run: str | None = None,
    **labels: str | int,
) -> Figure:
    """Return a figure with these labels."""
    of = value if isinstance(value, Estimate) else Estimate(value)
    return Figure(name, *of.span, device, labels, run)


class Part(_PartOfCard, frozen=True):
    """One part of the card.

    Attributes:
      name: one of `PARTS`.
      status: whether it was measured, skipped, or failed.
      time_s: seconds that it took.
      reason: why it was not measured.
      figures: what it measured.
      checks: what the doctor reported, or notes.
    """

    name: Literal[tuple(PARTS)]  # type: ignore[valid-type]
    status: Literal["measured", "skipped", "failed"]
    time_s: float
    reason: str | None = None
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()

    def named(self, *names: str) -> Iterator[Figure]:
        """Yield the figures of these names."""
        return (figure for figure in self.figures if figure.name in names)


class HostLoad(_PartOfCard, frozen=True):
    """What else the host did meanwhile; None if it is not known.

    Attributes:
      other_cpu_percent: mean share of the host's processor that other processes took.
      cpu_percent: mean share that all processes took.
      other_gpu_processes: processes of others on the GPUs.
    """

    other_cpu_percent: float | None = None
    cpu_percent: float | None = None
    other_gpu_processes: int | None = None


class Finding(_PartOfCard, frozen=True):
    """What one rule says.

    Attributes:
      part: the part of the card that it is about; `host` is the load of the host.
      rule: name of the rule, as in thresholds.csv, or `status` of the part.
      status: what it says.
      text: the figure and the limit, or why nothing was judged.
    """

    part: str
    rule: str
    status: Outcome
    text: str


class Verdict(_PartOfCard, frozen=True):
    """What all rules say together.

    Attributes:
      outcome: of the whole card, see verdict.py.
      findings: what each rule says.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]


class Card(_PartOfCard, frozen=True):
    """What a machine measured of itself.

    Attributes:
      jaxbench_version: version that measured.
      created_at: date and time of the end (ISO 8601 with time zone).
      minutes_asked: how long it was to take.
      minutes_taken: how long it took.
      environment: host, devices and versions, as in run.json.
      preset: name and version of what was run, such as `standard-1`.
      load: what else the host did.
      parts: what was measured.
      verdict: has no findings until it is judged.
    """

    jaxbench_version: str
    created_at: str
    minutes_asked: float
    minutes_taken: float
    environment: Environment
    preset: str
    load: HostLoad
    parts: tuple[Part, ...]
    verdict: Verdict = Verdict("not_judged", ())

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def figures(self) -> Iterator[Figure]:
        """Yield the figures of all parts."""
        return (figure for part in self.parts for figure in part.figures)

    def named(self, name: str) -> Iterator[Figure]:
        """Yield the figures of a name."""
        return (figure for figure in self.figures() if figure.name == name)

    @property
    def values(self) -> tuple[float, ...]:
        """What no other measurement has: cards with the same values are copies of one."""
        return tuple(figure.value for figure in self.figures())

    def peak_of(self, figure: Figure) -> float | None:
        """Return the published peak that a figure of a device is compared with, in its unit."""
        devices = self.environment["devices"]
        kind = next((one["kind"] for one in devices if one["id"] == figure.device), "")
        return published_peak(figure.name, kind)

    @property
    def outcome(self) -> str:
        """The outcome of the verdict in words."""
        return self.verdict.outcome.replace("_", " ")

    @property
    def hardware(self) -> str:
        """The devices, in words."""
        return f"{self.environment['num_devices']} x {self.environment['device_kind']}"

    @property
    def label(self) -> str:
        """The host and its devices, in words."""
        return f"{self.environment['hostname']} ({self.hardware})"
