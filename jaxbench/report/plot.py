"""Draws charts as SVG: text that can be selected, colours from the page's own style sheet.

A series has its colour (Okabe and Ito's, which colour-blind readers tell apart), a dash and a
marker of its own, by classes `s0` ... `s6`; so it can be told in print too. matplotlib's
SVG would be light or dark, once and for all.
"""

import html
import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

from jaxbench.report.axis import Axis
from jaxbench.report.blocks import BarChart, Chart, Dot, DotChart, LineChart, Point, Series
from jaxbench.report.estimates import Estimate
from jaxbench.report.formats import UNKNOWN, plain, with_interval

# As many as can be told apart.
MOST_SERIES = 7
_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 12, 44
_MOST_MARKERS = 40
# How far bars of neighbouring series are drawn apart.
_ASIDE = 4
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
# The height of a bar and the gap below it.
_BAR, _GAP = 24, 8
# Of a label in several lines.
_LINE = 14
# Of the text, as in page.css; a character's width in ems, about, of the page's font.
_FONT, _CHARACTER = 12, 0.56


def draw(chart: Chart) -> str:
    """Return a chart as an <svg> element."""
    if isinstance(chart, LineChart):
        return _draw_lines(chart)
    if isinstance(chart, BarChart):
        return _draw_bars(chart)
    return _draw_dots(chart)


def legend_mark(place: int, reference: bool = False, joined: bool = True) -> str:
    """Return a short piece of a series' line with its marker, for a legend.

    Args:
      place: the series' among those that are no reference.
      reference: an ideal or a limit, drawn without markers.
      joined: whether its points are joined; if not, the marker stands alone.
    """
    line = _line([(1, 7), (29, 7)], place, reference) if joined else ""
    marker = "" if reference else _marker(place, 15, 7)
    return (
        '<svg class="mark" viewBox="0 0 30 14" aria-hidden="true">'
        f'<g class="{_look(place, reference)}">{line}{marker}</g></svg>'
    )


def _draw_lines(chart: LineChart) -> str:
    points = [point for one in chart.series for point in one.points]
    ys = [y for p in points for y in (p.y, p.low, p.high) if y is not None]
    ys = [y for y in ys if y > 0 or not chart.y_log]
    xs = [point.x for point in points]
    x_axis = Axis(xs, _LEFT, _WIDTH - _RIGHT, log=chart.x_log, own_ticks=True, tick_room=64)
    y_axis = Axis(ys, _HEIGHT - _BOTTOM, _TOP, log=chart.y_log, from_zero=chart.from_zero)
    parts = [_frame(x_axis, y_axis, chart.x_label, chart.y_label, _HEIGHT)]
    measured = [one for one in chart.series if not one.reference]
    ranged = [
        one for one in measured if not one.band and any(p.low is not None for p in one.points)
    ]
    place = 0
    for one in chart.series:
        # Bars at one place would hide each other.
        aside = _ASIDE * (place - (len(measured) - 1) / 2) if len(ranged) > 1 else 0.0
        drawn = [p for p in one.points if not chart.y_log or p.y > 0]
        there = [
            Point(
                x_axis(p.x) + (0.0 if one.reference else aside),
                y_axis(p.y),
                *(map(y_axis, (p.low, p.high)) if _has_ends(p, chart.y_log) else ()),
            )
            for p in drawn
        ]
        parts.append(_draw_series(one, place, drawn, there))
        place += not one.reference
    return _svg(chart.title, _HEIGHT, parts)


def _has_ends(point: Point, log: bool) -> bool:
    return None not in (point.low, point.high) and (not log or point.low > 0)


