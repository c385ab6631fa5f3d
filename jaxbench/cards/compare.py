"""Compare cards: two by their ratios, more of one kind by their distance from the median.

Two cards get no verdict: each is one run of its machine.

An outlier is off the median by both three robust standard deviations and 2 %, see
`expected.spread_of`, and its interval, if it has one, excludes the median.
"""

import collections
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from jaxbench.analysis.rate import Outcome
from jaxbench.cards.card import Card, Figure
from jaxbench.cards.expected import FEWEST_ROBUST, comparable, spread_of
from jaxbench.cards.figures import FIGURES, NETWORK
from jaxbench.errors import BadInput
from jaxbench.hardware.peak_table import without_maker
from jaxbench.records.same import differ_in_size
from jaxbench.tables.text import text_table
from jaxbench.terminal import four_digits, printable

# They follow from images/s, and without its interval noise would make them outliers.
_REPEATED = ("flops_per_image", "mfu", "measured_peak_share")
# The widest first column that leaves 80 columns to a table.
_WIDEST = 28
_NO_VERDICT = {"verdict": Outcome.INCONCLUSIVE, "reasons": ["one run of each machine"]}
# Of a fleet no more outliers are shown; --json has all.
_MOST_OUTLIERS = 20


class Outlier(NamedTuple):
    """A value far from the others of its figure.

    Attributes:
      node: the host, and the number of its card among those that were given.
    """

    node: str
    device: int | None
    value: float
    sigmas: float


class FleetFigure(NamedTuple):
    """A figure over the devices, or nodes, of a fleet.

    Attributes:
      figure: one of the values, without its device.
      outliers: values far from the median; None of fewer than `FEWEST_ROBUST` values.
    """

    figure: Figure
    n: int
    median: float
    spread: float | None
    outliers: list[Outlier] | None


def compare_two(first: Card, second: Card) -> list[tuple[Figure, Figure, float | None]]:
    """Return the figures that both cards have, and the second's over the first's.

    There is no ratio of counts, nor of drift and temperatures, which may be 0 or less. Raise
    BadInput if they have no figure in common.
    """
    by_device = differ_in_size(one.environment for one in (first, second))
    others = {(one.metric, one.device): one for one in _figures(second, by_device)}
    differences = []
    for one in _figures(first, by_device):
        if other := others.get((one.metric, one.device)):
            kind = FIGURES[one.name]
            has_ratio = one.value and not kind.is_count and kind.min >= 0
            differences.append((one, other, other.value / one.value if has_ratio else None))
    if not differences:
        raise BadInput("the cards have no figure in common")
    return differences


def compare_fleet(cards: Sequence[Card]) -> list[FleetFigure]:
    """Return every figure that three values or more are of, over all nodes and devices.

    Raises:
      BadInput: the cards are of different devices, or have no figure in common.
    """
    kinds = sorted({without_maker(card.environment["device_kind"]) for card in cards})
    if len(kinds) > 1:
        raise BadInput(
            f"the cards are of {len(kinds)} kinds of devices ({', '.join(kinds)}): more than two "
            "are compared only if they are of one kind"
        )
    by_device = differ_in_size(card.environment for card in cards)
    values: dict[tuple, list[tuple[str, Figure]]] = {}
    for number, card in enumerate(cards, 1):
        node = f"{card.environment['hostname']} (card {number})"
        for figure in _figures(card, by_device):
            values.setdefault(figure.metric, []).append((node, figure))
    fleet = [_over_fleet(figures) for figures in values.values() if len(figures) > 2]
    if not fleet:
        raise BadInput("the cards have no figure in common")
    return fleet


def _figures(card: Card, by_device: bool) -> Iterator[Figure]:
    """Yield the figures of a card that do not follow from others, `by_device` if asked."""
    figures = (comparable(figure, card, by_device) for figure in card.figures())
    return (figure for figure in figures if figure and figure.name not in _REPEATED)


def _over_fleet(figures: Sequence[tuple[str, Figure]]) -> FleetFigure:
    values = [figure.value for _, figure in figures]
    median = statistics.median(values)
    outliers = None
    if len(values) >= FEWEST_ROBUST:
        limits = spread_of(values)
        outliers = [
            Outlier(node, one.device, one.value, (one.value - median) / limits.sigma)
            for node, one in figures
            if abs(one.value - median) > limits.half and not one.ends[0] <= median <= one.ends[1]
        ]
    figure = replace(figures[0][1], device=None)
    spread = max(values) / min(values) - 1 if min(values) > 0 else None
    return FleetFigure(figure, len(values), median, spread, outliers)


def compare_cards(cards: Sequence[Card]) -> dict[str, Any]:
    """Return what `describe_cards` shows as JSON values; raise BadInput as it does."""
    headers = [
        {"label": card.label, "created_at": card.created_at, "outcome": card.outcome}
        for card in cards
    ]
    if len(cards) == 2:
        figures = [
            {"figure": str(one), "values": (one.value, other.value), "ratio": ratio}
            for one, other, ratio in compare_two(*cards)
        ]
        return {"cards": headers, "figures": figures} | _NO_VERDICT
    fleet = []
    for one in compare_fleet(cards):
        outliers: Any = one.outliers and [outlier._asdict() for outlier in one.outliers]
        fleet.append(one._asdict() | {"figure": str(one.figure), "outliers": outliers})
    return {"cards": headers, "fleet": fleet}


