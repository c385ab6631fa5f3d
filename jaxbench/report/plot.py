"""Draws charts as SVG: text that can be selected, colours from the page's own style sheet.

A series has its colour (Okabe and Ito's, which colour-blind readers tell apart), a dash and a
marker of its own, by classes `s0` ... `s6`; so it can be told in print too. matplotlib's
SVG would be light or dark, once and for all.
"""

import functools
import html
import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.report.blocks import BarChart, Chart, DotChart, LineChart, Point, Series
from jaxbench.report.formats import plain

# As many as can be told apart.
MOST_SERIES = 7
_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 12, 44
_MOST_MARKERS = 40
_TICK_ROOM = 30
# How far bars of neighbouring series are drawn apart.
_ASIDE = 4
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2", "12 4")
# Of a label in several lines.
_LINE = 14
# Of the text, as in page.css; a character's width in ems, about, of the page's font.
_FONT, _CHARACTER = 12, 0.56


def draw(chart: Chart) -> str:
    """Returns a chart as an <svg> element."""
    if isinstance(chart, LineChart):
        return _draw_lines(chart)
    if isinstance(chart, BarChart):
        return _draw_bars(chart)
    return _draw_dots(chart)


def legend_mark(place: int, reference: bool = False, joined: bool = True) -> str:
    """Returns a short piece of a series' line with its marker, for a legend.

    Args:
      place: the series' among those that are no reference.
      reference: an ideal or a limit, drawn without markers.
      joined: whether its points are joined; if not, the marker stands alone.
    """
    look = 'class="ref"' if reference else f'class="s{place}"'
    dash = "6 4" if reference else _DASHES[place]
    line = _element("path", d="M1 7H29", fill="none", stroke__dasharray=dash or None)
    line = line if joined else ""
    marker = "" if reference else _marker(place, 15, 7)
    return (
        '<svg class="mark" viewBox="0 0 30 14" aria-hidden="true">'
        f"<g {look}>{line}{marker}</g></svg>"
    )


