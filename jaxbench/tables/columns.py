"""Columns: a heading, what each row has below it, and how that is shown."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxbench.analysis.rate import Estimate
from jaxbench.metrics import UNKNOWN, Metric, count, is_number, words
from jaxbench.schema import METRICS, Record, value_of


class Cell(NamedTuple):
    """One cell of a table.

    Attributes:
      mark: differs, bad, good, soft, measured, published, running or nothing; the text says so too.
      run: the id of the run that the cell links to.
      left: whether it is aligned left, as words are.
      sort: the number that it stands for, by which the page sorts; None for what its text says.
    """

    text: str
    mark: str = ""
    run: str | None = None
    left: bool = False
    sort: float | None = None


class Column(NamedTuple):
    """One heading, and what each row has below it.

    Numbers have a heading and a format of schema.py, see `metric_column`: in a column without a
    metric a number is refused.

    Attributes:
      value: of a row: a path of attributes and keys (`run.config.seed`), or a function. A `Cell`
        is shown as it is.
      left: aligned left; None: if it has no metric.
      ends: of an `Estimate`: `only` shows its interval, `too` shows it behind the value.
    """

    title: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], Cell | str] = words
    left: bool | None = None
    metric: Metric | None = None
    ends: str = ""

    @property
    def is_left(self) -> bool:
        is_text = self.metric is None or self.metric.unit == "text"
        return is_text if self.left is None else self.left

    def of(self, row: Any) -> Any:
        """Return the row's value; None if its path ends early."""
        if callable(self.value):
            return self.value(row)
        for name in self.value.split("."):
            if row is None:
                return None
            if isinstance(row, Record):  # other kinds have no such metric, and an empty cell
                row = value_of(row, name)
            else:
                row = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
        return row

    def cell(self, row: Any) -> Cell:
        """Return what the row has below the heading."""
        value = self.of(row)
        amount = value.value if isinstance(value, Estimate) else value
        if isinstance(value, Cell):
            cell = value
        elif self.metric is None:
            if is_number(amount):
                raise TypeError(f"{self.title}: numbers need a metric")
            shown = self.show(value)
            cell = shown if isinstance(shown, Cell) else Cell(shown)
        elif self.ends and value is not None:
            show = interval if self.ends == "only" else with_interval
            cell = Cell(show(value, self.metric.show))
        else:
            cell = Cell(self.metric.show(amount))
        if cell.sort is None and is_number(amount):
            cell = cell._replace(sort=amount)
        return cell._replace(left=self.is_left)


def metric_column(
    name: str, value: str | Callable[[Any], Any] | None = None, more: str = "", ends: str = ""
) -> Column:
    """Return the column of a metric, with its heading and format of schema.py.

    Args:
      name: the path of a row's value, of which the last part names the metric.
      value: what the rows have, if not that path.
    """
    metric = METRICS[name.rpartition(".")[2]]
    return Column(metric.heading + more, value or name, metric=metric, ends=ends)


def metric_columns(*names: str, of: str = "") -> list[Column]:
    """Return the columns of metrics; `of` is the path of what has them, which ends with a dot."""
    return [metric_column(of + name) for name in names]


def estimate_columns(value: str | Callable[[Any], Estimate], name: str) -> list[Column]:
    """Return the columns of the `Estimate` of a metric: its median, its interval and its n."""
    ends = metric_column(name, value, ends="only")._replace(title="95 % interval")
    n = metric_column("n", lambda row: getattr(ends.of(row), "n", None))
    return [metric_column(name, value), ends, n]


def interval(of: Estimate, show: Callable[[Any], str]) -> str:
    """Show both ends of an estimate's interval."""
    return UNKNOWN if None in (of.low, of.high) else f"{show(of.low)} to {show(of.high)}"


def with_interval(of: Estimate, show: Callable[[Any], str]) -> str:
    """Show an estimate with the ends of its interval in brackets."""
    ends = interval(of, show)
    return show(of.value) + ("" if ends == UNKNOWN else f" ({ends})")


def span(values: Iterable[Any], show: Callable[[Any], str] = count) -> str:
    """Show the least and the greatest of values, one of them if they look alike."""
    values = sorted(values)
    return " to ".join(dict.fromkeys(map(show, values[:1] + values[-1:])))


def moment(value: Any) -> str:
    """Show date and minute of an ISO time."""
    return words(value)[:16].replace("T", " ")