def _draw_series(
    series: Series, place: int, points: Sequence[Point], there: Sequence[Point]
) -> str:
    """Return one series, its points and where they are in the drawing."""
    parts = []
    ranged = [p for p in there if p.low is not None]
    if series.band and len(ranged) > 1:
        edge = [(p.x, p.high) for p in ranged] + [(p.x, p.low) for p in reversed(ranged)]
        parts.append(_element("path", d=_route(edge) + "Z", class_="band"))
    elif not series.band:
        parts += [_whisker(p.x, p.low, p.high) for p in ranged]
    if series.line and len(points) > 1:
        parts.append(_line([(p.x, p.y) for p in there], place, series.reference))
    if not series.reference:
        # Of many points a few are marked, so that lines are told apart without colours.
        step = 1 if len(points) <= _MOST_MARKERS else len(points) // 8
        for point, at in zip(points[::step], there[::step], strict=True):
            y = with_interval(plain)(Estimate(point.y, point.low, point.high))
            told = _element("title", f"{series.label}: {plain(point.x)}; {y}")
            parts.append(f"<g>{_marker(place, at.x, at.y)}{told}</g>")
    return f'<g class="{_look(place, series.reference)}">{"".join(parts)}</g>'


def _draw_bars(chart: BarChart) -> str:
    left = _label_width([_lines(label, 1) for label, _ in chart.bars])
    height = _TOP + len(chart.bars) * (_BAR + _GAP) + _BOTTOM
    longest = max(sum(values) for _, values in chart.bars)
    x_axis = Axis([0.0, longest], left, _WIDTH - _RIGHT, from_zero=True, tick_room=64)
    parts = [_frame(x_axis, None, chart.x_label, "", height)]
    for number, (label, values) in enumerate(chart.bars):
        y = _TOP + number * (_BAR + _GAP)
        parts.append(_row_label(label, _lines(label, 1), left, y + _BAR / 2))
        ends = [x_axis(end) for end in itertools.accumulate(values, initial=0.0)]
        for place, value in enumerate(values):
            if value <= 0:
                continue
            start, end = ends[place : place + 2]
            told = _element("title", f"{label}: {chart.parts[place]} {plain(value)}")
            # A gap between neighbours, for who cannot tell the colours.
            size = {"width": max(0.4, end - start - 1), "height": _BAR}
            box = _element("rect", x=start, y=y, **size, class_=f"fill f{place}")
            share, middle = f"{value / sum(values):.0%}", (start + end) / 2
            inside = _text(share, middle, y + _BAR / 2 + 4, "middle", f"on f{place}")
            parts.append(f"<g>{box}{inside if end - start > 34 else ''}{told}</g>")
    return _svg(chart.title, height, parts)


def _draw_dots(chart: DotChart) -> str:
    labels = [_lines(dot.label, 3) for dot in chart.dots]
    heights = [_LINE * len(lines) + 8 for lines in labels]
    left = _label_width(labels)
    height = _TOP + sum(heights) + _BOTTOM
    values = [x for dot in chart.dots for x in (dot.value, dot.low, dot.high) if x is not None]
    x_axis = Axis([0.0, *values], left, _WIDTH - _RIGHT - 60, from_zero=True, tick_room=64)
    parts = [_frame(x_axis, None, chart.x_label, "", height)]
    tops = itertools.accumulate(heights, initial=_TOP)
    for dot, lines, top, row in zip(chart.dots, labels, tops, heights, strict=False):
        parts.append(_row_label(dot.label, lines, left, top + row / 2))
        parts.append(_draw_dot(dot, x_axis, left, top + row / 2))
    return _svg(chart.title, height, parts)


def _draw_dot(dot: Dot, x_axis: Axis, left: float, y: float) -> str:
    x = end = x_axis(dot.value)
    mark = _path("M", left, y, "H", x, class_="lead")
    if dot.low is not None and dot.high is not None:
        end = max(x, x_axis(dot.high))
        mark += _path("M", x_axis(dot.low), y, "H", x_axis(dot.high), class_="w")
    mark += _element("circle", cx=x, cy=y, r=4.5)
    mark += _element("title", f"{dot.label}: {plain(dot.value)}")
    look = "published" if dot.published else "measured"
    return f'<g class="dot {look}">{mark}</g>' + _text(
        plain(dot.value), end + 9, y + 4, look="value"
    )


