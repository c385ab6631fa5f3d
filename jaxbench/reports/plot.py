"""Draw charts as SVG: text that can be selected, colours from the page's own style sheet.

A series has its colour (Okabe and Ito's, which colour-blind readers tell apart), a dash and a
marker of its own, by classes `s0` ... `s6`; so it can be told in print too. matplotlib's
SVG would be light or dark, once and for all.
"""

import itertools
import math
import pathlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from jaxbench.analysis.rate import Estimate
from jaxbench.metrics import UNKNOWN, count, plain
from jaxbench.reports.blocks import Chart, DotChart, LineChart, Point, Series
from jaxbench.reports.work import thinned
from jaxbench.tables.columns import Cell, with_interval
from jaxbench.tables.table import Table

# So narrow that the text can be read on a phone.
_WIDTH, _HEIGHT = 420, 300
# The last tick may be as wide as 0.000125, half of it on the right of the axis.
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 386, 12, 44
_MOST_MARKERS = 40
# So many points are listed below a chart.
_MOST_LISTED = 40
# How far bars of neighbouring series are drawn apart.
_ASIDE = 4
# The least distance of ticks at the values themselves.
_TICK_ROOM = 30
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2", "12 4")
_REFERENCE_DASH = "6 4"
# The shapes of markers about {x}, {y}; the order is that of the colours.
_MARKERS = (
    "M{l} {y}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0Z",
    "M{l} {t}h7.2v7.2h-7.2Z",
    "M{x} {u}l4.4 7.4h-8.8Z",
    "M{x} {u}l4.4 4.4l-4.4 4.4l-4.4 -4.4Z",
    "M{x} {d}l4.4 -7.4h-8.8Z",
    "M{l} {y}h7.2M{x} {t}v7.2",
    "M{l} {t}l7.2 7.2M{l} {b}l7.2 -7.2",
)
# A line of a label in several.
_LINE = 14
# Between the marks of a row and its value.
_GAP = 9
# What is before the value of a further dot of a row.
_SIGNS = {"measured": " ● ", "published": " ○ "}
# The widest number below an axis, 100,000, with a gap.
_NUMBER_WIDTH = 52
# Of the text, as in page.css; a character's width in ems, about, of the page's font.
_FONT, _CHARACTER = 12, 0.6


class Axis:
    """Maps values to places from `start` to `end` in the drawing, and says where to put ticks.

    `from_zero` begins at 0 if no value is below; `own_ticks` has the values themselves as ticks,
    if they allow it. Values on a logarithmic axis must be positive.
    """

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        from_zero: bool = False,
        own_ticks: bool = False,
    ):
        self._start, self._end, self._log = start, end, log
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            # A quarter of a decade at least.
            pad = max(0.04 * (high - low), 0.02, 0.15 - (high - low) / 2)
        elif from_zero and low >= 0:
            low, high, pad = 0.0, high * 1.05 or 1.0, 0.0
        else:
            pad = 0.05 * (high - low) or abs(low) * 0.05 or 1.0
        self._low, self._high = low - pad, high + pad
        self.ticks = (own_ticks and self._own_ticks(values)) or self._round_ticks()

    def __call__(self, value: float) -> float:
        position = math.log10(value) if self._log else value
        share = (position - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def _own_ticks(self, values: Sequence[float]) -> list[float]:
        """Whole numbers, if they are few and far between, are the ticks: batches, devices."""
        distinct = sorted(set(values))
        if len(distinct) > 12 or any(value % 1 for value in distinct):
            return []
        places = map(self, distinct)
        room = [abs(after - place) for place, after in itertools.pairwise(places)]
        return distinct if min(room, default=math.inf) >= _TICK_ROOM else []

    def _round_ticks(self) -> list[float]:
        if not self._log:
            # As many as have room: beside one another they need more than one above the other.
            room = 64 if self._end > self._start else 40
            most = max(1.0, min(6.0, abs(self._end - self._start) / room))
            return _multiples(self._low, self._high, most)
        decades = self._high - self._low
        factors = (1, 2, 5) if decades < 2 else (1,)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        powers = powers[:: max(1, math.ceil(decades / 6))]
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if self._low <= math.log10(tick) <= self._high]
        # Within less than a decade equal steps say more.
        if len(ticks) < 3:
            ticks = _multiples(10.0**self._low, 10.0**self._high, 4)
        return self._apart(ticks)

    def _apart(self, ticks: Sequence[float]) -> list[float]:
        """Return ticks without those whose numbers would lie on the one before."""
        kept: list[float] = []
        # Powers of ten come first.
        for tick in sorted(ticks, key=lambda tick: (math.log10(tick) % 1 > 0, tick)):
            if all(abs(self(tick) - self(other)) >= _NUMBER_WIDTH for other in kept):
                kept.append(tick)
        return sorted(kept)

    def name(self, tick: float) -> str:
        """Return a tick's number: as many decimals as its neighbours need, no more."""
        for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if abs(tick) >= size:
                return f"{tick / size:g}{letter}"
        is_small = 0 < abs(tick) < 1e-3
        return f"{tick:.0e}".replace("e-0", "e-") if is_small else f"{tick:,.6g}"


