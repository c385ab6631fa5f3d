"""The fields of an experiment's dataclasses: their declaration, their checks, their listing."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Any

from jaxbench.config.custom import Code, as_code
from jaxbench.errors import BadInput, one_of


def plain(default: Any, **metadata: Any) -> Any:
    """Declare a field that takes any value of its type.

    `only_with`, {selector: values}: the field has an effect only if the attribute `selector` of the
    same dataclass has one of these values; see `without_unused`.

    `may_differ`: "resumes", the field may have another value in a resumed run; "processes", in each
    process of a run too; see `names_that_may_differ`.
    """
    return dataclasses.field(default=default, metadata=metadata)


def custom(**metadata: Any) -> Any:
    """Declare a field for a custom function, which the command line cannot set."""
    return plain(None, custom=as_code, **metadata)


def choice(default: str, *others: str, **metadata: Any) -> Any:
    """Declare a text field of these choices; `custom` wraps code that it may hold instead."""
    return plain(default, choices=(default, *others), **metadata)


def number(default: Any, *, low: float = 0, high: float = math.inf, **metadata: Any) -> Any:
    """Declare a number, or tuple of numbers, within [low, high]."""
    return plain(default, range=(low, high), **metadata)


def fraction(default: Any, **metadata: Any) -> Any:
    """Declare a number, or tuple of numbers, within [0, 1]."""
    return number(default, high=1, **metadata)


def walk_fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, dataclasses.Field]]:
    """Yield (dotted path, value, type, field) of all fields and groups, groups first."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        yield name, value, hints[field.name], field
        if dataclasses.is_dataclass(value):
            yield from walk_fields(value, f"{name}.")


def names_that_may_differ(config: Any, *between: str) -> set[str]:
    """Return the dotted paths of the fields declared with one of these values of `may_differ`."""
    return {
        name
        for name, _, _, field in walk_fields(config)
        if field.metadata.get("may_differ") in between
    }


def overridable(config: Any) -> dict[str, Any]:
    """Return {dotted path: type} of every field that `--experiment.FIELD=` may set."""
    return {
        name: hint
        for name, value, hint, _ in walk_fields(config)
        if not (
            name == "name"  # the registry's
            or dataclasses.is_dataclass(hint)
            or isinstance(value, Code)
            or Code in typing.get_args(hint)
        )
    }


def validate_fields(config: Any) -> None:
    """Check every field of a dataclass and of the dataclasses in it.

    Raises:
      BadInput: a value of the wrong type, not among the choices or out of range.
    """
    for name, value, hint, field in walk_fields(config):
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, hint):  # type: ignore[arg-type]
                raise BadInput(f"{name} is a {type(value).__name__}: must be a {hint.__name__}")  # type: ignore[union-attr]
        elif not isinstance(value, Code):
            _check_value(name, value, hint, field)


def _check_value(name: str, value: Any, hint: Any, field: dataclasses.Field) -> None:
    if not _fits(value, hint):
        raise BadInput(f"{name}={value!r}: must be {describe_type(hint)}")
    if value == () and field.default != ():
        raise BadInput(f"{name}=(): must hold at least one number")
    choices = field.metadata.get("choices")
    if choices and value not in choices:
        raise BadInput(f"{name}={value!r}: {one_of(str(value), choices)}")
    low, high = field.metadata.get("range", (None, None))
    if low is not None:
        for item in value if isinstance(value, tuple) else (value,):
            # Written so that nan fails it too.
            if not low <= item <= high or item == math.inf:
                limit = f"at least {low}" if high == math.inf else f"within [{low}, {high}]"
                raise BadInput(f"{name}={value}: must be {limit}")


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        item_hint = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(item, item_hint) for item in value)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)


def check_fraction(name: str, value: float | None) -> None:
    """Raise BadInput if the option of this name is given and no fraction, such as a top-1."""
    if value is not None and not 0 < value <= 1:  # written so that nan fails it too
        raise BadInput(f"--{name}={value:g}: must be a fraction, such as 0.94")


def describe_type(hint: Any) -> str:
    """Return what a value of this type looks like, in words for an error line."""
    if typing.get_origin(hint) is tuple:
        items = describe_type(typing.get_args(hint)[0]).removeprefix("a ")
        return f"{items}s in parentheses, such as (30,60)"
    words: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
    }
    words[Code | None] = "a function"
    return words.get(hint, getattr(hint, "__name__", str(hint)))


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
        selectors = field.metadata.get("only_with", {}).items()
        if dataclasses.is_dataclass(value):
            value, names = _reset_unused(value, f"{name}.")
        elif value != field.default and any(
            getattr(config, selector) not in values for selector, values in selectors
        ):
            value, names = field.default, [f"{name}={value}"]
        else:
            continue
        if names:
            config = dataclasses.replace(config, **{field.name: value})
            unused += names
    return config, unused
