"""What a checkpoint holds beside its arrays, checked before it is used.

Its manifest has a seal, which shows damage and not forgery: anybody can write one that fits.
"""

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jaxbench.errors import BadInput


def check_point(
    path: pathlib.Path,
    point: Mapping[str, Any],
    metrics: Collection[str],
    num_models: int,
    steps_per_epoch: int,
) -> None:
    """Raise BadInput where a value is missing or none that a training run writes.

    Args:
      path: of the checkpoint, for the error line.
      point: what was saved beside its state.
      metrics, num_models, steps_per_epoch: of the run that is to be resumed from it.
    """
    # `progress` is the former name of the epoch that is under way.
    begun = point.get("epoch_metrics") or point.get("progress")
    checked = [_CHECKS[name](value) for name, value in point.items() if name in _CHECKS]
    valid = set(point) >= _NEEDED and all(checked)
    if valid and begun:
        valid = begun.get("epoch") == point["epochs_done"]
        valid = valid and begun.get("steps", steps_per_epoch + 1) <= steps_per_epoch
        valid = valid and all(
            _is_sums(begun, name, metrics, num_models) for name in ("total", "interval")
        )
    if not valid:
        raise BadInput(f"{path}: its manifest.json does not hold a training run's progress")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float)


def _is_window(value: Any) -> bool:
    """Return whether it could be a measured window: start and end in seconds, images."""
    if not isinstance(value, list) or len(value) != 3 or not all(map(_is_time, value)):
        return False
    return value[0] <= value[1] and _is_count(value[2])


def _list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _dict_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_valid, value.values()))


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _is_epoch(value: Any) -> bool:
    """Return whether it could be an epoch that is under way; `_is_sums` checks its sums."""
    return isinstance(value, dict) and all(
        _EPOCH[name](number) if name in _EPOCH else name.partition("_RxM")[0] in _SUMS
        for name, number in value.items()
    )


def _is_sums(
    begun: Mapping[str, Any], field: str, metrics: Collection[str], num_models: int
) -> bool:
    """Return whether there is a sum for every metric and model; a diverged model's is nan."""
    if f"{field}_RxM" in begun:  # written when metrics had places in place of names
        rows, shape = begun[f"{field}_RxM"], (num_models, len(metrics))
    else:
        found = begun.get(field)
        if not isinstance(found, dict) or found.keys() != set(metrics):
            return False
        rows, shape = list(found.values()), (len(metrics), num_models)
    return (
        _list_of(_list_of(_is_rate))(rows)
        and len(rows) == shape[0]
        and all(len(row) == shape[1] for row in rows)
    )


_SUMS = {"total", "interval"}
_EPOCH = {
    **dict.fromkeys(("epoch", "steps", "interval_steps", "images", "profiled_steps"), _is_count),
    **dict.fromkeys(("interval_time_s", "time_s", "data_wait_s"), _is_time),
}
_CHECKS = {
    "step": _is_count,
    "epochs_done": _is_count,
    "records": lambda value: isinstance(value, dict),
    "totals_s": _dict_of(_is_time),
    "epoch_metrics": _or_none(_is_epoch),
    "progress": _or_none(_is_epoch),
    "learning_rate": _or_none(_is_rate),
    "compile_s": _is_time,
    "compile_cache": _list_of(_is_text),
    "first_step_s": _or_none(_is_time),
    "invalid": _list_of(_is_text),
    "corrupt": _dict_of(_is_text),
    "traced": _list_of(_is_count),
    "windows": _list_of(_is_window),
}
_NEEDED = {"step", "epochs_done", "records", "totals_s"}
