"""The card on a console of 80 columns: what most readers look at first."""

import statistics
from collections.abc import Iterator, Sequence

from jaxbench.cards.card import Card, Figure, Part
from jaxbench.cards.figures import FIGURES, NETWORK
from jaxbench.cards.verdict import failures
from jaxbench.clock import duration
from jaxbench.records.writers.tables import text_table
from jaxbench.terminal import four_digits

# What a title's unit is of the figure's own.
_SCALES = {"dispatch_latency_s": 1e6}
# A card says by how much it took longer from here on.
_LATE = 1.2


def card_lines(card: Card) -> Iterator[str]:
    """Yield the card: the machine, the parts, the figures, the verdict."""
    yield f"{card.label}, preset {card.preset}"
    taken_s = 60 * card.minutes_taken
    asked_s = 60 * card.minutes_asked
    when = card.created_at[:16].replace("T", " ")
    yield f"{when}, took {duration(taken_s)} of {duration(asked_s)}"
    if taken_s > _LATE * asked_s:
        yield f"this is {taken_s / asked_s - 1:.0%} longer than asked for"
    yield from _load(card)
    yield ""
    yield from _parts(card)
    for lines in (_figures(card), _collectives(card), _networks(card)):
        if lines:
            yield ""
            yield from lines
    yield ""
    yield from verdict_lines(card)


def _load(card: Card) -> Iterator[str]:
    percent, processes = card.load.other_cpu_percent, card.load.other_gpu_processes
    if percent is not None:
        yield f"meanwhile other processes took {percent:.0f} % of the processor"
    if processes:
        yield f"{processes} other process(es) used the GPUs"


def _parts(card: Card) -> list[str]:
    lines = []
    for part in card.parts:
        seconds = f"{part.time_s:.0f} s" if part.status != "skipped" or part.time_s else ""
        lines.append(f"{part.name:<11} {part.status:<8} {seconds:>6}  {_about(part)}".rstrip())
        if part.name == "doctor":
            marked = [check for check in part.checks if check.status != "ok"]
            for check in marked:
                lines.append(f"  {check.status}: {check.name}: {check.found}")
                lines += [f"  -> {check.advice}"] * (check.status == "problem")
        else:
            lines += [f"  {check.name}: {check.found}" for check in part.checks]
    return lines


def _about(part: Part) -> str:
    if part.reason is not None:
        return part.reason
    if part.name == "doctor":
        counts = dict.fromkeys(("ok", "warning", "problem"), 0)
        for check in part.checks:
            counts[check.status] += 1
        return ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    if part.name == "corruption":
        rounds = sum(figure.value for figure in part.named("rounds"))
        wrong = sum(figure.value for figure in part.named("mismatches"))
        return f"{rounds:.0f} rounds compared bit for bit, {wrong:.0f} mismatches"
    return f"{len(part.figures)} figure{'s' * (len(part.figures) != 1)}"


def _figures(card: Card) -> list[str]:
    """Return a table of the figures that have a title; the median over several devices."""
    rows = []
    for name, kind in FIGURES.items():
        own = [figure for figure in card.figures() if figure.name == name]
        if not own or not kind.title:
            continue
        shares = [one.share_of_nominal for one in own if one.share_of_nominal is not None]
        scale = _SCALES.get(name, 1)
        rows.append(
            [
                kind.title,
                four_digits(scale * statistics.median(figure.value for figure in own)),
                _range(own, scale),
                f"{statistics.median(shares):.0%}" if shares else "",
            ]
        )
    if not rows:
        return []
    several = card.environment["num_devices"] > 1 and card.environment["backend"] != "cpu"
    headings = ["measured", "median" if several else "value", "from ... to", "of the peak"]
    return _table(headings, rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], spare=()) -> list[str]:
    """Return a table's lines, its first column to the left, without empty columns."""
    keep = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    lines = [[line[at] for at in keep] for line in (headings, *rows)]
    width = max(len(first) for first, *_ in lines)
    lines = [[first.ljust(width), *others] for first, *others in lines]
    return text_table(lines[0], lines[1:], spare=spare)


def _range(figures: Sequence[Figure], scale: float = 1) -> str:
    """Return the interval of one figure, or the least and the most of several devices."""
    if len(figures) > 1:
        values = [figure.value for figure in figures]
        low, high = min(values), max(values)
    elif figures[0].interval is None:
        return ""
    else:
        low, high = figures[0].interval
    return f"{four_digits(scale * low)} to {four_digits(scale * high)}"


def _collectives(card: Card) -> list[str]:
    """Return a table of the largest of each collective."""
    part = card.part("collectives")
    largest: dict[str, Figure] = {}
    for figure in part.named("bus_gb_per_s") if part else ():
        known = largest.get(figure.labels["collective"])
        if known is None or figure.labels["bytes"] > known.labels["bytes"]:
            largest[figure.labels["collective"]] = figure
    rows = [
        [f"{name}, {figure.labels['bytes'] / 2**20:g} MiB", four_digits(figure.value)]
        for name, figure in largest.items()
    ]
    return _table(["collective over all devices", "bus, GB/s"], rows) if rows else []


def _networks(card: Card) -> list[str]:
    part = card.part("networks")
    rates = [*part.named("images_per_s")] if part else []
    if not rates:
        return []
    columns = {
        "MFU": ("mfu", lambda value: f"{value:.1%}"),
        "of measured": ("measured_peak_share", lambda value: f"{value:.1%}"),
        "J/image": ("energy_j_per_image", four_digits),
        "compile": ("compile_cold_s", lambda value: f"{value:.1f} s"),
        "cached": ("compile_warm_s", lambda value: f"{value:.1f} s"),
    }
    others = {figure.key: figure.value for figure in part.figures}
    rows = []
    for rate in rates:
        row = [str(rate.labels[name]) for name in NETWORK]
        row += [four_digits(rate.value), _range([rate])]
        for name, write in columns.values():
            value = others.get((name, *rate.key[1:]))
            row.append("" if value is None else write(value))
        rows.append(row)
    headings = [*NETWORK, "images/s", "from ... to", *columns]
    return _table(headings, rows, spare=("cached", "compile", "from ... to"))


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