def _multiples(low: float, high: float, most: float) -> list[float]:
    """Return the multiples of a round step from low to high, about `most` of them."""
    step = (high - low) / most
    power = 10.0 ** math.floor(math.log10(step))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= step * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def draw(chart: Chart) -> str:
    """Return a chart as an <svg> element."""
    layout = _draw_lines(chart) if isinstance(chart, LineChart) else _draw_dots(chart)
    none: dict[str, Any] = {"y": None, "series": (), "rows": ()}
    drawn = none | {"left": _LEFT, "height": _HEIGHT} | layout
    drawn |= {"width": _WIDTH, "right": _RIGHT, "top": _TOP, "bottom": drawn["height"] - _BOTTOM}
    return TEMPLATES.get_template("chart.svg").render(chart=chart, **drawn)


def legend(chart: Chart) -> Iterator[tuple[Markup, str]]:
    """Yield a mark and a label for each line."""
    for place, one in _placed(chart) if isinstance(chart, LineChart) else ():
        dash = _REFERENCE_DASH if one.reference else _DASHES[place]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        # Where points are not joined, the marker is alone.
        line = f'<path d="M1 7H29" fill="none"{dashed}/>' if len(one.points) > 1 else ""
        marker = "" if one.reference else f'<path d="{_marker(place, 15, 7)}" class="m"/>'
        yield (
            Markup(
                '<svg class="mark" viewBox="0 0 30 14" aria-hidden="true">'
                f'<g class="{"ref" if one.reference else f"s{place}"}">{line}{marker}</g></svg>'
            ),
            one.label,
        )


def _placed(chart: LineChart) -> list[tuple[int, Series]]:
    """Return each series with its place among those that are no reference."""
    measured = [one for one in chart.series if not one.reference]
    return [(measured.index(one) if one in measured else 0, one) for one in chart.series]


def _draw_lines(chart: LineChart) -> dict[str, Any]:
    points = [point for one in chart.series for point in one.points]
    ys = [y for p in points for y in (p.y, p.low, p.high, *p.runs) if y is not None]
    xs = [point.x for point in points]
    x_axis = Axis(xs, _LEFT, _RIGHT, log=chart.x_log, own_ticks=True)
    y_axis = Axis(ys, _HEIGHT - _BOTTOM, _TOP, from_zero=chart.from_zero)
    measured = [one for one in chart.series if not one.reference]
    ranged = [o for o in measured if not o.band and any(p.low is not None for p in o.points)]
    series = []
    for place, one in _placed(chart):
        # Bars at one place would hide each other.
        is_aside = len(ranged) > 1 and not one.reference
        aside = _ASIDE * (place - (len(measured) - 1) / 2) if is_aside else 0.0
        drawn = []
        for p in one.points:
            low, high = (None if end is None else y_axis(end) for end in (p.low, p.high))
            runs = [*map(y_axis, p.runs)]
            drawn.append(Point(x_axis(p.x) + aside, y_axis(p.y), low, high, runs=runs))
        bars = [p for p in drawn if p.low is not None]
        edge = [(p.x, p.high) for p in bars] + [(p.x, p.low) for p in reversed(bars)]
        # Of many points a few are marked, so that lines are told apart without colours.
        step = 1 if len(drawn) <= _MOST_MARKERS else len(drawn) // 8
        # What the page's script shows beside the pointer: no text of a run.
        tips = [
            f"{_px(at.x)} {_px(at.y)} {_with_ends(p.y, p.low, p.high)}; {_exact(p.x)}; {p.tooltip}"
            for at, p in zip(drawn, one.points, strict=True)
        ]
        series.append(
            {
                "look": "ref" if one.reference else f"s{place}",
                "dash": _REFERENCE_DASH if one.reference else _DASHES[place],
                "edge": edge if one.band and len(bars) > 1 else (),
                "ranged": () if one.band else bars,
                "runs": [(p.x, y) for p in drawn for y in p.runs],
                "line": [(p.x, p.y) for p in drawn] if len(drawn) > 1 else (),
                "markers": [_marker(place, p.x, p.y) for p in drawn[::step] if not one.reference],
                "label": one.label,
                "points": "|".join(tips),
            }
        )
    return {"x": x_axis, "y": y_axis, "series": series}