def describe_cards(cards: Sequence[Card]) -> Iterator[str]:
    """Yield the lines of a comparison, for a console of 80 columns.

    Raises:
      BadInput: they cannot be compared.
    """
    letters = "AB" if len(cards) == 2 else [f"card {n}" for n in range(1, len(cards) + 1)]
    for letter, card in zip(letters, cards, strict=True):
        yield printable(f"{letter} {card.label}, {card.created_at}: {card.outcome}")
    lines = _describe_two(*cards) if len(cards) == 2 else _describe_fleet(cards)
    yield from map(printable, [*_different(cards), "", *lines])


def _different(cards: Sequence[Card]) -> Iterator[str]:
    """Yield what must be the same for figures to be of the same work, and is not."""
    settings: dict[str, Sequence[Any]] = {
        "devices": [without_maker(card.environment["device_kind"]) for card in cards],
        "number of devices": [card.environment["num_devices"] for card in cards],
        "preset": [card.preset for card in cards],
        "JAX": [card.environment.get("versions", {}).get("jax") for card in cards],
    }
    for name, values in settings.items():
        counts = collections.Counter(values).most_common()
        if len(counts) > 1:
            shown = [f"{value} ({count} card{'s' * (count != 1)})" for value, count in counts]
            if len(cards) == 2:
                shown = [f"A {values[0]}", f"B {values[1]}"]
            yield f"different {name}: {', '.join(shown)}"


def _describe_two(first: Card, second: Card) -> Iterator[str]:
    yield "± is the larger half of the 95 % interval. No verdict: each card is one run, and"
    yield "what changes between runs is in no interval."
    rows = []
    for one, other, ratio in compare_two(first, second):
        shown = "" if ratio is None else f"{ratio:.3f}"
        rows.append([*_heading(one), _with_interval(one), _with_interval(other), shown])
    yield from _grouped(("figure", "A", "B", "B / A"), rows)


def _describe_fleet(cards: Sequence[Card]) -> Iterator[str]:
    figures = compare_fleet(cards)
    if differ_in_size(card.environment for card in cards):
        yield "by device: batches and images/s of networks; collectives are not compared"
    outliers = [(one, outlier) for one in figures for outlier in one.outliers or ()]
    counts = collections.Counter(outlier.node for _, outlier in outliers)
    searched = sum(one.outliers is not None for one in figures)
    for node, count in counts.most_common():
        yield f"{node}: {count} outlier{'s' * (count != 1)} of {searched} figures"
    if searched and not outliers:
        yield f"no outliers of {searched} figures"
    if few := len(figures) - searched:
        yield f"{few} figures have fewer than {FEWEST_ROBUST} values: no outliers are looked for"
    if outliers:
        outliers.sort(key=lambda pair: -abs(pair[1].sigmas))
        yield ""
        rows = []
        for one, outlier in outliers[:_MOST_OUTLIERS]:
            device = "" if outlier.device is None else str(outlier.device)
            values = [_number(one.figure.name, value) for value in (outlier.value, one.median)]
            node, sigmas = outlier.node[-_WIDEST:], f"{outlier.sigmas:+.1f}"
            rows.append([str(one.figure), node, device, *values, sigmas])
        yield from _grouped(("outlier", "device", "value", "median", "sigmas"), rows)
        if (more := len(outliers) - _MOST_OUTLIERS) > 0:
            yield f"{more} more outliers, nearer to their medians: --json has all"
    yield ""
    rows = []
    for one in figures:
        spread = "" if one.spread is None else f"{one.spread:.1%}"
        median = _number(one.figure.name, one.median)
        rows.append([*_heading(one.figure), str(one.n), median, spread])
    yield from _grouped(("figure", "values", "median", "spread"), rows)


def _heading(figure: Figure) -> tuple[str, str]:
    """Return the heading that a figure is shown below, its device too, and its words there."""
    labels, words = figure.labels, figure.name
    if {*NETWORK} <= {*labels}:
        heading = f"{labels['network']} {labels['precision']}, batch {labels['batch']}"
    elif labels:
        heading = figure.name
        shown = labels
        if isinstance(size := labels.get("bytes"), int):
            unit, divisor = ("MiB", 2**20) if size >= 2**20 else ("KiB", 2**10)
            shown = labels | {"bytes": f"{size / divisor:g} {unit}"}
        # A number without a name says nothing.
        words = ", ".join(one if isinstance(one, str) else f"{n} {one}" for n, one in shown.items())
    else:
        heading = FIGURES[figure.name].part
    if figure.device is not None:
        heading += f", device {figure.device}"
    return heading, words[:_WIDEST]


def _number(name: str, value: float) -> str:
    """Return a value of a figure; counts are whole numbers."""
    is_whole = FIGURES[name].is_count and float(value).is_integer()
    return f"{value:,.0f}" if is_whole else four_digits(value)


def _with_interval(figure: Figure) -> str:
    value = _number(figure.name, figure.value)
    if not figure.estimate.interval:
        return value
    half = max(abs(end - figure.value) for end in figure.ends)
    # A fraction of what may be below 0 says nothing.
    if FIGURES[figure.name].min < 0 or not figure.value:
        return f"{value} ±{half:.2g}"
    return f"{value} ±{half / abs(figure.value):.1%}"


def _grouped(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table, its rows below their first cell, which is a line of its own."""
    groups: dict[str, list[Sequence[str]]] = {}
    for heading, *row in rows:
        groups.setdefault(heading, []).append(row)
    cells = [row for group in groups.values() for row in group]
    width = max(len(row[0]) for row in cells)
    table = [[first.ljust(width), *others] for first, *others in (headings, *cells)]
    first, *lines = text_table(table[0], table[1:])
    yield first
    lines = iter(lines)
    for heading, group in groups.items():
        yield f"{heading[:76]}:"
        for _ in group:
            yield next(lines)
