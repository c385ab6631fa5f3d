"""Compare cards: two by their intervals, more of one kind by robust z-scores.

The modified z-score is 0.6745 (x - median) / MAD, with the median absolute deviation (MAD); 3.5 or
more is an outlier (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993). Where more than
half of the values are equal the MAD is 0, and the mean absolute deviation takes its place:
(x - median) / (1.2533 mean).

Of ten values of one normal distribution, one set in eight has such a score. So an outlier must also
be 1 % from the median, and its own interval, where it has one, must leave the median out.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from jaxbench.cards.card import Card, Figure
from jaxbench.cards.figures import FIGURES
from jaxbench.errors import BadInput

CUTOFF = 3.5
_LEAST_SHARE = 0.01
_MAD_FACTOR, _MEAN_FACTOR = 0.6745, 1 / 1.2533
# Of fewer values one that is a little apart would be an outlier too often.
FEWEST = 5
# The bus bandwidth is the algorithm's times a number; of devices of one kind, so are the others of
# the images/s, and without its interval noise would make them outliers.
_REPEATED = ("bus_gb_per_s",)
_REPEATED_IN_FLEET = (*_REPEATED, "flops_per_image", "mfu", "measured_peak_share")


@dataclasses.dataclass(frozen=True)
class Difference:
    """A figure of two cards: its name, labels and device, and both values.

    Attributes:
      ratio: the second over the first; None of counts, drift and temperatures, and if the first is
        0.
      intervals: whether they overlap, or are apart: the second better, worse, higher or lower.
        Without intervals equal, or no interval. A card is one run of its machine, so this is no
        verdict: what changes between runs is in no interval.
    """

    figure: str
    values: tuple[float, float]
    ratio: float | None
    intervals: str


@dataclasses.dataclass(frozen=True)
class Outlier:
    """A value far from the others of its figure, by its modified z-score.

    Attributes:
      node: the host, and the number of its card among those that were given.
      device: its id; None for all devices of the node.
    """

    node: str
    device: int | None
    value: float
    z: float


@dataclasses.dataclass(frozen=True)
class FleetFigure:
    """A figure over the devices, or nodes, of a fleet.

    Attributes:
      figure: its name and labels.
      like: one of its figures.
      n: values.
      spread: max / min - 1; None if the least is not above 0.
      outliers: values far from the median; None of fewer than `FEWEST` values.
    """

    figure: str
    like: Figure
    n: int
    median: float
    spread: float | None
    outliers: tuple[Outlier, ...] | None


def compare_two(first: Card, second: Card) -> list[Difference]:
    """Return the figures that both cards have; see `figures_to_compare`.

    Raises:
      BadInput: there is none.
    """
    return [difference(*pair) for pair in common_figures(first, second)]


def common_figures(first: Card, second: Card) -> list[tuple[Figure, Figure]]:
    """Return the figures that both cards have; of two that follow from each other one.

    Raises:
      BadInput: there is none.
    """
    by_device = differ_in_size((first, second))
    others = {figure.key: figure for figure in figures_to_compare(second, by_device)}
    pairs = [
        (figure, others[figure.key])
        for figure in figures_to_compare(first, by_device)
        if figure.key in others and not _is_repeated(figure, _REPEATED)
    ]
    if not pairs:
        raise BadInput("the cards have no figure in common")
    return pairs


def _is_repeated(figure: Figure, names: Sequence[str]) -> bool:
    """Return whether a figure is of these names, or of the way back between two devices."""
    ends = [str(figure.labels.get(name, "")) for name in ("source", "peer")]
    return figure.name in names or ends != sorted(ends)


def difference(first: Figure, second: Figure) -> Difference:
    """Return how a figure of two cards differs."""
    kind = FIGURES[first.name]
    # Of counts, and of what may be below 0, a ratio says nothing.
    has_ratio = first.value and not kind.is_count and kind.low >= 0
    ratio = second.value / first.value if has_ratio else None
    if first.interval is None or second.interval is None:
        intervals = "equal" if first.value == second.value else "no interval"
    elif first.ends[0] <= second.ends[1] and second.ends[0] <= first.ends[1]:
        intervals = "overlap"
    else:
        side = "higher" if second.ends[0] > first.ends[1] else "lower"
        if better := kind.better:
            side = "better" if side == better else "worse"
        intervals = f"apart, {side}"
    return Difference(str(first), (first.value, second.value), ratio, intervals)


def compare_fleet(cards: Sequence[Card]) -> list[FleetFigure]:
    """Return every figure that three values or more are of, over all nodes and devices.

    Raises:
      BadInput: the cards are of different devices.
    """
    kinds = sorted({card.environment["device_kind"] for card in cards})
    if len(kinds) > 1:
        raise BadInput(
            f"the cards are of {len(kinds)} kinds of devices ({', '.join(kinds)}): more than two "
            "are compared where they are of one kind"
        )
    by_device = differ_in_size(cards)
    values: dict[tuple, list[tuple[str, Figure]]] = {}
    for number, card in enumerate(cards, 1):
        node = f"{card.environment['hostname']} (card {number})"
        for figure in figures_to_compare(card, by_device):
            name, _, labels = figure.key
            if not _is_repeated(figure, _REPEATED_IN_FLEET):
                values.setdefault((name, labels), []).append((node, figure))
    return [_over_fleet(figures, by_device) for figures in values.values() if len(figures) > 2]


def differ_in_size(cards: Sequence[Card]) -> bool:
    """Return whether the cards are of different numbers of devices."""
    return len({card.environment["num_devices"] for card in cards}) > 1


def figures_to_compare(card: Card, by_device: bool) -> Iterator[Figure]:
    """Yield a card's figures.

    If the cards differ in their number of devices, they are compared `by_device`: networks by the
    batch and rate of a device. Collectives, which depend on that number, are left out.
    """
    for figure in card.figures():
        if by_device and "collective" in figure.labels:
            continue
        if by_device and isinstance(figure.labels.get("batch"), int):
            num_devices = card.environment["num_devices"]
            share = 1 / num_devices if figure.name == "images_per_s" else 1.0
            batch = figure.labels["batch"] / num_devices
            figure = msgspec.structs.replace(
                figure,
                value=figure.value * share,
                interval=figure.interval and tuple(end * share for end in figure.interval),
                labels=figure.labels
                | {"batch": int(batch) if batch.is_integer() else f"{batch:g}"},
            )
        yield figure


def _over_fleet(figures: Sequence[tuple[str, Figure]], by_device: bool) -> FleetFigure:
    values = [figure.value for _, figure in figures]
    median = statistics.median(values)
    outliers = None
    if len(values) >= FEWEST:
        outliers = tuple(
            Outlier(node, figure.device, figure.value, z)
            for (node, figure), z in zip(figures, z_scores(values), strict=True)
            if abs(z) > CUTOFF
            and abs(figure.value - median) >= _LEAST_SHARE * abs(median)
            and not figure.ends[0] <= median <= figure.ends[1]
        )
    like = msgspec.structs.replace(figures[0][1], device=None)
    return FleetFigure(
        str(like) + " (of a device)" * (by_device and "batch" in like.labels),
        like,
        len(values),
        median,
        max(values) / min(values) - 1 if min(values) > 0 else None,
        outliers,
    )


def z_scores(values: Sequence[float]) -> list[float]:
    """Return the modified z-score of each value; 0 of all where they are equal."""
    median = statistics.median(values)
    off = [value - median for value in values]
    deviations = [abs(one) for one in off]
    if mad := statistics.median(deviations):
        return [_MAD_FACTOR * one / mad for one in off]
    mean = statistics.fmean(deviations)
    return [_MEAN_FACTOR * one / mean if mean else 0.0 for one in off]


def compare_cards(cards: Sequence[Card]) -> dict[str, Any]:
    """Return the comparison of two cards, or of a fleet, as JSON values.

    Raises:
      BadInput: they cannot be compared.
    """
    headers = [
        {
            "label": card.label,
            "created_at": card.created_at,
            "outcome": card.verdict and card.verdict.outcome,
        }
        for card in cards
    ]
    if len(cards) == 2:
        return {"cards": headers, "figures": [vars(one) for one in compare_two(*cards)]}
    fleet = [dataclasses.asdict(one) for one in compare_fleet(cards)]
    for one in fleet:
        del one["like"]
    return {"cards": headers, "fleet": fleet}
