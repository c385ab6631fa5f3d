"""Which field or flag was meant by a name that does not exist."""

import collections
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from jaxbench.errors import BadInput

# The fields that stand for their whole group, as `optimizer.name` does for `optimizer`.
_SELECTORS = ("name", "source")


def meant_fields(name: str, fields: Iterable[str]) -> list[str]:
    """Return the fields that a name may stand for: `lr`, `optimizer` or `model.depht`.

    Args:
      name: the end of a path, a group, initials or a misspelling.
      fields: the dotted paths that exist.
    """
    return _closest(name, _spellings(fields))


def check_field(config: Any, name: str, fields: Iterable[str]) -> None:
    """Raise BadInput if an experiment has no such field."""
    if name in fields:
        return
    if meant := meant_fields(name, fields):
        hint = f"did you mean {' or '.join(map(repr, meant))}?"
    elif group := [path for path in fields if path.startswith(f"{name}.")]:
        hint = f"its fields are {', '.join(group)}"
    else:
        hint = "--mode=describe shows all fields"
    raise BadInput(f"{config.name or 'the experiment'} has no field {name!r}; {hint}")


def flag_hint(name: str, flags: Iterable[str], fields: Iterable[str]) -> str:
    """Return "; did you mean --FLAG?" for a flag that does not exist, or nothing."""
    spellings = {flag: [f"--{flag}"] for flag in flags}
    for spelling, paths in _spellings(fields).items():
        spellings[spelling] = [f"--experiment.{path}" for path in paths]
    meant = _closest(name, spellings)
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _spellings(fields: Iterable[str]) -> dict[str, list[str]]:
    """Return {spelling: paths}: of each path itself, its last part, that one's initials."""
    spellings = collections.defaultdict(list)
    for path in fields:
        group, _, leaf = path.rpartition(".")
        initials = "".join(word[:1] for word in leaf.split("_")) if "_" in leaf else leaf
        for spelling in {path, leaf, initials, *([group] if leaf in _SELECTORS else ())}:
            spellings[spelling].append(path)
    return spellings


def _closest(name: str, spellings: Mapping[str, list[str]]) -> list[str]:
    for spelling in (name, name.rpartition(".")[2]):
        if spelling in spellings:
            return spellings[spelling]
    if any(spelling.startswith(f"{name}.") for spelling in spellings):
        return []  # a group without a selector
    close = difflib.get_close_matches(name, spellings, n=1)
    return spellings[close[0]] if close else []
