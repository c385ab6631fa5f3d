"""Fields of an experiment that are given as Python values."""

import copy
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxbench.cli import registry
from jaxbench.cli.hints import check_field
from jaxbench.config import Experiment
from jaxbench.config.fields import walk_fields
from jaxbench.errors import BadInput
from jaxbench.records.reader import flat


def create_experiment(experiment: str | os.PathLike | Experiment, fields: Mapping[str, Any]) -> Any:
    """Return a valid experiment with some of its fields set.

    Args:
      experiment: a name, a path, or a config, which stays as it is.
      fields: by name; those of a group in a mapping or with their dotted path. A whole group may be
        given too, such as another network's config for `model`.

    Raises:
      BadInput: no such experiment or field, or a value that is not allowed.
    """
    if isinstance(experiment, (str, os.PathLike)):
        experiment = registry.load(os.fspath(experiment))
    elif not isinstance(experiment, Experiment):
        raise BadInput(
            "an experiment is a name, a path to a .py file or a jaxbench.config.Config; given: "
            f"a {type(experiment).__name__}"
        )
    config = copy.deepcopy(experiment)
    # Whole groups first: another network has other fields.
    for path, value in sorted(flat(fields), key=lambda item: item[0].count(".")):
        check_field(config, path, [name for name, *_ in walk_fields(config) if name != "name"])
        *groups, name = path.split(".")
        setattr(functools.reduce(getattr, groups, config), name, _plain(value))
    config.validate()
    return config


def field_text(value: Any) -> str:
    """Return a field's value as the command line takes it; raise BadInput if it cannot."""
    value = _plain(value)
    if isinstance(value, tuple):
        return f"({','.join(map(field_text, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, (str, int, float)):
        raise BadInput(
            f"{value!r}: a sweep's trials are processes, which take numbers, text and lists of "
            "them; put it in the experiment's file"
        )
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value as a field holds it: a tuple for a list, Python's numbers for NumPy's."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value
