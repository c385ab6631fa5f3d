"""What others measured and published, as tables: what a run is put beside and predicted from.

Each row names its source and its date: of the measurement, else of the software's container, else
of the number's first publication. An empty cell was not published and is None here. Times are in
seconds, `_ms` in milliseconds, prices in USD an hour. A `device` is named as in --target, and its
number counts chips.
"""

import dataclasses
import functools
import pathlib
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from jaxbench.config.data import PUBLIC_SETS
from jaxbench.errors import as_refusal
from jaxbench.files import parse_rows, read_text

RATES = pathlib.Path(__file__).with_name("rates.csv")
TABLES = ("training_runs", "time_to_accuracy", "prices", "conv2d")
_TEXTS = "source date task model dataset hardware device precision framework status note offer"
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
# What a rate has of the training that it is from.
_OF_A_TRAINING = ("precision", "source", "date", "hardware", "dataset", "note")
_Count = Annotated[int, Meta(ge=1)]
_Yes = Literal["yes", "no"] | None


@dataclasses.dataclass(frozen=True)
class PublishedRate:
    """A rate of training, of all devices together, in examples (images or sequences) a second.

    Attributes:
      batch_size: global.
      software: one name for all its releases that are as fast.
      version: its release or container.
      attention: whether its weights stay on the chip; None of networks without attention.
      batch_assumed: the batch was not published.
      lower_bound: derived from the time of a whole training with its evaluations.
      hardware, framework: in the words of an article.
      dataset: the name in `PUBLIC_SETS`.
      data: synthetic, or how the data set was read; only of an article's table of rates.
    """

    network: str
    device: str
    num_devices: _Count
    precision: Literal["fp8", "fp16", "bf16", "tf32", "fp32"]
    batch_size: _Count
    software: str
    examples_per_s: Annotated[float, Meta(gt=0, le=1e12)]
    version: str | None = None
    attention: Literal["fused", "unfused"] | None = None
    batch_assumed: _Yes = None
    lower_bound: _Yes = None
    source: str | None = None
    date: Annotated[str, Meta(pattern=r"^\d{4}(-\d\d){0,2}$")] | None = None
    not_fitted: _Yes = None
    hardware: str | None = None
    framework: str | None = None
    dataset: str | None = None
    data: str | None = None
    note: str | None = None


@functools.cache
def load_published(table: str) -> list[dict[str, Any]]:
    """Return the rows of one of `TABLES`, numbers as numbers."""
    text = read_text(RATES.with_name(f"{table}.csv"))
    return parse_rows(text, _Row)  # type: ignore[arg-type]


def read_published_rates(path: pathlib.Path = RATES) -> list[PublishedRate]:
    """Return the rows of a table of rates, jaxbench's by default.

    Raises:
      BadInput: it cannot be read, or a cell is wrong; with its line.
    """
    with as_refusal(str(path), ValueError):
        return parse_rows(read_text(path), PublishedRate)


@functools.cache
def published_rates() -> list[PublishedRate]:
    """Return all published rates, also those of the median epochs of published trainings."""
    return read_published_rates() + [
        PublishedRate(
            network=row["model"],
            device=row["device"],
            num_devices=row["devices"],
            batch_size=row["global_batch"],
            software=row["framework"],
            examples_per_s=PUBLIC_SETS[row["dataset"]][0] / row["median_epoch_s"],
            **{name: row[name] for name in _OF_A_TRAINING},
        )
        for row in load_published("training_runs")
        if row["median_epoch_s"]
    ]