def _label_width(labels: Sequence[Sequence[str]]) -> float:
    longest = max(len(line) for lines in labels for line in lines)
    return min(320.0, 14 + longest * _FONT * _CHARACTER)


def _row_label(label: str, lines: Sequence[str], left: float, middle: float) -> str:
    """Return a label beside its row; what did not fit is shown by the pointer."""
    told = _element("title", label)
    first = middle + 4 - _LINE * (len(lines) - 1) / 2
    return "".join(
        _text(line, left - 8, first + number * _LINE, "end", title=told)
        for number, line in enumerate(lines)
    )


def _lines(label: str, most: int) -> list[str]:
    wrapped = textwrap.wrap(label, 42, max_lines=most, placeholder="…", break_on_hyphens=False)
    return wrapped or [UNKNOWN]


def _frame(x_axis: Axis, y_axis: Axis | None, x_label: str, y_label: str, height: float) -> str:
    """Return grid, ticks and what the axes are."""
    bottom = height - _BOTTOM
    parts = []
    for tick in x_axis.ticks:
        x = x_axis(tick)
        parts.append(_path("M", x, _TOP, "V", bottom, class_="grid"))
        parts.append(_text(x_axis.name(tick), x, bottom + 16, "middle"))
    if y_axis is not None:
        for tick in y_axis.ticks:
            y = y_axis(tick)
            parts.append(_path("M", _LEFT, y, "H", _WIDTH - _RIGHT, class_="grid"))
            parts.append(_text(y_axis.name(tick), _LEFT - 6, y + 4, "end"))
        turned = f"translate(13 {_round((bottom + _TOP) / 2)}) rotate(-90)"
        parts.append(
            _element("text", y_label, transform=turned, text__anchor="middle", class_="axis")
        )
    parts.append(_text(x_label, _WIDTH - _RIGHT, height - 8, "end", "axis"))
    return "".join(parts)


def _look(place: int, reference: bool) -> str:
    return "ref" if reference else f"s{place}"


def _line(at: Sequence[tuple[float, float]], place: int, reference: bool) -> str:
    dash = _REFERENCE_DASH if reference else _DASHES[place]
    return _element("path", d=_route(at), fill="none", stroke__dasharray=dash or None)


def _route(at: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_round(x)} {_round(y)}" for x, y in at)


def _marker(place: int, x: float, y: float) -> str:
    near = {"x": x, "y": y, "l": x - 3.6, "t": y - 3.6, "b": y + 3.6, "u": y - 4.4, "d": y + 4.4}
    near = {name: _round(value) for name, value in near.items()}
    return _element("path", d=_MARKERS[place].format(**near), class_="m")


def _whisker(x: float, low: float, high: float) -> str:
    ends = ("M", x - 3, low, "h6 M", x - 3, high, "h6")
    return _path("M", x, low, "V", high, *ends, class_="w")


def _path(*steps: str | float, **attributes: Any) -> str:
    return _element("path", d=" ".join(map(_round, steps)), **attributes)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_round(height)}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )


def _text(
    words: str, x: float, y: float, anchor: str | None = None, look: str | None = None, title=""
) -> str:
    return _element("text", words, title, x=x, y=y, text__anchor=anchor, class_=look)


def _element(name: str, content: str = "", inside: str = "", **attributes: Any) -> str:
    """Return an element with text and attributes escaped; None leaves an attribute out.

    Args:
      name: of the element.
      content: its text.
      inside: elements behind the text.
      attributes: `class_` for class, `__` for a dash; numbers are rounded.
    """
    told = "".join(
        f' {key.rstrip("_").replace("__", "-")}="{html.escape(_round(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    within = html.escape(content) + inside
    return f"<{name}{told}>{within}</{name}>" if within else f"<{name}{told}/>"


def _round(value: Any) -> str:
    """Return a number with a tenth of a pixel, which is enough; anything else as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
