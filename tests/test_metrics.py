"""The catalogue: one line a metric, and no column of numbers without a line."""

import csv

import pytest

from jaxbench import metrics
from jaxbench.metrics import METRICS
from jaxbench.tables.columns import Column, metric_column
from jaxbench.tables.table import make_table


def test_each_metric_has_one_line():
    with open(metrics.__file__.replace(".py", ".csv"), newline="", encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert len(names) == len(METRICS) > 300


def test_a_column_of_numbers_needs_a_line():
    for value in (1, 0.5):
        with pytest.raises(TypeError, match=r"numbers need a line of metrics\.csv"):
            make_table([Column("rate", "rate")], [{"rate": value}])
    with pytest.raises(KeyError):
        metric_column("not_in_the_catalogue")


@pytest.mark.parametrize(
    ("name", "values", "texts"),
    [
        ("images_per_s", [5000.0, 12.25, None], ["5,000", "12.25", "–"]),
        ("compile_s", [0.001414, 11.94], ["0.001414", "11.94"]),
        ("mfu", [0.4, 1.0], ["40.00", "100.00"]),
    ],
)
def test_a_number_looks_the_same_whatever_is_beside_it(name, values, texts):
    table = make_table([metric_column(name)], [{name: value} for value in values])
    assert [row[0].text for row in table.rows] == texts


def test_a_column_without_anything_is_left_out():
    columns = [Column("a", "a"), metric_column("mfu"), Column("b", "b")]
    table = make_table(columns, [{"a": "x"}, {"b": "y"}])
    assert table.columns == ["a", "b"] and [len(row) for row in table.rows] == [2, 2]
