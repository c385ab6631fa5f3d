"""What a machine should reach: by cards of its kind, by published rates, by floors.

The first of these that there is says what to expect of a metric:

* a fleet: three cards or more of the same kind of machine, each measured on a quiet host. Its
  limits are 2 % off the median, or three standard deviations if those are wider. Healthy machines
  of one kind differ by 0.07 to 0.63 % (39 instances with H100, ResNet-50).
* a prediction of `jaxbench.predict`, with its 90 % interval, for networks.
* a floor of floors.csv.
"""

import collections
import functools
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from jaxbench.cards.card import Card, Expected, Figure
from jaxbench.cards.figures import MATMULS, MEMORY, published_peak
from jaxbench.cards.preset import PRESETS
from jaxbench.errors import BadInput, one_of
from jaxbench.files import parse_rows, read_text
from jaxbench.hardware.targets.target import target_of_kind

# Rates that do not follow from one another; of all of them more is better.
_RATES = (*MATMULS, *MEMORY, "h2d_gb_per_s", "d2h_gb_per_s", "bus_gb_per_s", "images_per_s")
FEWEST_CARDS = 3
# The limits of a fleet: this fraction off its median, or so many standard deviations.
LEAST_FRACTION, SIGMAS = 0.02, 3.0
# Of fewer values the median absolute deviation says nothing.
FEWEST_ROBUST = 5
_LEVEL = 0.9
_FLOOR_BYTES = 2**28


class _Floor(msgspec.Struct, frozen=True):
    """A line of floors.csv, which explains the columns."""

    device: str | None
    link: str | None
    nodes: Annotated[int, msgspec.Meta(ge=1)]
    metric: str
    least: str
    source: str
    date: str

    def __post_init__(self):
        number, _, quantity = self.least.partition(" ")
        if not 0 < float(number) < math.inf or quantity not in ("", "peak"):
            raise ValueError(f"least {self.least:.60}: must be above 0, alone or followed by peak")
        if (name := self.metric.partition(" ")[0]) not in _RATES:
            raise ValueError(f"metric {name:.60}: {one_of(name[:60], _RATES)}")


@functools.cache
def load_floors() -> Sequence[_Floor]:
    """Return the rows of floors.csv, those of any device first.

    Raises:
      BadInput: a row is none.
    """
    path = pathlib.Path(__file__).with_name("floors.csv")
    try:
        return sorted(parse_rows(read_text(path), _Floor), key=lambda row: row.device or "")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from error


class Spread(NamedTuple):
    """The middle of some values, their standard deviation, and how far off others may be."""

    middle: float
    sigma: float
    half: float


def spread_of(values: Sequence[float], sigma: float = 0.0) -> Spread:
    """Return the median of values, and the limits within which another one is expected.

    The deviation is 1.4826 times the median absolute one; 1.2533 times the mean absolute one if
    more than half of the values are equal. Of fewer than `FEWEST_ROBUST` values it is the sample's,
    and at least `sigma`.
    """
    middle = statistics.median(values)
    if len(values) < FEWEST_ROBUST:
        sigma = max(sigma, statistics.stdev(values) if len(values) > 1 else 0.0)
    else:
        off = [abs(value - middle) for value in values]
        sigma = 1.4826 * statistics.median(off) or 1.2533 * statistics.fmean(off)
    return Spread(middle, sigma, max(LEAST_FRACTION * abs(middle), SIGMAS * sigma))


def kind_of(card: Card) -> tuple:
    """Return what cards share that are of one kind of machine; processors differ by their name."""
    environment: Any = card.environment
    kind = environment["device_kind"], card.preset, environment.get("num_processes") or 1
    if environment["backend"] == "cpu":
        kind += environment.get("cpu"), environment.get("cpu_cores"), environment["num_devices"]
    return kind


def differ_in_size(cards: Iterable[Card]) -> bool:
    """Return whether cards have different numbers of devices, and are compared by device."""
    return len({card.environment["num_devices"] for card in cards}) > 1


def comparable(figure: Figure, card: Card, by_device: bool) -> tuple[tuple, float] | None:
    """Return what tells a metric from the others of its device, and the factor to compare it by.

    By device, networks are compared by the batch and rate of one. Collectives, which depend on the
    number of devices, are not compared: None.
    """
    labels, factor = figure.labels, 1.0
    if by_device and "collective" in labels:
        return None
    if by_device and isinstance(batch := labels.get("batch"), int):
        devices = card.environment["num_devices"]
        labels = labels | {"batch": f"{batch / devices:g} (of a device)"}
        factor = 1 / devices if figure.name == "images_per_s" else 1.0
    return (figure.name, tuple(sorted(labels.items()))), factor


