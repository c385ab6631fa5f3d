"""The card: what the accelerators of a machine can do and did, measured in some minutes."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from jaxbench.cards.figures import FIGURES, PARTS
from jaxbench.hardware.system import Check
from jaxbench.records import schema
from jaxbench.terminal import four_digits

# No metric is near it, and squares of smaller ones are finite.
_MOST = 1e100
# Twice the longest that a card may be asked to take.
Minutes = Annotated[float, msgspec.Meta(gt=0, le=14 * 24 * 60)]


class Device(TypedDict):
    """One accelerator of the environment: JAX's number, and what it is."""

    id: int
    kind: str


class Environment(schema.Environment):
    """What run.json has of the environment; a card is not one without these."""

    hostname: str
    backend: str
    device_kind: str
    num_devices: Annotated[int, msgspec.Meta(ge=1)]
    devices: Annotated[list[Device], msgspec.Meta(min_length=1)]


class _PartOfCard(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is decoded from card.json: no field of another name or type is accepted."""


class Figure(_PartOfCard):
    """One measured figure.

    Attributes:
      name: what it is, its unit included.
      value: the figure.
      origin: measured; of whole numbers, such as rounds, counted.
      interval: ends of its 95 % interval.
      device: id of the device; None for all of them together.
      labels: what tells it apart from others of its name, such as the network.
      run: folder of the run directory that it is from, below the card's folder.
      nominal: peak that the maker publishes, in the figure's unit.
      share_of_nominal: the value over this peak.
    """

    name: Literal[tuple(FIGURES)]
    value: float
    origin: Literal["measured", "counted"]
    interval: tuple[float, float] | None = None
    device: int | None = None
    labels: dict[str, str | int] = {}
    run: Annotated[str, msgspec.Meta(pattern=r"^runs/[^/.][^/]*$")] | None = None
    nominal: Annotated[float, msgspec.Meta(gt=0)] | None = None
    share_of_nominal: float | None = None

    def __post_init__(self):
        if self.origin != _origin(self.name):
            raise ValueError(f"origin of {self.name} must be {_origin(self.name)}")
        if {*self.labels} != {*FIGURES[self.name].labels.split()}:
            raise ValueError(f"labels of {self.name} must be {FIGURES[self.name].labels or 'none'}")
        if not all(isinstance(self.labels.get(name, 0), int) for name in ("bytes", "round")):
            raise ValueError(f"bytes and round of {self.name} must be whole numbers")
        if not all(abs(value) < _MOST for value in (self.value, *self.ends)):
            raise ValueError(f"{self.name} is not below {_MOST:g}")
        if self.origin == "counted" and self.value != int(self.value):
            raise ValueError(f"{self.name} must be a whole number")

    @property
    def key(self) -> tuple[str, int | None, tuple]:
        """What no other figure of a card has."""
        return self.name, self.device, tuple(sorted(self.labels.items()))

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; without one the value itself, twice."""
        return self.interval or (self.value, self.value)

    def __str__(self) -> str:
        labels = "".join(f", {name} {value}" for name, value in self.labels.items())
        return self.name + labels + ("" if self.device is None else f", device {self.device}")


def _origin(name: str) -> Any:
    return "counted" if FIGURES[name].is_count else "measured"


def measured(
    name: str,
    value: float,
    interval: tuple[float, float] | None = None,
    *,
    device: int | None = None,
    nominal: float | None = None,
    run: str | None = None,
    **labels: str | int,
) -> Figure:
    """Return a figure with its share of the nominal peak, if there is one."""
    share = None if nominal is None else value / nominal
    return Figure(
        name=name,
        value=value,
        origin=_origin(name),
        interval=interval,
        device=device,
        labels=labels,
        run=run,
        nominal=nominal,
        share_of_nominal=share,
    )


class Part(_PartOfCard):
    """One part of the card.

    Attributes:
      name: one of `PARTS`.
      status: whether it was measured, skipped, or failed.
      time_s: seconds that it took.
      reason: why it was not measured.
      figures: what it measured.
      checks: what the doctor found.
    """

    name: Literal[tuple(PARTS)]
    status: Literal["measured", "skipped", "failed"]
    time_s: Annotated[float, msgspec.Meta(ge=0)]
    reason: str | None = None
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()

    def __post_init__(self):
        for figure in self.figures:
            if FIGURES[figure.name].part != self.name:
                raise ValueError(f"{figure.name} is no figure of {self.name}")

    def named(self, *names: str) -> Iterator[Figure]:
        """Yield the figures of these names."""
        return (figure for figure in self.figures if figure.name in names)


class HostLoad(_PartOfCard):
    """What else the host did meanwhile; None if it is not known.

    Attributes:
      other_cpu_percent: mean share of the host's processor that other processes took.
      other_gpu_processes: processes of others on the GPUs.
    """

    other_cpu_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    other_gpu_processes: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Expected(_PartOfCard):
    """What to expect of a metric.

    Attributes:
      basis: a fleet of the same machines, a prediction from published rates, or a floor.
      source: what the basis is, in words.
      expected: the rate to expect; None of a floor.
      low, high: within which it is as expected.
      name, device, labels: of the metric, see `Figure`.
    """

    basis: Literal["fleet", "predicted", "floor"]
    source: str
    expected: Annotated[float, msgspec.Meta(gt=0)] | None
    low: Annotated[float, msgspec.Meta(gt=0)]
    high: float | None = None
    name: str = ""
    device: int | None = None
    labels: dict[str, str | int] = {}

    @property
    def key(self) -> tuple[str, int | None, tuple]:
        """The key of its figure."""
        return self.name, self.device, tuple(sorted(self.labels.items()))

    def judge(self, figure: Figure) -> str:
        """Say in words how a figure compares; its interval must leave the limits out."""
        low, high = figure.ends
        off = figure.value / (self.expected or self.low) - 1
        if high < self.low:
            return f"slower than expected by {-off:.0%}"
        if self.high is not None and low > self.high:
            return f"faster than expected by {off:.0%}"
        return "as expected"

    def __str__(self) -> str:
        if self.high is None:
            return f"{four_digits(self.low)} or more"
        return f"{four_digits(self.low)} to {four_digits(self.high)}"


class Finding(_PartOfCard):
    """What one rule says.

    Attributes:
      part: the part of the card that it is about; `host` is the load of the host.
      rule: name of the rule, as in thresholds.csv, or `status` of the part.
      status: what it says.
      text: the figure and the limit, or why nothing was judged.
    """

    part: str
    rule: str
    status: Literal["pass", "warn", "fail", "inconclusive", "incomplete", "not_judged"]
    text: str


class Verdict(_PartOfCard):
    """What all rules say together, and by which limits.

    Attributes:
      outcome: of the whole card, see verdict.py.
      findings: what each rule says.
      thresholds: {rule.level: limit}; null if a rule has none.
      expected: what was expected of the metrics.
    """

    outcome: Literal["pass", "warn", "fail", "inconclusive", "incomplete", "not_judged"]
    findings: tuple[Finding, ...]
    thresholds: dict[str, float | None]
    expected: tuple[Expected, ...] = ()


class Card(_PartOfCard):
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
      verdict: None until it is judged.
      files: {path below the card's folder: SHA-256} of every file beside it.
    """

    jaxbench_version: str
    created_at: str
    minutes_asked: Minutes
    minutes_taken: Minutes
    environment: Environment
    preset: str
    load: HostLoad
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1)]
    verdict: Verdict | None = None
    files: dict[str, Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]] = {}

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def figures(self) -> Iterator[Figure]:
        """Yield the figures of all parts."""
        return (figure for part in self.parts for figure in part.figures)

    def named(self, name: str) -> Iterator[Figure]:
        """Yield the figures of a name."""
        return (figure for figure in self.figures() if figure.name == name)

    def expectations(self) -> dict[tuple, Expected]:
        """Return {key of a figure: what was expected of it}."""
        return {one.key: one for one in (self.verdict.expected if self.verdict else ())}

    @property
    def hardware(self) -> str:
        """The devices, in words."""
        return f"{self.environment['num_devices']} x {self.environment['device_kind']}"

    @property
    def label(self) -> str:
        """The host and its devices, in words."""
        return f"{self.environment['hostname']} ({self.hardware})"
