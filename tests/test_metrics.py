"""The catalogue: one line a metric, and no column of numbers without a line."""

import pytest

from jaxbench import metrics
from jaxbench.files import read_table
from jaxbench.schema import METRICS
from jaxbench.tables.columns import Column, metric_column
from jaxbench.tables.table import make_table


def test_each_metric_has_one_line():
    names = read_table(metrics.__file__, "metrics.csv")
    assert len(names) == len(METRICS) > 300


def test_a_column_of_numbers_needs_a_line():
    for value in (1, 0.5):
        with pytest.raises(TypeError, match=r"numbers need a line of metrics\.csv"):
            make_table([Column("rate", "rate")], [{"rate": value}])
    with pytest.raises(KeyError):
        metric_column("not_in_the_catalogue")
