"""The limits that cards are judged by: those of thresholds.csv, or of a user's own file."""

import csv
import importlib.resources
import math
from collections.abc import Mapping

from jaxbench.errors import BadInput, nearest
from jaxbench.files import read_text
from jaxbench.paths import user_path

# {rule.level: limit}; None where the rule judges nothing.
Thresholds = Mapping[str, float | None]
_COLUMNS = ("name", "level", "limit")
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
        raise BadInput(
            f"{path or '--thresholds='}: {getattr(error, 'strerror', None) or error}"
        ) from error
    own = _parse(text, path)
    for name in own:
        if name not in limits:
            close = nearest(name[:60], limits) or "; `jaxbench/cards/thresholds.csv` has all"
            raise BadInput(f"{path}: there is no limit {name[:60]!r}{close}")
    return {**limits, **own}


def _parse(text: str, path: str) -> dict[str, float | None]:
    lines = [line for line in text.splitlines() if line.strip() and line[:1] != "#"]
    try:
        rows = csv.DictReader(lines, strict=True)
        listed = list(rows)
    except csv.Error as error:
        raise BadInput(f"{path}: {error}") from error
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise BadInput(f"{path}: has no column {', '.join(missing)}")
    limits: dict[str, float | None] = {}
    for row in listed:
        if None in row or row["level"] is None:
            shown = (row["name"] or "")[:60]
            raise BadInput(f"{path}: {shown!r}: a line has {','.join(rows.fieldnames)[:60]}")
        name = f"{row['name']}.{row['level']}"
        if name in limits:
            raise BadInput(f"{path}: {name[:60]} is there twice")
        limits[name] = _limit(path, name, (row["limit"] or "").strip())
    return limits


def _limit(path: str, name: str, cell: str) -> float | None:
    if not cell:
        return None
    try:
        limit = float(cell.replace("_", "?"))  # Python reads 1_0 as 10
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise BadInput(f"{path}: {name[:60]}={cell[:60]}: must be a number, 0 or more, or nothing")
    return limit
