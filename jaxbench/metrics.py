"""How metrics are shown. Which there are, and what they mean, is in schema.py."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from jaxbench.terminal import four_digits

UNKNOWN = "–"


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and a known one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def plain(value: Any, decimals: int | None = None) -> str:
    """Show a number with four digits, or with decimals; a dash for anything else."""
    if not is_number(value):
        return UNKNOWN
    if value == math.inf:
        return "∞"
    return four_digits(value) if decimals is None else f"{value:,.{decimals}f}"


def count(value: Any) -> str:
    """Show a whole number."""
    return plain(value, 0)


def percent(fraction: Any) -> str:
    """Show a fraction as a percentage."""
    return plain(100 * fraction if is_number(fraction) else None, 2)


def clock_time(value_s: Any) -> str:
    """Show hours, minutes and seconds as h:mm:ss, as the published tables print a whole run."""
    if not is_number(value_s) or value_s == math.inf:
        return plain(value_s)
    whole = round(value_s)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def words(value: Any) -> str:
    """Show anything as text; a dash for None."""
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return UNKNOWN if value is None or value == "" else str(value)


# {unit: (its factor, its decimals)}; None for four digits. Times are
# recorded in seconds, sizes in bytes.
_UNITS: dict[str, tuple[float, int | None]] = {
    **dict.fromkeys(("", "s", "USD", "USD/h", "J", "kWh", "J/image", "W", "°C"), (1.0, None)),
    **{"count": (1.0, 0), "MHz": (1.0, 0), "%": (100.0, 2), "ms": (1e3, None)},
    **{"MB": (1e-6, None), "MiB": (2**-20, None), "GiB": (2**-30, None)},
    **dict.fromkeys(("GB/s", "GFLOP/s"), (1e-9, None)),
    "TFLOP": (1e-12, None),
}
# Units whose values have a form of their own.
_FORMS = {"text": words, "h:mm:ss": clock_time, "any": plain}


class Metric(NamedTuple):
    """What a metric is, and how it is shown.

    Attributes:
      meaning: what it is, for the reference.
      title: what people call it; "" if no table shows it.
      unit: what it is shown in; "count" and "text" are no units, nor is "any" for values of many.
      better: higher, lower, or "" if neither is.
      curve: its curve in TensorBoard and Weights & Biases; "" for none.
      shown: the tables that have a column for it: of a kind of record, `trial` for the
        table of a sweep, `seeds` for its statistics over seeds.
    """

    meaning: str
    title: str = ""
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    curve: str = ""
    shown: str = ""

    @property
    def heading(self) -> str:
        """The title with the unit, as the heading of a column."""
        bracket = "" if self.unit in ("", "count", "text", "any") else f" [{self.unit}]"
        return self.title + bracket

    @property
    def factor(self) -> float:
        """What a recorded value is multiplied with to be in the unit."""
        return _UNITS.get(self.unit, (1.0, None))[0]

    def show(self, value: Any) -> str:
        """Show a value in the unit, the same in every table: with four digits or as it has them."""
        if form := _FORMS.get(self.unit):
            return form(value)
        _, decimals = _UNITS[self.unit]
        return plain(value * self.factor if is_number(value) else None, decimals)


class Here(NamedTuple):
    """What a metric means in one class of records alone, and its curve there."""

    meaning: str
    curve: str = ""
