"""Settings of runs: what figures on one line have in common, and what tells lines apart."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxbench.metrics import UNKNOWN
from jaxbench.reports.blocks import MOST_SERIES

Item = TypeVar("Item")
# What a line's label says without its name, and how many others it says with theirs.
_UNNAMED = ("precision", "num_devices", "device_kind", "stage", "feed", "experiment", "network")
_MOST_NAMED = 3


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Any, list[Item]]:
    """Return items by their key, in the order of the first of each."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def in_parts(lines: Sequence[Item]) -> list[Sequence[Item]]:
    """Return lines in equal parts, as few as one chart each has room for."""
    parts = -(-len(lines) // MOST_SERIES)
    size = -(-len(lines) // max(1, parts))
    return [lines[start : start + size] for start in range(0, len(lines), max(1, size))]


def setting_key(setting: Mapping[str, Any], without: Sequence[str] = ()) -> tuple:
    """Return what is equal for figures that may stand on one line."""
    # A command line gives whole numbers as 4.0 too.
    return tuple(
        (name, repr(float(value) if type(value) is int and abs(value) < 2**53 else value))
        for name, value in setting.items()
        if name not in without
    )


def labelled(
    items: Iterable[Item], setting: Callable[[Item], Mapping[str, Any]]
) -> list[tuple[str, Item]]:
    """Return items with labels of all in which their settings differ, precision first.

    Precision is always named: nobody should have to ask.
    """
    items = list(items)
    settings = [setting(item) for item in items]
    names = differing_names(settings)
    first = [name for name in _UNNAMED if name in names or name == "precision"]
    others = [name for name in names if name not in _UNNAMED]
    found = []
    for item, own in zip(items, settings, strict=True):
        told = [_shown(own.get(name), name) for name in first]
        found.append((", ".join(filter(None, [*told, name_settings(own, others)])), item))
    return found


def thinned(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return about `most` of the items at equal distances, the last among them."""
    return items[::-1][:: max(1, -(-len(items) // most))][::-1]


def differing(setting: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Name what differs between a setting and others, but for what needs no name."""
    names = [name for name in differing_names(others) if name not in _UNNAMED]
    return name_settings(setting, names)


def differing_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which settings differ."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [n for n in names if len({repr(setting.get(n)) for setting in settings}) > 1]


def name_settings(setting: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of the named fields with their values, and how many more there are."""
    told = [f"{name}={_shown(setting.get(name))}" for name in names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        told.append(f"and {len(names) - _MOST_NAMED} more settings")
    return ", ".join(told)


def _shown(value: Any, name: str = "") -> str:
    if value is None:
        return UNKNOWN
    if name == "num_devices":
        return f"{value:.0f} device{'s' if value != 1 else ''}"
    # 10.0 epochs are the 10 of another run.
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
