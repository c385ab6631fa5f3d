"""JSON that anybody may have written, as dataclasses; and dataclasses as JSON."""

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any

from jaxbench.errors import nearest
from jaxbench.records.schema.base import stated_fields

# No count is longer; longer ones are no floats either.
_MOST_DIGITS = 18
_WORDS = {str: "text", int: "a whole number", float: "a number", dict: "an object"}


def parse(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
      ValueError: it is none, holds NaN or an infinity, a number beyond reason, a name twice, a lone
        surrogate, or is nested too deeply.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_parse_object,
        )
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is no text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which is no figure")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"holds {digits[:20]}, which is no figure")
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"holds {digits[:20]}..., which is no figure")
    return int(digits)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"holds {twice[:60]!r} twice")
    return found


def decode(hint: Any, value: Any, where: str) -> Any:
    """Return a value of JSON as a type says.

    Args:
      hint: a dataclass, or a type that its fields have.
      where: the name of the value, for the error line.

    Raises:
      ValueError: the value has another type, or a field is unknown, missing or
        refused by its class.
    """
    if dataclasses.is_dataclass(hint):
        return _decode_fields(hint, value, where)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None and type(None) in parts:
            return None
        kinds = [part for part in parts if part is not type(None)]
        fits = [part for part in kinds if type(value) is part]
        return decode(fits[0] if fits else kinds[0], value, where)
    if origin is typing.Literal:
        if value not in parts:
            raise ValueError(f"{where} is {str(value)[:60]!r}: must be {' or '.join(parts)}")
        return value
    if origin is tuple:
        kinds = [parts[0]] * (len(value) if isinstance(value, list) else 0)
        if not isinstance(value, list) or (parts[-1] is not ... and len(value) != len(parts)):
            count = "" if parts[-1] is ... else f" of {len(parts)}"
            raise ValueError(f"{where} must be a list{count}")
        pairs = zip(kinds, value, strict=True)
        return tuple(decode(kind, one, f"{where}[{at}]") for at, (kind, one) in enumerate(pairs))
    if origin is dict and isinstance(value, dict):
        return {key: decode(parts[1], one, f"{where}.{key[:60]}") for key, one in value.items()}
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint is not Any and type(value) is not hint:
        raise ValueError(f"{where} must be {_WORDS[origin or hint]}")
    return value


def _decode_fields(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    hints = _hints(cls)
    for name in value:
        if name not in hints:
            raise ValueError(f"{where} has no field {name[:60]!r}{nearest(name[:60], hints)}")
    fields = {name: decode(hints[name], one, f"{where}.{name}") for name, one in value.items()}
    for field in dataclasses.fields(cls):
        default = (field.default, field.default_factory)
        if field.name not in fields and default == (dataclasses.MISSING,) * 2:
            raise ValueError(f"{where} lacks {field.name}")
    try:
        return cls(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def encode(value: Any) -> Any:
    """Return a dataclass as JSON values, without the fields that have their default."""
    if dataclasses.is_dataclass(value):
        return {name: encode(one) for name, one in stated_fields(value).items()}
    if isinstance(value, dict):
        return {name: encode(one) for name, one in value.items()}
    return [encode(one) for one in value] if isinstance(value, (list, tuple)) else value
