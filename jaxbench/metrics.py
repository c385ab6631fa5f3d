"""Every metric that jaxbench records or shows: metrics.csv has one line for each.

The console, tables, the report, TensorBoard and the reference take titles, units and curves from
here. A name in the records means the same everywhere, unless metrics.csv has a line for one kind of
record: `epoch.images_per_s`. Titles are of the plain name.
"""

import csv
import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxbench.terminal import four_digits

UNKNOWN = "–"


def form(show: Callable[[float], str]) -> Callable[[Any], str]:
    """Make a format for any value: a dash for what is no number, ∞ for what never ends."""

    @functools.wraps(show)
    def shown(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            return UNKNOWN
        return "∞" if value == math.inf else show(value)

    return shown


def scaled(factor: float) -> Callable[[Any], str]:
    """Return the format of `factor` times a value."""
    return form(lambda value: four_digits(value * factor))


def words(value: Any) -> str:
    """Show anything as text; a dash for None."""
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return UNKNOWN if value is None or value == "" else str(value)


plain = form(four_digits)
count = form("{:,.0f}".format)
percent = form(lambda fraction: f"{100 * fraction:.2f}")
# {unit of metrics.csv: how a value of it is shown}. Times are recorded in seconds, sizes in bytes.
_FORMS = {
    **dict.fromkeys(("", "s", "USD", "USD/h", "J", "J/image", "W", "°C", "MHz"), plain),
    **{"count": count, "text": words, "%": percent, "ms": scaled(1e3)},
    **{"MiB": scaled(2**-20), "GiB": scaled(2**-30)},
    **dict.fromkeys(("GB/s", "GFLOP/s"), scaled(1e-9)),
    "TFLOP": scaled(1e-12),
}


class Metric(NamedTuple):
    """A line of metrics.csv.

    Attributes:
      name: of the field that holds it.
      title: what people call it; "" if no table shows it.
      unit: what it is shown in; "count" and "text" are no units.
      better: higher, lower, or "" if neither is.
      curve: its curve in TensorBoard and Weights & Biases; "" for none.
      type: the type of its values in records, with their bounds; see records/schema.py.
      always, optional: the kinds of records that hold it; an optional one may be unknown.
      shown: the tables that have a column for it: of a kind of record, `trial` for the
        table of a sweep, `seeds` for its statistics over seeds; `report` for the report's table of
        the last epochs.
      meaning: what it is, for the reference.
    """

    name: str
    title: str
    unit: str
    better: str
    curve: str
    type: str
    always: str
    optional: str
    shown: str
    meaning: str

    @property
    def heading(self) -> str:
        """The title with the unit, as the heading of a column."""
        bracket = "" if self.unit in ("", "count", "text") else f" [{self.unit}]"
        return self.title + bracket

    @property
    def show(self) -> Callable[[Any], str]:
        """The format of its values."""
        return _FORMS[self.unit]


def _load() -> dict[str, Metric]:
    with pathlib.Path(__file__).with_name("metrics.csv").open(newline="", encoding="utf-8") as file:
        return {row["name"]: Metric(**row) for row in csv.DictReader(file)}


METRICS = _load()


@functools.cache
def shown_in(table: str) -> list[str]:
    """Return the metrics that a table has columns for, in their order."""
    return [metric.name for metric in METRICS.values() if table in metric.shown.split()]


def metric_of(kind: str | None, name: str) -> Metric:
    """Return a metric as a kind of record means it. Raise KeyError if there is none."""
    return METRICS.get(f"{kind}.{name}") or METRICS[name]
