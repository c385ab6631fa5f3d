"""Code that an experiment file hands over, with a name and a digest for the record."""

import dataclasses
import functools
import hashlib
import inspect
import pathlib
from collections.abc import Mapping
from typing import Any


class Code:
    """A function, class or object of the user's own; its text names it for the record.

    The text holds the digest of the whole source file: two runs with the same text ran the same
    code, as far as that file goes.

    Attributes:
      value: the function, class or object.
    """

    def __init__(self, value: Any):
        self.value = value
        self._text = _describe(value)

    @property
    def __name__(self) -> str:
        return _name(self.value)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.value(*args, **keywords)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __deepcopy__(self, memo: Any) -> "Code":
        return self


def as_code(value: Any) -> Any:
    """Wrap what can be called; leave all else as it is."""
    return Code(value) if callable(value) and not isinstance(value, Code) else value


class HoldsCode:
    """Base of the configurations: a field declared with `custom` wraps what it is given."""

    def __setattr__(self, name: str, value: Any) -> None:
        field = self.__dataclass_fields__.get(name)
        wrap = field and field.metadata.get("custom")
        object.__setattr__(self, name, wrap(value) if wrap else value)


def config_record(config: Any) -> dict[str, Any]:
    """Return a config's fields, nested, as run.json has them: code by its text."""
    return dataclasses.asdict(
        config,
        dict_factory=lambda items: {
            name: str(value) if isinstance(value, Code) else value for name, value in items
        },
    )


def _describe(value: Any) -> str:
    of, given = value, {}
    if isinstance(value, functools.partial):
        of = value.func
        given = {**dict(enumerate(value.args)), **value.keywords}
    elif not inspect.isroutine(value) and not inspect.isclass(value):
        of, given = type(value), _attributes(value)
    given_text = ", ".join(f"{name}={argument!r}" for name, argument in given.items())
    text = _name(value) + (f"({given_text})" if given_text else "")
    file, source = _source(of)
    if source is None:
        return f"{text}, source unknown"
    return f"{text} in {file}, sha256 {hashlib.sha256(source).hexdigest()[:12]}"


def _name(value: Any) -> str:
    value = value.func if isinstance(value, functools.partial) else value
    return getattr(value, "__qualname__", type(value).__qualname__)


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return an object's attributes with a plain value, which a text can hold."""
    plain = (bool, int, float, str, tuple, type(None))
    return {n: v for n, v in getattr(value, "__dict__", {}).items() if isinstance(v, plain)}


def _source(of: Any) -> tuple[str, bytes | None]:
    """Return the file that defines a function or class, and its bytes; a notebook's cell's text."""
    of = inspect.unwrap(of) if inspect.isroutine(of) else of
    try:
        file = inspect.getsourcefile(of)
        path = pathlib.Path(file or "")
        if path.is_file():
            return path.name, path.read_bytes()
        return "a notebook", inspect.getsource(of).encode()
    except (TypeError, OSError):
        return "", None
