"""Values out of records that anybody may have written, and how they are shown."""

import math
from collections.abc import Mapping
from typing import Any

_LARGEST = 1e30


def number(record: Any, *path: str) -> float | None:
    """Returns a number out of nested mappings; None for whatever else stands there."""
    value = find(record, *path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # No figure of a run is as large; whole numbers that no float holds are larger still.
    return value if -_LARGEST < value < _LARGEST else None


def text(record: Any, *path: str) -> str | None:
    """Returns a piece of text out of nested mappings; None for whatever else stands there."""
    value = find(record, *path)
    return value if isinstance(value, str) and value else None


def mapping(record: Any, *path: str) -> dict[str, Any]:
    """Returns a mapping out of nested mappings; an empty one for whatever else stands there."""
    value = find(record, *path)
    return value if isinstance(value, dict) else {}


def items(record: Any, *path: str) -> list[Any]:
    """Returns a list out of nested mappings; an empty one for whatever else stands there."""
    value = find(record, *path)
    return value if isinstance(value, list) else []


def find(record: Any, *path: str) -> Any:
    """Returns what stands at a path of keys, None where it ends early."""
    for key in path:
        if not isinstance(record, Mapping):
            return None
        record = record.get(key)
    return record


def plain(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant ones and thousands marked; a dash for None."""
    if value is None:
        return "–"
    if value == 0 or not 1e-5 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def printable(words: str) -> str:
    """Text for a terminal: what would steer it is shown as a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def rate(value: float | None) -> str:
    """Images per second."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}"


def interval(low: float | None, high: float | None, show: Any = rate) -> str:
    """Both ends of an interval."""
    return "–" if low is None or high is None else f"{show(low)} to {show(high)}"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


def milliseconds(value_s: float | None) -> str:
    return "–" if value_s is None else plain(value_s * 1e3, 3)


def clock_time(value_s: float | None) -> str:
    """Hours, minutes and seconds as h:mm:ss, the way the published tables print a whole run."""
    if value_s is None:
        return "–"
    whole = round(value_s)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def percent(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def mebibytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def words(value: Any) -> str:
    """Anything as text; a dash for None."""
    if value is None or value == "":
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "–"
    return str(value)


def moment(value: str | None) -> str:
    """Date and minute of an ISO time."""
    return "–" if value is None else value[:16].replace("T", " ")
