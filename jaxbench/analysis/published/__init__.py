"""What other people measured and published, as tables: the history a run is put beside.

Each row names its source and, where the source has one, its date; an empty cell was not published
and is None here. Times are in seconds, `_ms` in milliseconds, prices in USD an hour.
"""

import csv
import importlib.resources
from typing import Any

TABLES = ("training_runs", "throughput", "time_to_accuracy", "prices", "conv2d")

# Everything else is text.
_WHOLE = {"devices", "global_batch", "epochs", "images", "height", "width", "channels", "kernel"}
_REAL = {
    *("first_epoch_s", "median_epoch_s", "total_time_s", "time_ms", "images_per_s"),
    *("top1", "usd_per_hour", "usd_published"),
}


def load_published(table: str) -> list[dict[str, Any]]:
    """Return the rows of one of `TABLES`, numbers as numbers.

    Raises:
      ValueError: there is no such table.
    """
    if table not in TABLES:
        raise ValueError(f"no table {table!r}; there are {', '.join(TABLES)}")
    text = importlib.resources.files(__name__).joinpath(f"{table}.csv").read_text("utf-8")
    return [
        {column: _value(column, cell) for column, cell in row.items()}
        for row in csv.DictReader(text.splitlines())
    ]


def _value(column: str, cell: str) -> Any:
    if cell == "":
        return None
    if column in _WHOLE:
        return int(cell)
    return float(cell) if column in _REAL else cell
