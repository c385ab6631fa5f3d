"""Tables: pandas DataFrames if pandas is installed."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxbench.reports.collect import collect
from jaxbench.reports.runs_table import COLUMNS, run_row


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a pandas DataFrame; if pandas is not installed, a list of dictionaries."""
    return _table({name: [row.get(name) for row in rows] for name in columns})


def _table(columns: Mapping[str, Sequence[Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return pandas.DataFrame(columns)


def records_table(records: Iterable[Mapping[str, Any]]) -> Any:
    """Return the metrics of records, without lists and nested values, as `as_table` does."""
    # Columns and not rows: millions of dictionaries would fill the memory.
    columns: dict[str, list[Any]] = {}
    count = 0
    for count, record in enumerate(records, 1):
        for name, value in record.items():
            if name != "kind" and not isinstance(value, (list, dict)):
                column = columns.setdefault(name, [])
                column += [*itertools.repeat(None, count - 1 - len(column)), value]
    for column in columns.values():
        column += itertools.repeat(None, count - len(column))
    return _table(columns)


def runs_table(folders: Sequence[str]) -> Any:
    """Return the table of all runs in and below some folders, sweeps included."""
    return as_table([*map(run_row, collect(folders).all_runs)], COLUMNS)
