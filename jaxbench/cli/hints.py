"""Which field or flag was meant by a name that does not exist."""

import collections
from collections.abc import Iterable

from jaxbench.config import Experiment
from jaxbench.errors import BadInput, closest

# The fields that stand for their whole group, as `optimizer.name` does for `optimizer`.
_SELECTORS = ("name", "source")


def meant_fields(name: str, fields: Iterable[str]) -> list[str]:
    """Return the dotted paths that a name may stand for: `lr`, `optimizer` or `model.depht`.

    The name may be the end of a path, a group, initials or a misspelling.
    """
    spellings = collections.defaultdict(list)
    for path in fields:
        group, _, leaf = path.rpartition(".")
        initials = "".join(word[:1] for word in leaf.split("_")) if "_" in leaf else leaf
        for spelling in {path, leaf, initials, *([group] if leaf in _SELECTORS else ())}:
            spellings[spelling].append(path)
    for spelling in (name, name.rpartition(".")[2]):
        if spelling in spellings:
            return spellings[spelling]
    if any(spelling.startswith(f"{name}.") for spelling in spellings):
        return []  # a group without a selector
    return spellings.get(closest(name, spellings), [])


def check_field(config: Experiment, name: str, fields: Iterable[str]) -> None:
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
