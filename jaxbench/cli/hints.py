"""Which field or flag was meant by a name that does not exist."""

import difflib
from collections.abc import Iterable, Sequence

from absl import flags

from jaxbench.cli.commands import commands_with

# The fields that stand for their whole group, as `optimizer.name` does for `optimizer`.
_SELECTORS = ("name", "source")
_CUTOFF = 0.6


def meant_fields(given: str, fields: Iterable[str]) -> list[str]:
    """Return the fields that a name may stand for: a path's end, a group, initials, a misspelling.

    Args:
      given: a dotted path, or a part of one, such as `lr`, `optimizer` or `model.depht`.
      fields: the dotted paths that exist.
    """
    paths = list(fields)
    rules = (
        lambda path: f".{path}".endswith(f".{given}"),
        lambda path: path in _selectors(given, paths),
        lambda path: _initials(_leaf(path)) == _leaf(given),
        lambda path: _leaf(path) == _leaf(given),
    )
    for rule in rules:
        if found := [path for path in paths if rule(path)]:
            return found
    if any(path.startswith(f"{given}.") for path in paths):
        return []  # a group without a selector
    spelled: dict[str, list[str]] = {}
    for path in paths:
        group = path.rpartition(".")[0]
        for name in {path, _leaf(path)}:
            spelled.setdefault(name, []).append(path)
        if selectors := _selectors(group, paths):
            spelled[group] = selectors
    close = difflib.get_close_matches(given, spelled, n=1, cutoff=_CUTOFF)
    return spelled[close[0]] if close else []


def field_hint(given: str, fields: Iterable[str]) -> str:
    """Return "; did you mean 'FIELD'?" for a field that does not exist, or how to find it."""
    paths = list(fields)
    if found := meant_fields(given, paths):
        return f"; did you mean {' or '.join(map(repr, found))}?"
    if within := [path for path in paths if path.startswith(f"{given}.")]:
        return f"; its fields are {', '.join(within)}"
    return "; --mode=describe shows all fields"


def flag_hint(given: str, own_flags: flags.FlagValues, fields: Iterable[str]) -> str:
    """Return which flag was meant by one that does not exist, or the commands that have it."""
    paths = list(fields)
    found = meant_fields(given, paths)
    is_field = any(_leaf(given) == _leaf(path) for path in found)
    if not is_field and (commands := commands_with(given)):
        return f"; it is a flag of {' and '.join(f'jaxbench {name}' for name in commands)}"
    own = [name for name in own_flags if not _is_absl(own_flags, name)]
    near_own = difflib.get_close_matches(given, own, n=1, cutoff=_CUTOFF)
    meant = [f"--experiment.{path}" for path in found]
    if near_own and not is_field and (not found or _is_nearer(given, near_own[0], found)):
        meant = [f"--{near_own[0]}"]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _is_nearer(given: str, flag: str, paths: Sequence[str]) -> bool:
    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, given, name).ratio()

    return likeness(flag) > max(likeness(name) for path in paths for name in (path, _leaf(path)))


def _is_absl(own_flags: flags.FlagValues, name: str) -> bool:
    """Return whether a flag is absl's own, such as --pdb."""
    return str(own_flags.find_module_defining_flag(name)).startswith("absl")


def _selectors(group: str, paths: Sequence[str]) -> list[str]:
    return [f"{group}.{name}" for name in _SELECTORS if f"{group}.{name}" in paths]


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _initials(name: str) -> str:
    """Return lr for learning_rate; nothing for a single word."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""
