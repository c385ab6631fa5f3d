"""Group what belongs together, and name what tells it apart."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxbench.metrics import UNKNOWN
from jaxbench.records.attempts import LIBRARIES
from jaxbench.records.same import BOARD_SETTINGS, DEFAULT_FLAGS, differing, setting_key
from jaxbench.reports.blocks import MOST_SERIES

Item = TypeVar("Item")
# What a line's label says without its name, and how many others it says with theirs.
_UNNAMED = ("precision", "batch_size", "num_devices", "device_kind", "stage", "feed")
_UNNAMED += ("experiment", "network")
# What is named last.
_ENVIRONMENT = {"cpu", "host", "jax", "jaxlib", "flax", "driver", "commit"}
_ENVIRONMENT |= {*LIBRARIES, *BOARD_SETTINGS}
_MOST_NAMED = 3


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Any, list[Item]]:
    """Return items by their key, in the order of the first of each."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def in_parts(lines: Sequence[Item]) -> list[tuple[str, Sequence[Item]]]:
    """Return lines in equal parts, as few as one chart each has room for, and which part it is."""
    parts = -(-len(lines) // MOST_SERIES)
    size = -(-len(lines) // max(1, parts))
    return [
        (f" ({part + 1} of {parts})" * (parts > 1), lines[size * part : size * (part + 1)])
        for part in range(parts)
    ]


def labelled(
    items: Iterable[Item],
    setting: Callable[[Item], Mapping[str, Any]],
    always: Sequence[str] = ("precision",),
) -> list[tuple[str, Item]]:
    """Return items with labels of all in which their settings differ, precision first.

    No two settings have one label, however many fields that takes.

    Args:
      always: fields that are named in any case. Nobody should have to ask for the precision.
    """
    items = list(items)
    settings = [setting(item) for item in items]
    names = differing_names(settings)
    first = [name for name in _UNNAMED if name in names or name in always]
    others = [name for name in names if name not in _UNNAMED]
    all_names = [*others, DEFAULT_FLAGS]
    for most, named in ((_MOST_NAMED, others), (None, others), (None, all_names)):
        labels = []
        for values in settings:
            parts = [_shown(values.get(name), name) for name in first]
            parts.append(name_settings(values, named, most))
            labels.append(", ".join(filter(None, parts)))
        if len({*labels}) == len({setting_key(values) for values in settings}):
            break
    return list(zip(labels, items, strict=True))


def one_of_each_seed(runs: Iterable[Any]) -> list[Any]:
    """Return the first run of each seed that ended, else the first.

    A seed that was run again says nothing of other seeds.

    Args:
      runs: they, or their `TimeToTarget`s, differ in nothing but the seed.
    """
    ended_first = sorted(runs, key=lambda run: not run.ended)
    return [repeats[0] for repeats in grouped(ended_first, lambda run: run.sample).values()]


def thinned(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return about `most` of the items at equal distances, the last among them."""
    return items[::-1][:: max(1, -(-len(items) // most))][::-1]


def differing_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which settings differ, the experiment's own first."""
    names = (name for name in differing(settings) if name != DEFAULT_FLAGS)
    return sorted(names, key=_ENVIRONMENT.__contains__)


def name_settings(
    setting: Mapping[str, Any], names: Sequence[str], most: int | None = _MOST_NAMED
) -> str:
    """Return the first of the named fields that have a value, and how many more there are."""
    known = [name for name in names if setting.get(name) is not None]
    texts = [f"{name}={_shown(setting[name])}" for name in known[:most]]
    if more := len(known[len(texts) :]):
        texts.append(f"and {more} more setting{'s' * (more > 1)}")
    return ", ".join(texts)


def _shown(value: Any, name: str = "") -> str:
    if value is None:
        return UNKNOWN
    if name == "num_devices":
        return f"{value:.0f} device{'s' if value != 1 else ''}"
    if name == "batch_size":
        return f"batch {value:,.0f}"
    # 10.0 epochs are the 10 of another run.
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
