"""How values are shown: every column and label of the report uses these."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxbench.report.estimates import Estimate
from jaxbench.report.fields import number

UNKNOWN = "–"


def _of_number(show: Callable[..., str]) -> Callable[..., str]:
    """Make a format for any value: a dash for what is no number, ∞ for what never ends."""

    @functools.wraps(show)
    def shown(value: Any, *args: Any) -> str:
        if value == math.inf:
            return "∞"
        value = number(value)
        return UNKNOWN if value is None else show(value, *args)

    return shown


@_of_number
def plain(value: float, digits: int = 4) -> str:
    """Show a number with `digits` significant digits and thousands separators."""
    if value == 0 or not 1e-5 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


@_of_number
def rate(value: float) -> str:
    """Images per second."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}"


@_of_number
def seconds(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


@_of_number
def loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


@_of_number
def count(value: float) -> str:
    """Show a whole number."""
    return f"{value:,.0f}"


@_of_number
def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


@_of_number
def milliseconds(value_s: float) -> str:
    return plain(value_s * 1e3, 3)


@_of_number
def mebibytes(value_bytes: float) -> str:
    return f"{value_bytes / 2**20:,.0f}"


@_of_number
def giga(value: float) -> str:
    """Show thousands of millions."""
    return plain(value / 1e9)


@_of_number
def clock_time(value_s: float) -> str:
    """Show hours, minutes and seconds as h:mm:ss, as the published tables print a whole run."""
    whole = round(value_s)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def percent1(share: Any) -> str:
    return percent(share, 1)


def plain3(value: Any) -> str:
    return plain(value, 3)


def interval(show: Callable[[Any], str]) -> Callable[[Estimate | None], str]:
    """Return the format of both ends of an estimate's interval."""

    def shown(estimate: Estimate | None) -> str:
        if estimate is None or estimate.low is None or estimate.high is None:
            return UNKNOWN
        return f"{show(estimate.low)} to {show(estimate.high)}"

    return shown


def with_ends(
    value: float | None,
    low: float | None,
    high: float | None,
    show: Callable[[Any], str] = plain,
) -> str:
    """Show a value, and in brackets from where to where it lies."""
    ends = interval(show)(Estimate(value, low, high))
    return show(value) + ("" if ends == UNKNOWN else f" ({ends})")


def words(value: Any) -> str:
    """Show anything as text; a dash for None."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or UNKNOWN
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or UNKNOWN
    return str(value)


def moment(value: Any) -> str:
    """Show date and minute of an ISO time."""
    return words(value)[:16].replace("T", " ")


def printable(value: str) -> str:
    """Replace what would steer a terminal by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in value)
