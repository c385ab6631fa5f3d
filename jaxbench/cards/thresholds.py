"""The limits that cards are judged by: those of thresholds.csv, or of a user's own file."""

import csv
import importlib.resources
from collections.abc import Mapping
from typing import Annotated

import msgspec

from jaxbench.errors import BadInput, nearest
from jaxbench.files import read_text
from jaxbench.paths import user_path

# {rule.level: limit}; None where the rule judges nothing.
Thresholds = Mapping[str, float | None]
_MOST_BYTES = 2**16


def load_thresholds(path: str | None = None) -> Thresholds:
    """Return the limits, a user's own in place of those that ship with jaxbench.

    Args:
      path: a CSV file with the columns of thresholds.csv; lines that begin with # are comments.

    Raises:
      BadInput: the file cannot be read, or has an unknown name or level, or a limit that is none.
    """
    shipped = importlib.resources.files(__package__).joinpath("thresholds.csv")
    limits = _parse(shipped.read_text("utf-8"), "thresholds.csv")
    if path is None:
        return limits
    try:
        text = read_text(user_path(path), _MOST_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--thresholds={path}: {getattr(error, 'strerror', error)}") from error
    changed = _parse(text, path)
    for name in changed:
        if name not in limits:
            close = nearest(name[:60], limits) or "; `jaxbench/cards/thresholds.csv` has all"
            raise BadInput(f"{path}: there is no limit {name[:60]!r}{close}")
    return {**limits, **changed}


class _Row(msgspec.Struct):
    """A line of thresholds.csv."""

    name: str
    level: str
    limit: Annotated[float, msgspec.Meta(ge=0, le=1e300)] | None


def _parse(text: str, path: str) -> dict[str, float | None]:
    lines = (line for line in text.splitlines() if line[:1] != "#")
    limits: dict[str, float | None] = {}
    cells: dict[str, str] = {}
    try:
        for cells in csv.DictReader(lines, strict=True, skipinitialspace=True):
            stated = {column: cell or None for column, cell in cells.items()}
            row = msgspec.convert(stated, _Row, strict=False)
            if f"{row.name}.{row.level}" in limits:
                raise ValueError("this limit is there twice")
            limits[f"{row.name}.{row.level}"] = row.limit
    except (csv.Error, ValueError) as error:
        shown = ",".join(str(cell) for cell in cells.values() if cell)[:60]
        raise BadInput(f"{path}: {shown!r}: {error}") from error
    return limits
