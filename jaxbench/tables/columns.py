"""Columns: a heading, what each row has below it, and how that is shown."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxbench.analysis.statistics import Estimate
from jaxbench.metrics import METRICS, UNKNOWN, count, form, words

Format = Callable[[Any], str]


class Cell(NamedTuple):
    """One cell of a table.

    Attributes:
      mark: differs, bad, good, soft, measured, published, running or nothing; the text says so too.
      span: how many columns it covers.
      run: the id of the run that the cell links to.
      left: whether it is aligned left, as words are.
      sort: the number that it stands for, by which the page sorts; None for what its text says.
    """

    text: str
    mark: str = ""
    span: int = 1
    run: str | None = None
    left: bool = False
    sort: float | None = None


class Column(NamedTuple):
    """One heading, and what each row has below it.

    Attributes:
      title: the heading, with its unit.
      value: of a row: a path of attributes and keys (`run.config.seed`), or a function. A `Cell`
        is shown as it is, over as many columns as it spans.
      show: how a value is shown.
      left: aligned left; None: if `show` is `words`.
    """

    title: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], Cell | str] = words
    left: bool | None = None

    @property
    def is_left(self) -> bool:
        return self.show is words if self.left is None else self.left

    def of(self, row: Any) -> Any:
        """Return the row's value; None if its path ends early."""
        if callable(self.value):
            return self.value(row)
        for name in self.value.split("."):
            if row is None:
                return None
            row = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
        return row


def metric_column(
    name: str, value: str | Callable[[Any], Any] | None = None, more: str = ""
) -> Column:
    """Return the column of a metric, with its heading and format of metrics.csv.

    Args:
      name: the path of a row's value, of which the last part names the metric.
      value: what the rows have, if not that path.
      more: is added to the heading.
    """
    metric = METRICS[name.rpartition(".")[2]]
    return Column(metric.heading + more, value or name, metric.show)


def metric_columns(*names: str, of: str = "") -> list[Column]:
    """Return the columns of metrics; `of` is the path of what has them, which ends with a dot."""
    return [metric_column(of + name) for name in names]


def estimate_columns(path: str, name: str) -> list[Column]:
    """Return the columns of the `Estimate` of a metric: its median, its interval and its n."""
    metric = metric_column(name, f"{path}.value")
    show: Any = metric.show
    return [metric, Column("95 % interval", path, interval(show)), count_column(path)]


def count_column(path: str) -> Column:
    """Return the column of how many values an estimate has."""
    return Column("n", f"{path}.n", count)


@form
def clock_time(value_s: float) -> str:
    """Show hours, minutes and seconds as h:mm:ss, as the published tables print a whole run."""
    whole = round(value_s)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def interval(show: Format) -> Callable[[Estimate | None], str]:
    """Return the format of both ends of an estimate's interval."""

    def shown(of: Estimate | None) -> str:
        known = of is not None and None not in (of.low, of.high)
        return f"{show(of.low)} to {show(of.high)}" if known else UNKNOWN

    return shown


def with_interval(show: Format) -> Callable[[Estimate | None], str]:
    """Return the format of an estimate with the ends of its interval in brackets."""

    def shown(of: Estimate | None) -> str:
        ends = interval(show)(of)
        return show(of and of.value) + ("" if ends == UNKNOWN else f" ({ends})")

    return shown


def span(values: Iterable[float], show: Format = count) -> str:
    """Show the least and the greatest of values, one of them if they look alike."""
    values = sorted(values)
    return " to ".join(dict.fromkeys(map(show, values[:1] + values[-1:])))


def moment(value: Any) -> str:
    """Show date and minute of an ISO time."""
    return words(value)[:16].replace("T", " ")