class _Axis:
    """Maps values to places, and says where to put ticks.

    Args:
      values: all that must fit in.
      start, end: in the drawing.
      log: logarithmic; values must be positive.
      from_zero: begins at 0 if no value is below.
      own_ticks: has the values themselves as ticks, where they allow it.
      tick_room: how far ticks of a linear axis must be apart.
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
        tick_room: float = 40,
    ):
        self._start, self._end, self._log = start, end, log
        self._tick_room = tick_room
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            pad = max(0.04 * (high - low), 0.02)
            low, high = low - pad, high + pad
            if high - low < 0.3:
                middle = (low + high) / 2
                low, high = middle - 0.15, middle + 0.15
        elif from_zero and low >= 0:
            low, high = 0.0, high * 1.05 or 1.0
        elif high == low:
            low, high = low - (abs(low) * 0.05 or 1), high + (abs(high) * 0.05 or 1)
        else:
            pad = 0.05 * (high - low)
            low, high = low - pad, high + pad
        self._low, self._high = low, high
        self.ticks = (own_ticks and self._own_ticks(values)) or self._round_ticks()

    def __call__(self, value: float) -> float:
        position = math.log10(value) if self._log else value
        share = (position - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def _own_ticks(self, values: Sequence[float]) -> list[float]:
        """Whole numbers, where they are few and far between, are the ticks: batches, devices."""
        distinct = sorted(set(values))
        if len(distinct) > 12 or any(value % 1 for value in distinct):
            return []
        if len(distinct) == 1:
            return distinct
        places = [self(value) for value in distinct]
        room = [abs(after - place) for place, after in itertools.pairwise(places)]
        return distinct if min(room) >= _TICK_ROOM else []

    def _round_ticks(self) -> list[float]:
        if not self._log:
            # As many as have room beside one another.
            most = max(1.0, min(6.0, abs(self._end - self._start) / self._tick_room))
            return _multiples(self._low, self._high, _round_step((self._high - self._low) / most))
        decades = self._high - self._low
        factors = (1, 2, 5) if decades < 2 else (1,)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        if decades > 6:
            powers = powers[:: math.ceil(decades / 6)]
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if self._low <= math.log10(tick) <= self._high]
        if len(ticks) > 2:
            return ticks
        # Within less than a decade equal steps say more.
        low, high = 10.0**self._low, 10.0**self._high
        return _multiples(low, high, _round_step((high - low) / 4))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * 0.999)


def _draw_lines(chart: LineChart) -> str:
    points = [point for one in chart.series for point in one.points]
    ys = [point.y for point in points]
    for one in chart.series:
        ys += [end for point in one.points for end in (point.low, point.high) if end is not None]
    if chart.y_log:
        ys = [y for y in ys if y > 0]
    xs = [point.x for point in points]
    x_axis = _Axis(xs, _LEFT, _WIDTH - _RIGHT, log=chart.x_log, own_ticks=True, tick_room=64)
    y_axis = _Axis(ys, _HEIGHT - _BOTTOM, _TOP, log=chart.y_log, from_zero=chart.from_zero)
    parts = [_frame(x_axis, y_axis, chart.x_label, chart.y_label, _HEIGHT)]
    measured = [one for one in chart.series if not one.reference]
    ranged = [
        one for one in measured if not one.band and any(p.low is not None for p in one.points)
    ]
    place = 0
    for one in chart.series:
        # Bars at one place would hide each other.
        aside = _ASIDE * (place - (len(measured) - 1) / 2) if len(ranged) > 1 else 0.0
        at = functools.partial(_moved, x_axis, 0.0 if one.reference else aside)
        parts.append(_draw_series(one, place, at, y_axis, chart.y_log))
        place += not one.reference
    return _svg(chart.title, _HEIGHT, parts)


def _moved(axis: Callable[[float], float], aside: float, value: float) -> float:
    return axis(value) + aside


def _draw_series(
    series: Series,
    place: int,
    x_axis: Callable[[float], float],
    y_axis: Callable[[float], float],
    y_log: bool,
) -> str:
    points = [p for p in series.points if not y_log or p.y > 0]
    parts = []
    ranged = [p for p in points if p.low is not None and p.high is not None]
    ranged = [p for p in ranged if not y_log or p.low > 0]
    if series.band and len(ranged) > 1:
        there = [f"{_xy(x_axis(p.x), y_axis(p.high))}" for p in ranged]
        back = [f"{_xy(x_axis(p.x), y_axis(p.low))}" for p in reversed(ranged)]
        parts.append(_element("path", d="M" + "L".join(there + back) + "Z", class_="band"))
    elif not series.band:
        parts += [_whisker(x_axis(p.x), y_axis(p.low), y_axis(p.high)) for p in ranged]
    if series.line and len(points) > 1:
        dash = "6 4" if series.reference else _DASHES[place]
        path = "M" + "L".join(_xy(x_axis(p.x), y_axis(p.y)) for p in points)
        parts.append(_element("path", d=path, fill="none", stroke__dasharray=dash or None))
    if not series.reference:
        # Of many points a few are marked, so that lines are told apart without colours.
        for point in points if len(points) <= _MOST_MARKERS else points[:: len(points) // 8]:
            told = _element("title", series.label + ": " + _point_words(point))
            parts.append(f"<g>{_marker(place, x_axis(point.x), y_axis(point.y))}{told}</g>")
    look = "ref" if series.reference else f"s{place}"
    return f'<g class="{look}">{"".join(parts)}</g>'


def _point_words(point: Point) -> str:
    words = f"{plain(point.x)}; {plain(point.y)}"
    if point.low is not None and point.high is not None:
        words += f" ({plain(point.low)} to {plain(point.high)})"
    return words


def _draw_bars(chart: BarChart) -> str:
    row, gap = 24, 8
    left = _label_width([_lines(label, 1) for label, _ in chart.bars])
    height = _TOP + len(chart.bars) * (row + gap) + _BOTTOM
    longest = max(sum(values) for _, values in chart.bars)
    x_axis = _Axis([0.0, longest], left, _WIDTH - _RIGHT, from_zero=True, tick_room=64)
    parts = [_frame(x_axis, None, chart.x_label, "", height)]
    for number, (label, values) in enumerate(chart.bars):
        y = _TOP + number * (row + gap)
        parts.append(_row_label(label, _lines(label, 1), left, y + row / 2))
        before = 0.0
        for place, value in enumerate(values):
            start, end = x_axis(before), x_axis(before + value)
            before += value
            if value <= 0:
                continue
            told = _element("title", f"{label}: {chart.parts[place]} {plain(value)}")
            box = _element(
                "rect",
                x=_round(start),
                y=y,
                # A gap between neighbours, for who cannot tell the colours.
                width=_round(max(0.4, end - start - 1)),
                height=row,
                class_=f"fill f{place}",
            )
            share = value / sum(values)
            inside = ""
            if end - start > 34:
                middle = _round((start + end) / 2)
                inside = _element(
                    "text",
                    f"{share:.0%}",
                    x=middle,
                    y=_round(y + row / 2 + 4),
                    text__anchor="middle",
                    class_=f"on f{place}",
                )
            parts.append(f"<g>{box}{inside}{told}</g>")
    return _svg(chart.title, height, parts)


def _draw_dots(chart: DotChart) -> str:
    labels = [_lines(dot.label, 3) for dot in chart.dots]
    rows = [_LINE * len(lines) + 8 for lines in labels]
    left = _label_width(labels)
    height = _TOP + sum(rows) + _BOTTOM
    values = [
        value for dot in chart.dots for value in (dot.value, dot.low, dot.high) if value is not None
    ]
    x_axis = _Axis([0.0, *values], left, _WIDTH - _RIGHT - 60, from_zero=True, tick_room=64)
    parts = [_frame(x_axis, None, chart.x_label, "", height)]
    bottom = _TOP
    for dot, lines, row in zip(chart.dots, labels, rows, strict=True):
        y = bottom + row / 2
        bottom += row
        x = x_axis(dot.value)
        mark = [_element("path", d=f"M{_round(left)} {_round(y)}H{_round(x)}", class_="lead")]
        if dot.low is not None and dot.high is not None:
            low, high = _round(x_axis(dot.low)), _round(x_axis(dot.high))
            mark.append(_element("path", d=f"M{low} {_round(y)}H{high}", class_="w"))
        mark.append(_element("circle", cx=_round(x), cy=_round(y), r=4.5))
        mark.append(_element("title", f"{dot.label}: {plain(dot.value)}"))
        look = "published" if dot.published else "measured"
        parts.append(_row_label(dot.label, lines, left, y))
        parts.append(f'<g class="dot {look}">{"".join(mark)}</g>')
        end = max(x, x_axis(dot.high)) if dot.high is not None else x
        parts.append(
            _element("text", plain(dot.value), x=_round(end + 9), y=_round(y + 4), class_="value")
        )
    return _svg(chart.title, height, parts)


def _label_width(labels: Sequence[Sequence[str]]) -> float:
    longest = max(len(line) for lines in labels for line in lines)
    return min(320.0, 14 + longest * _FONT * _CHARACTER)


def _row_label(label: str, lines: Sequence[str], left: float, middle: float) -> str:
    """A label beside its row; what did not fit is shown by the pointer."""
    told = _element("title", label)
    first = middle + 4 - _LINE * (len(lines) - 1) / 2
    return "".join(
        f'<text x="{_round(left - 8)}" y="{_round(first + number * _LINE)}" text-anchor="end">'
        f"{html.escape(line)}{told}</text>"
        for number, line in enumerate(lines)
    )


def _lines(label: str, most: int) -> list[str]:
    wrapped = textwrap.wrap(label, 42, max_lines=most, placeholder="…", break_on_hyphens=False)
    return wrapped or ["–"]


def _frame(x_axis: _Axis, y_axis: _Axis | None, x_label: str, y_label: str, height: float) -> str:
    """Grid, ticks and what the axes are."""
    bottom = height - _BOTTOM
    parts = []
    for tick in x_axis.ticks:
        x = _round(x_axis(tick))
        parts.append(_element("path", d=f"M{x} {_TOP}V{bottom}", class_="grid"))
        parts.append(
            _element("text", _tick(tick, x_axis.ticks), x=x, y=bottom + 16, text__anchor="middle")
        )
    left = _LEFT
    if y_axis is not None:
        for tick in y_axis.ticks:
            y = _round(y_axis(tick))
            parts.append(_element("path", d=f"M{left} {y}H{_WIDTH - _RIGHT}", class_="grid"))
            name, middle = _tick(tick, y_axis.ticks), _round(y_axis(tick) + 4)
            parts.append(_element("text", name, x=left - 6, y=middle, text__anchor="end"))
        middle = (bottom + _TOP) / 2
        parts.append(
            _element(
                "text",
                y_label,
                transform=f"translate(13 {_round(middle)}) rotate(-90)",
                text__anchor="middle",
                class_="axis",
            )
        )
    parts.append(
        _element(
            "text",
            x_label,
            x=_WIDTH - _RIGHT,
            y=height - 8,
            text__anchor="end",
            class_="axis",
        )
    )
    return "".join(parts)


def _tick(value: float, ticks: Sequence[float]) -> str:
    """A tick's number: as many decimals as its neighbours need, no more."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        power = math.floor(math.log10(abs(value)))
        for size, letter in ((12, "T"), (9, "G"), (6, "M")):
            if power >= size and power < size + 3:
                return f"{value / 10.0**size:g}{letter}"
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    if len(ticks) > 1 and ticks[0] + ticks[-1] != 0:
        return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:g}"


