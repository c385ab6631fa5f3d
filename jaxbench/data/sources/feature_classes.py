"""Check a prepared TFDS folder before TFDS reads it.

features.json names Python classes, and TFDS imports the modules that they are said to be in, from
the working directory too: a data folder could run code.
"""

import contextlib
import json
import pathlib
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.files import read_text

_FEATURES = "features.json"
# Larger than any description, smaller than what would fill the memory.
_MAX_BYTES = 2**24
# What is here is TFDS's own, and TFDS makes nothing of a module but its feature classes.
_PREFIX = "tensorflow_datasets.core.features."
# The field that names a class: as JSON has it, as protobuf has it, and before TFDS 4.6.
_NAMES_A_CLASS = ("pythonClassName", "python_class_name", "type")


def read_json(path: pathlib.Path, **options: Any) -> Any:
    """Return the content of a small JSON file; `options` are `json.loads`'.

    Raises:
      OSError, ValueError: it is no regular file, too large, or no JSON.
    """
    return json.loads(read_text(path, _MAX_BYTES), **options)


def check_prepared_folder(folder: pathlib.Path) -> None:
    """Raise BadInput if a folder holds pipes or names classes that are not TFDS's own."""
    for path in folder.iterdir():
        if not path.is_file() and not path.is_dir():
            raise BadInput(f"{path}: is no regular file")
    if not (folder / _FEATURES).exists():
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if not isinstance(value, str):
                continue
            if key in _NAMES_A_CLASS and not value.startswith(_PREFIX):
                raise BadInput(
                    f"{folder / _FEATURES}: names the class {value[:200]!r}, which TFDS would "
                    f"import; only those of {_PREFIX}* are read"
                )
            if "{" in value:  # older features are JSON in a text, which TFDS reads in turn
                with contextlib.suppress(ValueError):
                    json.loads(value, object_pairs_hook=check)

    read_json(folder / _FEATURES, object_pairs_hook=check)


def check_folders_below(root: pathlib.Path) -> None:
    """Check every folder in which TFDS looks for a prepared version of a data set."""
    for depth in range(4):
        for path in root.glob("*/" * depth + _FEATURES):
            check_prepared_folder(path.parent)
