"""Which field or flag was meant by a name that does not exist."""

import collections
import difflib
from collections.abc import Iterable, Mapping

# The fields that stand for their whole group, as `optimizer.name` does for `optimizer`.
_SELECTORS = ("name", "source")


def meant_fields(name: str, fields: Iterable[str]) -> list[str]:
    """Return the fields that a name may stand for: `lr`, `optimizer` or `model.depht`.

    Args:
      name: the end of a path, a group, initials or a misspelling.
      fields: the dotted paths that exist.
    """
    return _closest(name, _spellings(fields))


def field_hint(name: str, fields: Iterable[str]) -> str:
    """Return "; did you mean 'FIELD'?" for a field that does not exist, or how to find it."""
    paths = list(fields)
    if meant := meant_fields(name, paths):
        return f"; did you mean {' or '.join(map(repr, meant))}?"
    if within := [path for path in paths if path.startswith(f"{name}.")]:
        return f"; its fields are {', '.join(within)}"
    return "; --mode=describe shows all fields"


def flag_hint(name: str, flags: Iterable[str], fields: Iterable[str]) -> str:
    """Return "; did you mean --FLAG?" for a flag that does not exist, or nothing."""
    spellings = _spellings(fields)
    meant = {key: [f"--experiment.{path}" for path in spellings[key]] for key in spellings}
    meant = _closest(name, {flag: [f"--{flag}"] for flag in flags} | meant)
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _spellings(fields: Iterable[str]) -> dict[str, list[str]]:
    """Return {spelling: paths}: of each path itself, its last part, that one's initials."""
    spellings = collections.defaultdict(list)
    for path in fields:
        group, _, leaf = path.rpartition(".")
        words = leaf.split("_")
        initials = "".join(word[:1] for word in words) if len(words) > 1 else leaf
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
