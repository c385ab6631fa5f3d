"""Values out of records that anybody may have written."""

from collections.abc import Mapping
from typing import Any

_LARGEST = 1e30


def find(record: Any, *path: str) -> Any:
    """Return what a path of keys and attributes leads to, None where it ends early."""
    for name in path:
        if isinstance(record, Mapping):
            record = record.get(name)
        elif record is None or isinstance(record, (str, int, float, list)):
            return None
        else:
            record = getattr(record, name)
    return record


def number(record: Any, *path: str) -> float | None:
    """Return a finite number out of nested mappings; None for whatever else is there."""
    value = find(record, *path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # No figure of a run is as large; whole numbers that no float holds are larger still.
    return value if -_LARGEST < value < _LARGEST else None


def text(record: Any, *path: str) -> str | None:
    """Return a piece of text out of nested mappings; None for whatever else is there."""
    value = find(record, *path)
    return value if isinstance(value, str) and value else None


def mapping(record: Any, *path: str) -> dict[str, Any]:
    """Return a mapping out of nested mappings; an empty one for whatever else is there."""
    value = find(record, *path)
    return value if isinstance(value, dict) else {}


def items(record: Any, *path: str) -> list[Any]:
    """Return a list out of nested mappings; an empty one for whatever else is there."""
    value = find(record, *path)
    return value if isinstance(value, list) else []


def known(values: Any) -> list[Any]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def total(record: Any, *names: str) -> float | None:
    """Return the sum of numbers of a record, None where one of them is not known."""
    values = [number(record, name) for name in names]
    return None if None in values else sum(values)
