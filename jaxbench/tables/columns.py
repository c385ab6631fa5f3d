"""Columns: a heading, what each row has below it, and how that is shown."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxbench.metrics import METRICS, count, words
from jaxbench.tables.formats import interval


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

    is_left = property(lambda self: self.show is words if self.left is None else self.left)

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


def metric_columns(*names: str) -> list[Column]:
    return [metric_column(name) for name in names]


def estimate_columns(path: str, name: str) -> list[Column]:
    """Return the columns of the `Estimate` of a metric: its median, its interval and its n."""
    metric = metric_column(name, f"{path}.value")
    return [metric, Column("95 % interval", path, interval(metric.show)), count_column(path)]


def count_column(path: str) -> Column:
    return Column("n", f"{path}.n", count)
