"""The card: what the accelerators of a machine can do and did, measured in some minutes."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Literal

from jaxbench.cards.decode import decode
from jaxbench.cards.figures import FIGURES, PARTS
from jaxbench.clock import seconds_ago
from jaxbench.errors import nearest

_DIGEST = re.compile("[0-9a-f]{64}")

_part_of_card = dataclasses.dataclass(frozen=True, kw_only=True)


@_part_of_card
class Device:
    """One accelerator of the environment.

    Attributes:
      id: JAX's number.
      kind: what it is.
    """

    id: int
    kind: str


# What is read of the environment; all of run.json's may be beside it.
_ENVIRONMENT = {
    **{"hostname": str, "backend": str, "device_kind": str, "num_devices": int},
    "devices": tuple[Device, ...],
}


def _check_inside(name: str, what: str) -> None:
    """Raise ValueError unless a path lies below the card's folder."""
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
        raise ValueError(f"{what}: {name[:60]!r} leads elsewhere")


@_part_of_card
class Figure:
    """One measured figure; `FIGURES` has all names.

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

    name: str
    value: float
    origin: Literal["measured", "counted"]
    interval: tuple[float, float] | None = None
    device: int | None = None
    labels: dict[str, str | int] = dataclasses.field(default_factory=dict)
    run: str | None = None
    nominal: float | None = None
    share_of_nominal: float | None = None

    def __post_init__(self):
        kind = FIGURES.get(self.name)
        if kind is None:
            shown = self.name[:60]
            raise ValueError(f"no figure is called {shown!r}{nearest(shown, FIGURES)}")
        if self.origin != _origin(self.name):
            raise ValueError(f"origin of {self.name} must be {_origin(self.name)}")
        if {*self.labels} != {*kind.labels}:
            needed = ", ".join(kind.labels) or "none"
            raise ValueError(f"labels of {self.name} must be {needed}")
        numbers = (self.value, *(self.interval or ()), self.nominal, self.share_of_nominal)
        if not all(number is None or math.isfinite(number) for number in numbers):
            raise ValueError(f"{self.name} is not finite")
        if self.run is not None:
            _check_inside(self.run, f"run of {self.name}")
        if self.nominal is not None and self.nominal <= 0:
            raise ValueError(f"nominal={self.nominal:g} of {self.name} must be above 0")

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


def _origin(name: str) -> str:
    return "counted" if name in FIGURES and FIGURES[name].is_count else "measured"


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
    """Return a figure with its share of the nominal peak, where there is one."""
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


@_part_of_card
class CheckResult:
    """One line of the doctor.

    Attributes:
      name: what was looked at.
      status: ok, warning or problem.
      found: what it is.
      advice: what to do where it is not ok.
    """

    name: str
    status: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""


@_part_of_card
class Part:
    """One part of the card.

    Attributes:
      name: one of `PARTS`.
      status: whether it was measured, skipped, or failed.
      reason: why it was not measured.
      time_s: seconds that it took.
      figures: what it measured.
      checks: what the doctor found.
    """

    name: str
    status: Literal["measured", "skipped", "failed"]
    reason: str | None = None
    time_s: float
    figures: tuple[Figure, ...] = ()
    checks: tuple[CheckResult, ...] = ()

    def __post_init__(self):
        if self.name not in PARTS:
            raise ValueError(f"no part is called {self.name[:60]!r}{nearest(self.name, PARTS)}")
        if (self.reason is None) != (self.status == "measured"):
            raise ValueError(f"{self.name}: skipped and failed need a reason, measured has none")
        seen = set()
        for figure in self.figures:
            if FIGURES[figure.name].part != self.name:
                raise ValueError(f"{figure.name} is no figure of {self.name}")
            if figure.key in seen:
                raise ValueError(f"{figure} is there twice")
            seen.add(figure.key)

    def named(self, *names: str) -> Iterator[Figure]:
        """Yield the figures of these names."""
        return (figure for figure in self.figures if figure.name in names)


@_part_of_card
class HostLoad:
    """What else the host did meanwhile; None where it is not known.

    Attributes:
      other_cpu_percent: mean share of the host's processor that other processes took.
      other_gpu_processes: processes of others on the GPUs.
    """

    other_cpu_percent: float | None = None
    other_gpu_processes: int | None = None


@_part_of_card
class Finding:
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


@_part_of_card
class Verdict:
    """What all rules say together, and by which limits.

    Attributes:
      outcome: of the whole card, see verdict.py.
      findings: what each rule says.
      thresholds: {rule.level: limit}; null where a rule has none.
    """

    outcome: Literal["pass", "warn", "fail", "inconclusive", "incomplete", "not_judged"]
    findings: tuple[Finding, ...]
    thresholds: dict[str, float | None]


@_part_of_card
class Card:
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
    minutes_asked: float
    minutes_taken: float
    environment: dict[str, Any]
    preset: str
    load: HostLoad
    parts: tuple[Part, ...]
    verdict: Verdict | None = None
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name, kind in _ENVIRONMENT.items():
            if name not in self.environment:
                raise ValueError(f"environment lacks {name}")
            decode(kind, self.environment[name], f"environment.{name}")
        if not self.parts:
            raise ValueError("there is no part")
        names = [part.name for part in self.parts]
        if len(names) > len({*names}):
            raise ValueError("a part is there twice")
        if seconds_ago(self.created_at) is None:
            raise ValueError(f"created_at={self.created_at[:40]!r} is no date with a time zone")
        for name, digest in self.files.items():
            _check_inside(name, "files")
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"files: {name[:60]!r} has no SHA-256")

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    @property
    def devices(self) -> tuple[Device, ...]:
        return decode(_ENVIRONMENT["devices"], self.environment["devices"], "environment.devices")

    def figures(self) -> Iterator[Figure]:
        """Yield the figures of all parts."""
        return (figure for part in self.parts for figure in part.figures)

    @property
    def hardware(self) -> str:
        """The devices, in words."""
        return f"{self.environment['num_devices']} x {self.environment['device_kind']}"

    @property
    def label(self) -> str:
        """The host and its devices, in words."""
        return f"{self.environment['hostname']} ({self.hardware})"
