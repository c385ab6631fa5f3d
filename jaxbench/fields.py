"""The fields of an experiment's dataclasses: their declaration, their checks, their listing."""

import dataclasses
import math
import typing
from typing import Any

from jaxbench.errors import BadInput, nearest


def plain(default: Any, *, only_with: tuple[Any, ...] = ()) -> Any:
    """Declare a field that takes any value of its type.

    Args:
      default: the value where none is given.
      only_with: (selector, *values): the field means something only where the field `selector` of
        the same dataclass has one of these values. Elsewhere it must keep its default.
    """
    return dataclasses.field(default=default, metadata={"only_with": only_with})


def choice(default: str, *others: str, only_with: tuple[Any, ...] = ()) -> Any:
    """Declare a text field that takes `default` or one of `others`; for `only_with` see `plain`."""
    metadata = {"choices": (default, *others), "only_with": only_with}
    return dataclasses.field(default=default, metadata=metadata)


def number(
    default: Any, *, low: float, high: float = math.inf, only_with: tuple[Any, ...] = ()
) -> Any:
    """Declare a number, or tuple of numbers, within [low, high]; for `only_with` see `plain`."""
    metadata = {"range": (low, high), "only_with": only_with}
    return dataclasses.field(default=default, metadata=metadata)


def validate_fields(config: Any, prefix: str = "") -> None:
    """Check every field of a dataclass and of the dataclasses in it.

    Args:
      config: the dataclass.
      prefix: stands before the fields' names in an error, such as `data.`.

    Raises:
      BadInput: a value of the wrong type, not among the choices, out of range, or without effect.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = prefix + field.name
        if dataclasses.is_dataclass(value):
            validate_fields(value, prefix=name + ".")
            continue
        _check_value(name, value, hints[field.name], field)
        selector, *values = field.metadata.get("only_with") or (None,)
        if selector and value != field.default and getattr(config, selector) not in values:
            raise BadInput(
                f"{name}={value!r} does nothing with {prefix}{selector}="
                f"{getattr(config, selector)!r}; it goes with {prefix}{selector}="
                + " or ".join(map(str, values))
            )


def _check_value(name: str, value: Any, hint: Any, field: dataclasses.Field) -> None:
    if not _fits(value, hint):
        raise BadInput(f"{name}={value!r}: must be {describe_type(hint)}")
    if value == () and field.default != ():
        raise BadInput(f"{name}=(): must hold at least one number")
    choices = field.metadata.get("choices")
    if choices and value not in choices:
        raise BadInput(
            f"{name}={value!r}: must be one of {', '.join(choices)}" + nearest(str(value), choices)
        )
    if "range" in field.metadata:
        low, high = field.metadata["range"]
        for item in value if isinstance(value, tuple) else (value,):
            # Written so that nan fails it too.
            if not low <= item <= high or item == math.inf:
                limit = f"at least {low}" if high == math.inf else f"within [{low}, {high}]"
                raise BadInput(f"{name}={value}: must be {limit}")


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        item_hint = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(item, item_hint) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def describe_type(hint: Any) -> str:
    """Return what a value of this type looks like, in words for an error line."""
    if typing.get_origin(hint) is tuple:
        items = describe_type(typing.get_args(hint)[0]).removeprefix("a ")
        return f"{items}s in parentheses, such as (30,60)"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def overridable(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return {dotted field path: type} of every field that `--experiment.FIELD=` may set."""
    types = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            types |= overridable(value, prefix=prefix + field.name + ".")
        elif prefix + field.name != "name":
            types[prefix + field.name] = hints[field.name]
    return types
