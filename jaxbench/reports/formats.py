"""How values are shown: every column, label and note uses these."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxbench.reports.fields import Estimate, number
from jaxbench.terminal import four_digits

UNKNOWN = "–"
Format = Callable[[Any], str]


def _of_number(show: Callable[[float], str]) -> Format:
    """Make a format for any value: a dash for what is no number, ∞ for what never ends."""

    @functools.wraps(show)
    def shown(value: Any) -> str:
        if value == math.inf:
            return "∞"
        value = number(value)
        return UNKNOWN if value is None else show(value)

    return shown


@_of_number
def plain(value: float) -> str:
    """Show a number with four significant digits and thousands separators."""
    return four_digits(value)


@_of_number
def clock_time(value_s: float) -> str:
    """Show hours, minutes and seconds as h:mm:ss, as the published tables print a whole run."""
    whole = round(value_s)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


count = _of_number("{:,.0f}".format)
percent = _of_number(lambda share: f"{100 * share:.2f}")
milliseconds = _of_number(lambda value_s: plain(value_s * 1e3))
mebibytes = _of_number(lambda value_bytes: plain(value_bytes / 2**20))
giga = _of_number(lambda value: plain(value / 1e9))
tera = _of_number(lambda value: plain(value / 1e12))


def interval(show: Format) -> Callable[[Estimate | None], str]:
    """Return the format of both ends of an estimate's interval."""

    def shown(of: Estimate | None) -> str:
        known = of is not None and None not in (of.low, of.high)
        return f"{show(of.low)} to {show(of.high)}" if known else UNKNOWN

    return shown


def with_interval(show: Format) -> Callable[[Estimate | None], str]:
    """Return the format of an estimate with the ends of its interval in brackets."""

    def shown(of: Estimate | None) -> str:
        ends = interval(show)(of)
        return show(of and of.value) + ("" if ends == UNKNOWN else f" ({ends})")

    return shown


def span(values: Iterable[float], show: Format = count) -> str:
    """Show the least and the greatest of values, one of them where they look alike."""
    values = sorted(values)
    return " to ".join(dict.fromkeys(map(show, values[:1] + values[-1:])))


def words(value: Any) -> str:
    """Show anything as text; a dash for None."""
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return UNKNOWN if value is None or value == "" else str(value)


def moment(value: Any) -> str:
    """Show date and minute of an ISO time."""
    return words(value)[:16].replace("T", " ")