def expect(card: Card, others: Sequence[Card]) -> tuple[Expected, ...]:
    """Return what to expect of a card's rates, those without an expectation left out.

    Args:
      others: cards that may be of the same kind.
    """
    # A copy of a card, as a submission is one, is not another machine.
    sound = (one for one in others if kind_of(one) == kind_of(card) and _is_sound(one))
    machines = {tuple(figure.value for figure in one.figures()): one for one in sound}
    machines.pop(tuple(figure.value for figure in card.figures()), None)
    fleet = [*machines.values()]
    by_device = differ_in_size([card, *fleet])
    spreads = _fleet_spreads(fleet, by_device) if len(fleet) >= FEWEST_CARDS else {}
    found = []
    for figure in card.figures():
        if figure.name not in _RATES:
            continue
        key = comparable(figure, card, by_device)
        # Limits as wide as the value itself say nothing.
        if key and (spread := spreads.get(key[0])) and spread.half < spread.middle:
            middle, half = spread.middle / key[1], spread.half / key[1]
            one = Expected("fleet", f"{len(fleet)} cards", middle, middle - half, middle + half)
        elif not (one := _predicted(figure, card) or _floor(figure, card)):
            continue
        of = {"name": figure.name, "device": figure.device, "labels": figure.labels}
        found.append(msgspec.structs.replace(one, **of))
    return tuple(found)


def _is_sound(card: Card) -> bool:
    """Return whether a card was measured on a quiet machine, and did not fail."""
    verdict = card.verdict
    return verdict is not None and not any(
        one.status == "fail" or one.part == "host" for one in verdict.findings
    )


def _fleet_spreads(fleet: Sequence[Card], by_device: bool) -> dict[tuple, Spread]:
    values: dict[tuple, list[float]] = collections.defaultdict(list)
    for card in fleet:
        for figure in card.figures():
            key = comparable(figure, card, by_device)
            if key and figure.name in _RATES and figure.value > 0:
                values[key[0]].append(figure.value * key[1])
    values = {key: some for key, some in values.items() if len(some) >= FEWEST_CARDS}
    # Few values tell little of their deviation: all metrics of a name together tell more.
    relative: dict[str, list[float]] = collections.defaultdict(list)
    for (name, _), some in values.items():
        relative[name].append(statistics.stdev(some) / statistics.fmean(some))
    pooled = {name: math.hypot(*some) / math.sqrt(len(some)) for name, some in relative.items()}
    return {
        key: spread_of(some, pooled[key[0]] * statistics.fmean(some))
        for key, some in values.items()
    }


def setting_of_figure(figure: Figure, card: Card) -> Any:
    """Return the setting of `jaxbench.predict` of a network's rate; None if it has none."""
    preset = PRESETS.get(card.preset)
    public = {one.spec: one.public for one in preset.networks} if preset else {}
    name, batch = public.get(str(figure.labels.get("network"))), figure.labels.get("batch")
    environment = card.environment
    target = target_of_kind(environment["device_kind"], environment["num_devices"])
    if not name or not target or not isinstance(batch, int):
        return None
    # Imported late, because it imports JAX.
    from jaxbench.predict.networks import NETWORKS
    from jaxbench.predict.prediction import NotPredicted, setting_of

    per_device = batch / target.num_devices
    try:
        return setting_of(NETWORKS[name], target, str(figure.labels["precision"]), per_device)
    except NotPredicted:
        return None


def _predicted(figure: Figure, card: Card) -> Expected | None:
    if figure.name != "images_per_s" or not (setting := setting_of_figure(figure, card)):
        return None
    from jaxbench.predict import calibration
    from jaxbench.predict.prediction import NotPredicted, predict

    try:
        prediction = predict(setting, calibration.load())
    except NotPredicted:
        return None
    low, high = prediction.intervals[_LEVEL]
    text = f"{prediction.basis['rates']} published rates"
    return Expected("predicted", text, prediction.examples_per_s, low, high)


def _floor(figure: Figure, card: Card) -> Expected | None:
    """Return the floor of a figure by its device, links and hosts; one of its device counts."""
    name, environment = figure.name, card.environment
    kind = environment["device_kind"]
    target = target_of_kind(kind, environment["num_devices"])
    if "collective" in figure.labels:
        if int(figure.labels["bytes"]) < _FLOOR_BYTES:
            return None
        name += f" {figure.labels['collective']}"
    peak = published_peak(figure.name, kind)
    for row in reversed(load_floors()):
        number, _, quantity = row.least.partition(" ")
        if (
            row.metric == name
            and row.device in (None, kind)
            and row.link in (None, target and target.link)
            and row.nodes == (environment.get("num_processes") or 1)
            and (peak or not quantity)
        ):
            least = float(number) * (peak if peak and quantity else 1)
            return Expected("floor", f"{row.source} ({row.date})", None, least)
    return None
