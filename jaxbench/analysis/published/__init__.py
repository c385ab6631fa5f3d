"""What other people measured and published, as tables: the history a run is put beside.

Each row names its source and, if the source has one, its date; an empty cell was not published
and is None here. Times are in seconds, `_ms` in milliseconds, prices in USD an hour.
"""

import functools
import importlib.resources
from typing import Any, TypedDict

from jaxbench.files import parse_rows

TABLES = ("training_runs", "throughput", "time_to_accuracy", "prices", "conv2d")
_TEXTS = "source date task model dataset hardware precision framework status data note offer"
_NUMBERS = "first_epoch_s median_epoch_s total_time_s time_ms images_per_s top1"
_COUNTS = "devices global_batch epochs images height width channels kernel"
_Row: Any = TypedDict(
    "_Row",
    {
        **dict.fromkeys(_TEXTS.split(), str | None),  # type: ignore[misc]
        **dict.fromkeys([*_NUMBERS.split(), "usd_per_hour", "usd_published"], float | None),
        **dict.fromkeys(_COUNTS.split(), int | None),
    },
    total=False,
)


@functools.cache
def load_published(table: str) -> list[dict[str, Any]]:
    """Return the rows of one of `TABLES`, numbers as numbers."""
    text = importlib.resources.files(__name__).joinpath(f"{table}.csv").read_text("utf-8")
    return parse_rows(text, _Row)  # type: ignore[arg-type]