def _marker(place: int, x: float, y: float) -> str:
    """One of seven shapes; the order is that of the colours."""
    shapes = (
        "M{l} {y}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0Z",
        "M{l} {t}h7.2v7.2h-7.2Z",
        "M{x} {u}l4.4 7.4h-8.8Z",
        "M{x} {u}l4.4 4.4l-4.4 4.4l-4.4 -4.4Z",
        "M{x} {d}l4.4 -7.4h-8.8Z",
        "M{l} {y}h7.2M{x} {t}v7.2",
        "M{l} {t}l7.2 7.2M{l} {b}l7.2 -7.2",
    )
    near = {"x": x, "y": y, "l": x - 3.6, "t": y - 3.6, "b": y + 3.6, "u": y - 4.4, "d": y + 4.4}
    shape = shapes[place].format(**{name: _round(value) for name, value in near.items()})
    return _element("path", d=shape, class_="m")


def _whisker(x: float, low: float, high: float) -> str:
    x_, low_, high_ = _round(x), _round(low), _round(high)
    ends = f"M{_round(x - 3)} {low_}h6M{_round(x - 3)} {high_}h6"
    return _element("path", d=f"M{x_} {low_}V{high_}{ends}", class_="w")


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_round(height)}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )


def _element(name: str, content: str = "", **attributes: Any) -> str:
    """An element with its text and attributes escaped; None leaves an attribute out."""
    told = "".join(
        f' {key.rstrip("_").replace("__", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{html.escape(content)}</{name}>" if content else f"<{name}{told}/>"


def _xy(x: float, y: float) -> str:
    return f"{_round(x)} {_round(y)}"


def _round(value: float) -> str:
    """A tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")