def _draw_dots(chart: DotChart) -> dict[str, Any]:
    labels, left = _labels([dot.label for dot in chart.dots])
    heights = [_LINE * len(lines) + 8 for lines in labels]
    tops = itertools.accumulate(heights, initial=_TOP)
    in_rows = [[dot, *dot.beside] for dot in chart.dots]
    ends = [
        [x for dot in row for x in (dot.value, dot.low, dot.high, *dot.runs) if x is not None]
        for row in in_rows
    ]
    values = [*itertools.chain(*ends), *(() if chart.x_log else (0.0,))]
    # Values are behind the marks of their row: the axis is as long as leaves room for each.
    texts = [
        plain(dot.value) + "".join(_SIGNS[mark.kind] + plain(mark.value) for mark in dot.beside)
        for dot in chart.dots
    ]
    rooms = [_GAP + _FONT * _CHARACTER * (len(text) + 1) for text in texts]
    for end in range(_RIGHT, int(left), -4):
        x_axis = Axis(values, left, end, log=chart.x_log, from_zero=True)
        last = [max(map(x_axis, of_row)) for of_row in ends]
        if all(at + room <= _WIDTH for at, room in zip(last, rooms, strict=True)):
            break
    rows = [
        {"label": dot.label, "lines": lines, "y": top + height / 2, "dots": dots}
        | {"text": text, "text_x": at + _GAP}
        for dot, lines, top, height, dots, text, at in zip(
            chart.dots, labels, tops, heights, in_rows, texts, last, strict=False
        )
    ]
    return {"x": x_axis, "left": left, "height": _TOP + sum(heights) + _BOTTOM, "rows": rows}


def _labels(labels: Sequence[str]) -> tuple[list[list[str]], float]:
    """Return labels, each in at most 5 lines, and the width that they need."""
    options: dict[str, Any] = {"max_lines": 5, "placeholder": "…", "break_on_hyphens": False}
    lines = [textwrap.wrap(label, 24, **options) or [UNKNOWN] for label in labels]
    longest = max(len(line) for wrapped in lines for line in wrapped)
    return lines, min(190.0, 14 + longest * _FONT * _CHARACTER)


def _marker(place: int, x: float, y: float) -> str:
    near = {"x": x, "y": y, "l": x - 3.6, "t": y - 3.6, "b": y + 3.6, "u": y - 4.4, "d": y + 4.4}
    return _MARKERS[min(place, 6)].format(**{name: _px(value) for name, value in near.items()})


def _route(at: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in at)


def _with_ends(value: float, low: float | None, high: float | None) -> str:
    return with_interval(Estimate(value, low, high), plain)


def _exact(value: float) -> str:
    """Return epochs, batches and devices as the whole numbers that they are."""
    return plain(value) if value % 1 else count(value)


def _px(value: float) -> str:
    """Return a number with a tenth of a pixel, which is enough."""
    return f"{value:.1f}".removesuffix(".0")


def numbers(chart: Chart) -> Table | None:
    """Return what is drawn, some of very many; None if a table of the section has it."""
    if not isinstance(chart, LineChart) or not chart.numbers:
        return None
    rows, groups = [], {}
    for one in chart.series:
        groups[len(rows)] = one.label
        for p in thinned(one.points, _MOST_LISTED):
            rows.append([Cell(_exact(p.x)), Cell(_with_ends(p.y, p.low, p.high))])
    return Table([chart.x_label, chart.y_label], rows, text_columns=(), groups=groups)


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"px": _px, "route": _route, "with_ends": lambda dot: _with_ends(*dot[1:4])}
