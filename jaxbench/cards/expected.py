"""What a machine should reach: by cards of its kind, by published rates, by floors.

The first of these that there is says what to expect of a metric:

* a fleet: three cards or more of the same kind of machine, each measured on a quiet host. Its
  limits are 2 % off the median, or three standard deviations if those are wider. Healthy machines
  of one kind differ by 0.07 to 0.63 % (39 instances with H100, ResNet-50).
* a prediction of `jaxbench.predict`, with its 90 % interval, for networks.
* a floor of floors.csv.
"""

import collections
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from jaxbench.cards.card import Card, Expected, Figure
from jaxbench.cards.figures import MATMULS, MEMORY, load_rows
from jaxbench.hardware.peak_table import without_maker
from jaxbench.hardware.targets.target import target_of_kind
from jaxbench.records.same import differ_in_size, fleet_key

# Rates that do not follow from one another; of all of them more is better.
_RATES = (*MATMULS, *MEMORY, "h2d_gb_per_s", "d2h_gb_per_s", "bus_gb_per_s", "images_per_s")
FEWEST_CARDS = 3
# The limits of a fleet: this fraction off its median, or so many standard deviations.
LEAST_FRACTION, SIGMAS = 0.02, 3.0
# Of fewer values the median absolute deviation says nothing.
FEWEST_ROBUST = 5
# Floors are for large work: collectives of at least so many bytes, products whose sides are all at
# least so long. If time or memory is short, only smaller products were measured.
_FLOOR_BYTES, FLOOR_SIDE = 2**28, 4096


class Floor(msgspec.Struct, frozen=True):
    """A line of floors.csv, which explains the columns."""

    metric: str
    least: str
    source: str
    date: str
    device: str = ""
    link: str = ""


# Those of any device first.
FLOORS: list[Floor] = sorted(load_rows("floors.csv", Floor), key=lambda row: row.device)


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


def comparable(figure: Figure, card: Card, by_device: bool) -> Figure | None:
    """Return a figure as it is compared with those of other cards.

    By device, networks are compared by the batch and rate of one. Collectives, which depend on the
    number of devices, are not compared: None.
    """
    if not by_device:
        return figure
    if "collective" in figure.labels:
        return None
    if not isinstance(batch := figure.labels.get("batch"), int):
        return figure
    devices = card.environment["num_devices"]
    figure = replace(figure, labels=figure.labels | {"batch": f"{batch / devices:g} (of a device)"})
    if figure.name != "images_per_s":
        return figure
    return replace(figure, **figure.estimate.map(lambda rate: rate / devices).fields("value"))


def expect(
    card: Card, others: Sequence[Card], predict: Callable[[Figure, Card], Expected | None]
) -> Card:
    """Return a card with what to expect of its rates.

    Args:
      others: cards, some of them of the same kind of machine.
      predict: returns what published rates predict of a network's rate, None if they predict
        nothing.
    """
    # A copy of a card, as a submission is one, is not another machine.
    key = fleet_key(card.environment, card.preset)
    alike = (one for one in others if fleet_key(one.environment, one.preset) == key)
    machines = {one.values: one for one in alike if _is_sound(one)}
    machines.pop(card.values, None)
    fleet = [*machines.values()]
    by_device = differ_in_size(one.environment for one in (card, *fleet))
    spreads = _fleet_spreads(fleet, by_device) if len(fleet) >= FEWEST_CARDS else {}

    def expected(figure: Figure) -> Expected | None:
        if figure.name not in _RATES:
            return None
        like = comparable(figure, card, by_device)
        # Limits as wide as the value itself say nothing.
        if like and (spread := spreads.get(like.metric)) and spread.half < spread.middle:
            one = by_device and figure.name == "images_per_s"
            devices = card.environment["num_devices"] if one else 1
            middle, half = spread.middle * devices, spread.half * devices
            return Expected("fleet", f"{len(fleet)} cards", middle, middle - half, middle + half)
        predicted = predict(figure, card) if figure.name == "images_per_s" else None
        return predicted or _floor(figure, card)

    parts = (
        replace(part, figures=tuple(replace(one, expected=expected(one)) for one in part.figures))
        for part in card.parts
    )
    return replace(card, parts=tuple(parts))


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
            like = comparable(figure, card, by_device)
            if like and figure.name in _RATES and figure.value > 0:
                values[like.metric].append(like.value)
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


def _floor(figure: Figure, card: Card) -> Expected | None:
    """Return the floor of a figure by its device, links and hosts; one of its device counts."""
    name, environment = figure.name, card.environment
    kind = without_maker(environment["device_kind"])
    target = target_of_kind(kind, environment["num_devices"])
    if "collective" in figure.labels:
        if int(figure.labels["bytes"]) < _FLOOR_BYTES:
            return None
        name += f" {figure.labels['collective']}"
    sides = [one.value for one in card.named("matmul_side") if one.device == figure.device]
    if name in MATMULS and sides and sides[0] < FLOOR_SIDE:
        return None
    peak = card.peak_of(figure)
    for row in reversed(FLOORS):
        number, _, quantity = row.least.partition(" ")
        if (
            row.metric == name
            and without_maker(row.device) in ("", kind)
            and row.link in ("", target and target.link)
            and (peak or not quantity)
        ):
            least = float(number) * (peak if peak and quantity else 1)
            return Expected("floor", f"{row.source} ({row.date})", None, least)
    return None
