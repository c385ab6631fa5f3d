"""The card on a console of 80 columns: what most readers look at first."""

import collections
import statistics
from collections.abc import Iterator, Sequence

from jaxbench.cards.card import Card, Figure, Part
from jaxbench.cards.figures import FIGURES, NETWORK
from jaxbench.cards.verdict import failures
from jaxbench.clock import duration
from jaxbench.metrics import METRICS
from jaxbench.tables.text import text_table
from jaxbench.terminal import four_digits

# {unit of the console: how many make one of the figure's own}.
_SCALES = {"us": 1e6}
# A card says by how much it took longer from here on.
_LATE = 1.2


def card_lines(card: Card) -> Iterator[str]:
    """Yield the card: the machine, the parts, the figures, the verdict."""
    yield f"{card.label}, preset {card.preset}"
    taken_s, asked_s = 60 * card.minutes_taken, 60 * card.minutes_asked
    when = card.created_at[:16].replace("T", " ")
    yield f"{when}, took {duration(taken_s)} of {duration(asked_s)}"
    if taken_s > _LATE * asked_s:
        yield f"this is {taken_s / asked_s - 1:.0%} longer than asked for"
    if card.load.other_cpu_percent is not None:
        percent = card.load.other_cpu_percent
        yield f"meanwhile other processes took {percent:.0f} % of the processor"
    if card.load.other_gpu_processes:
        yield f"{card.load.other_gpu_processes} other process(es) used the GPUs"
    yield ""
    for part in card.parts:
        yield from _part(part)
    for lines in (_figures(card), _collectives(card), _networks(card)):
        if lines:
            yield from ("", *lines)
    yield ""
    yield from verdict_lines(card)


def _part(part: Part) -> Iterator[str]:
    seconds = f"{part.time_s:.0f} s" if part.status != "skipped" or part.time_s else ""
    about = f"{len(part.figures)} figure{'s' * (len(part.figures) != 1)}"
    if part.name == "doctor":
        counts = collections.Counter(check.status for check in part.checks)
        about = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    if part.name == "corruption":
        rounds = sum(figure.value for figure in part.named("rounds"))
        wrong = sum(figure.value for figure in part.named("mismatches"))
        about = f"{rounds:.0f} rounds compared bit for bit, {wrong:.0f} mismatches"
    yield f"{part.name:<11} {part.status:<8} {seconds:>6}  {part.reason or about}".rstrip()
    for check in part.checks:
        if part.name != "doctor":
            yield f"  {check.name}: {check.found}"
        elif check.status != "ok":
            yield f"  {check.status}: {check.name}: {check.found}"
        if check.status == "problem":
            yield f"  -> {check.advice}"


def _figures(card: Card) -> list[str]:
    """Return a table of the figures that have a title; the median over several devices."""
    rows = []
    for kind in FIGURES.values():
        figures = [figure for figure in card.figures() if figure.name == kind.name]
        if figures and kind.title:
            fractions = [one.share_of_nominal for one in figures if one.share_of_nominal]
            scale = _SCALES.get(kind.unit, 1)
            middle = statistics.median(scale * figure.value for figure in figures)
            fraction = f"{statistics.median(fractions):.0%}" if fractions else ""
            title = f"{kind.title} [{kind.unit}]"
            rows.append([title, four_digits(middle), _range(figures, scale), fraction])
    return _table(["measured", "median", "from ... to", "of the peak"], rows)


def _collectives(card: Card) -> list[str]:
    """Return a table of the largest of each collective."""
    figures = [figure for figure in card.figures() if figure.name == "bus_gb_per_s"]
    largest = {}
    for figure in sorted(figures, key=lambda figure: figure.labels["bytes"]):
        title = f"{figure.labels['collective']}, {figure.labels['bytes'] / 2**20:g} MiB"  # type: ignore[operator]
        largest[figure.labels["collective"]] = [title, four_digits(figure.value)]
    return _table(["collective over all devices", "bus, GB/s"], [*largest.values()])


def _networks(card: Card) -> list[str]:
    columns = {
        "MFU": ("mfu", "{:.1%}".format),
        "of measured": ("measured_peak_share", "{:.1%}".format),
        "J/image": ("energy_j_per_image", four_digits),
        "compile": ("compile_cold_s", "{:.1f} s".format),
        "cached": ("compile_warm_s", "{:.1f} s".format),
    }
    values = {figure.key: figure.value for figure in card.figures()}
    rows = []
    for rate in card.figures():
        if rate.name == "images_per_s":
            row = [str(rate.labels[name]) for name in NETWORK]
            row += [four_digits(rate.value), _range([rate])]
            for name, write in columns.values():
                value = values.get((name, *rate.key[1:]))
                row.append("" if value is None else write(value))
            rows.append(row)
    headings = [*NETWORK, METRICS["images_per_s"].title, "from ... to", *columns]
    return _table(headings, rows, spare=("cached", "compile", "from ... to"))


def _range(figures: Sequence[Figure], scale: float = 1) -> str:
    """Return the interval of one figure, or the least and the most of several devices."""
    ends = [figure.value for figure in figures] if len(figures) > 1 else figures[0].interval
    return f"{four_digits(scale * min(ends))} to {four_digits(scale * max(ends))}" if ends else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], spare=()) -> list[str]:
    """Return a table's lines, its first column to the left, without empty columns."""
    if not rows:
        return []
    columns = [column for column in zip(headings, *rows, strict=True) if any(column[1:])]
    width = max(map(len, columns[0]))
    columns[0] = tuple(cell.ljust(width) for cell in columns[0])
    headings, *rows = zip(*columns, strict=True)
    return text_table(headings, rows, spare=spare)


def verdict_lines(card: Card) -> Iterator[str]:
    """Yield the verdict, and the findings that are behind it."""
    if card.verdict is None:
        return
    yield f"verdict: {card.verdict.outcome.replace('_', ' ').upper()}"
    unsure = {one.part for one in card.verdict.findings if one.status == "inconclusive"}
    if card.verdict.outcome == "inconclusive" and "host" in unsure:
        yield "  other work on this machine may be the cause: end it, and measure again"
    elif card.verdict.outcome == "inconclusive":
        yield "  some intervals are too wide to judge by: measure again, for more minutes"
    yield from (f"  {line}" for line in failures(card.verdict))
    for status in ("inconclusive", "incomplete", "warn"):
        for one in card.verdict.findings:
            if one.status == status:
                yield f"  {status}: {one.part}: {one.rule.replace('_', ' ')}: {one.text}"
