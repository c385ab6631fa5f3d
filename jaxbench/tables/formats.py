"""How values are shown: every column, label and note uses these."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxbench.analysis.statistics import Estimate
from jaxbench.metrics import UNKNOWN, count, form, words

Format = Callable[[Any], str]


@form
def clock_time(value_s: float) -> str:
    """Show hours, minutes and seconds as h:mm:ss, as the published tables print a whole run."""
    whole = round(value_s)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


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


def moment(value: Any) -> str:
    """Show date and minute of an ISO time."""
    return words(value)[:16].replace("T", " ")
