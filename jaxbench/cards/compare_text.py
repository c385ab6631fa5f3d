"""Cards side by side on a console of 80 columns."""

import collections
from collections.abc import Callable, Iterator, Sequence

from jaxbench.cards.card import Card, Figure
from jaxbench.cards.compare import FEWEST, common_figures, compare_fleet, differ_in_size, difference
from jaxbench.cards.figures import FIGURES, NETWORK
from jaxbench.tables.text import text_table
from jaxbench.terminal import four_digits, printable

# The widest first column that leaves 80 columns to a table.
_WIDEST = 28
# Of a fleet no more outliers are shown; --json has all.
_MOST_OUTLIERS = 20


def describe_cards(cards: Sequence[Card]) -> Iterator[str]:
    """Yield the lines of a comparison.

    Raises:
      BadInput: they cannot be compared.
    """
    letters = "AB" if len(cards) == 2 else [f"card {n}" for n in range(1, len(cards) + 1)]
    for letter, card in zip(letters, cards, strict=True):
        judged = card.verdict.outcome if card.verdict else "not judged"
        yield printable(f"{letter} {card.label}, {card.created_at}: {judged.replace('_', ' ')}")
    lines = _describe_two(*cards) if len(cards) == 2 else _describe_fleet(cards)
    yield from map(printable, [*_different(cards), "", *lines])


def _describe_two(first: Card, second: Card) -> Iterator[str]:
    yield "± is the larger half of the 95 % interval; intervals overlap, or B's is the"
    yield "better or worse one. That is no verdict: each card is one run, and what changes"
    yield "between runs is in no interval."
    rows = []
    for a, b in common_figures(first, second):
        compared = difference(a, b)
        ratio = "" if compared.ratio is None else f"{compared.ratio:.3f}"
        apart = compared.intervals.removeprefix("apart, ")
        rows.append([*_place(a), _with_interval(a), _with_interval(b), ratio, apart])
    yield from _grouped(("figure", "A", "B", "B / A", "intervals"), rows)


def _different(cards: Sequence[Card]) -> Iterator[str]:
    """Yield what must be the same for figures to be of the same work, and is not."""
    facts: dict[str, Callable[[Card], object]] = {
        "devices": lambda card: card.environment["device_kind"],
        "number of devices": lambda card: card.environment["num_devices"],
        "preset": lambda card: card.preset,
        "JAX": lambda card: card.environment.get("versions", {}).get("jax"),
    }
    for name, value_of in facts.items():
        values = [str(value_of(card)) for card in cards]
        counts = collections.Counter(values).most_common()
        if len(counts) > 1:
            shown = [f"{value} ({count} card{'s' * (count != 1)})" for value, count in counts]
            if len(cards) == 2:
                shown = [f"A {values[0]}", f"B {values[1]}"]
            yield f"different {name}: {', '.join(shown)}"


def _place(figure: Figure) -> tuple[str, str]:
    """Return the heading that a figure stands under, its device too, and its own words there."""
    labels, words = figure.labels, []
    if {*NETWORK} <= {*labels}:
        heading = f"{labels['network']} {labels['precision']}, batch {labels['batch']}"
        words.append(figure.name)
    elif labels:
        heading = figure.name
        for name, value in labels.items():
            if name == "bytes" and isinstance(value, int):
                unit, divisor = ("MiB", 2**20) if value >= 2**20 else ("KiB", 2**10)
                words.append(f"{value / divisor:g} {unit}")
            else:  # a number without a name says nothing
                words.append(value if isinstance(value, str) else f"{name} {value}")
    else:
        heading = FIGURES[figure.name].part
        words.append(figure.name)
    if figure.device is not None:
        heading += f", device {figure.device}"
    return heading, ", ".join(words)[:_WIDEST]


def _number(name: str, value: float) -> str:
    """Return a value of a figure; counts are whole numbers, large ones in short."""
    if not FIGURES[name].is_count or not float(value).is_integer():
        return four_digits(value)
    return f"{value:,.0f}" if value < 1e6 else f"{value:.4g}"


def _with_interval(figure: Figure) -> str:
    value = _number(figure.name, figure.value)
    if figure.interval is None:
        return value
    half = max(abs(end - figure.value) for end in figure.interval)
    # A share of what may be below 0 says nothing.
    if FIGURES[figure.name].low < 0 or not figure.value:
        return f"{value} ±{half:.2g}"
    return f"{value} ±{half / abs(figure.value):.1%}"


def _grouped(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table, its rows below their first cell, which is a line of its own."""
    headed: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        headed.setdefault(row[0], []).append(row)
    rows = [row for group in headed.values() for row in group]
    width = max(len(row[1]) for row in rows)
    cells = [[row[1].ljust(width), *row[2:]] for row in rows]
    first, *lines = text_table([headings[0].ljust(width), *headings[1:]], cells)
    yield first
    heading = None
    for row, line in zip(rows, lines, strict=True):
        if row[0] != heading:
            heading = row[0]
            yield f"{heading[:76]}:"
        yield line


def _describe_fleet(cards: Sequence[Card]) -> Iterator[str]:
    figures = compare_fleet(cards)
    if differ_in_size(cards):
        yield "by device: batches and images/s of networks; collectives are not compared"
    outliers = [(one, outlier) for one in figures for outlier in one.outliers or ()]
    counts = collections.Counter(outlier.node for _, outlier in outliers)
    searched = sum(one.outliers is not None for one in figures)
    for node, count in counts.most_common():
        yield f"{node}: {count} outlier{'s' * (count != 1)} of {searched} figures"
    if searched and not outliers:
        yield f"no outliers of {searched} figures"
    if searched < len(figures):
        few = len(figures) - searched
        yield f"{few} figures have fewer than {FEWEST} values: no outliers are looked for"
    if outliers:
        outliers.sort(key=lambda pair: -abs(pair[1].z))
        yield ""
        rows = []
        for one, outlier in outliers[:_MOST_OUTLIERS]:
            device = "" if outlier.device is None else str(outlier.device)
            row = [
                outlier.node[-_WIDEST:],
                device,
                *(_number(one.like.name, float(value)) for value in (outlier.value, one.median)),
            ]
            rows.append([one.figure, *row, f"{outlier.z:+.1f}"])
        yield from _grouped(("outlier", "device", "value", "median", "z"), rows)
        if (more := len(outliers) - _MOST_OUTLIERS) > 0:
            yield f"{more} more outliers, nearer to their medians: --json has all"
    yield ""
    rows = []
    for one in figures:
        spread = "" if one.spread is None else f"{one.spread:.1%}"
        rows.append(
            [*_place(one.like), str(one.n), _number(one.like.name, float(one.median)), spread]
        )
    yield from _grouped(("figure", "values", "median", "spread"), rows)
