"""The fields of an experiment's dataclasses: their declaration, their checks, their listing."""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxbench.custom.code import Code
from jaxbench.errors import BadInput, nearest


def plain(
    default: Any,
    *,
    help: str = "",
    only_with: Mapping[str, Sequence] | None = None,
    **metadata: Any,
) -> Any:
    """Declare a field that takes any value of its type.

    Args:
      default: the value where none is given.
      help: what the field means, with its unit, for the reference.
      only_with: {selector: values}: the field has an effect only if the attribute `selector` of
        the same dataclass has one of these values; see `without_unused`.
      metadata: of the functions below.
    """
    metadata |= {"help": help, "only_with": only_with or {}}
    return dataclasses.field(default=default, metadata=metadata)


def custom(wrap: Callable[[Any], Any], default: Any = None, **metadata: Any) -> Any:
    """Declare a field that code of the user's own may stand in; the command line cannot set it.

    `wrap` makes a `Code` of such a value, and leaves others alone.
    """
    return plain(default, custom=wrap, **metadata)


def choice(default: str, *others: str, **metadata: Any) -> Any:
    """Declare a text field of these choices, and of code if `custom` is given."""
    return plain(default, choices=(default, *others), **metadata)


def number(default: Any, *, low: float = 0, high: float = math.inf, **metadata: Any) -> Any:
    """Declare a number, or tuple of numbers, within [low, high]."""
    return plain(default, range=(low, high), **metadata)


def fraction(default: Any, **metadata: Any) -> Any:
    """Declare a number, or tuple of numbers, within [0, 1]."""
    return number(default, high=1, **metadata)


def validate_fields(config: Any, prefix: str = "") -> None:
    """Check every field of a dataclass and of the dataclasses in it.

    Args:
      config: the dataclass.
      prefix: stands before the fields' names in an error, such as `data.`.

    Raises:
      BadInput: a value of the wrong type, not among the choices or out of range; or code of the
        user's own that another choice leaves out.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        name = prefix + field.name
        if _is_group(name, value, hint):
            validate_fields(value, prefix=name + ".")
            continue
        if _holds_code(field, value) and not isinstance(value, (Code, type(field.default))):
            raise BadInput(f"{name} is a {type(value).__name__}: must be a function")
        # A subclass that gives a field another default has the same choices.
        for base in () if _holds_code(field, value) else type(config).__mro__:
            if field.name in getattr(base, "__dataclass_fields__", ()):
                _check_value(name, value, hint, base.__dataclass_fields__[field.name])
        if _holds_code(field, value) and (selector := _unmet(config, field)):
            raise BadInput(
                f"{name} does nothing with {prefix}{selector}={getattr(config, selector)!r}"
            )


def without_unused(config: Any) -> tuple[Any, list[str]]:
    """Give fields without effect their defaults; return the config and a warning that names them.

    A field has no effect if another one has a value that it does not go with (`only_with`).
    """
    config, unused = _reset_unused(config, "")
    line = f"without effect here, so left at the default: {', '.join(unused)}"
    return config, [line] if unused else []


def _reset_unused(config: Any, prefix: str) -> tuple[Any, list[str]]:
    unused = []
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value, names = _reset_unused(value, f"{name}.")
        elif _unmet(config, field):
            value, names = field.default, [f"{name}={value}"]
        else:
            continue
        if names:
            config = dataclasses.replace(config, **{field.name: value})
            unused += names
    return config, unused


def _unmet(config: Any, field: dataclasses.Field) -> str | None:
    """Return the selector that leaves a field without effect; None if it has its default."""
    if getattr(config, field.name) == field.default:
        return None
    selectors = field.metadata.get("only_with", {}).items()
    return next((name for name, values in selectors if getattr(config, name) not in values), None)


def _holds_code(field: dataclasses.Field, value: Any) -> bool:
    """Return whether a field holds, or is only for, code of the user's own."""
    metadata = field.metadata
    return "custom" in metadata and not ("choices" in metadata and isinstance(value, str))


def _is_group(name: str, value: Any, hint: Any) -> bool:
    """Return whether a field holds a dataclass with fields of its own.

    Raises:
      BadInput: it should, but holds something else, such as None for the model.
    """
    if dataclasses.is_dataclass(hint) and not isinstance(value, hint):
        raise BadInput(f"{name} is a {type(value).__name__}: must be a {hint.__name__}")
    return dataclasses.is_dataclass(value)


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


def check_fraction(name: str, value: float) -> None:
    """Raise BadInput where the option of this name is not a fraction, such as a top-1."""
    if not 0 < value <= 1:  # written so that nan fails it too
        raise BadInput(f"--{name}={value:g}: must be a fraction, such as 0.94")


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
        name, value = prefix + field.name, getattr(config, field.name)
        if _is_group(name, value, hints[field.name]):
            types |= overridable(value, prefix=name + ".")
        elif name != "name" and not _holds_code(field, value):
            types[name] = hints[field.name]
    return types
