"""The catalogue: how each metric is shown, and no column of numbers without one."""

import pytest

from jaxbench.schema import METRICS, column_heading
from jaxbench.tables.columns import Column, metric_column
from jaxbench.tables.table import make_table


def test_each_metric_can_be_shown_in_its_unit():
    for name, metric in METRICS.items():
        assert metric.show(0.5), name
        assert metric.title or not metric.better, name


def test_both_ends_of_an_interval_have_a_title_and_a_column_together():
    ends = {name.removesuffix("_low") for name in METRICS if name.endswith("_low")}
    for name in ends:
        low, high = METRICS[f"{name}_low"], METRICS[f"{name}_high"]
        assert (low.title, low.unit) == (high.title.replace("high", "low"), high.unit)
        assert "interval" not in low.title
        shown = column_heading(f"{name}_low")
        assert "interval" in shown if low.title else not low.shown, name


def test_a_column_of_numbers_needs_a_metric():
    for value in (1, 0.5):
        with pytest.raises(TypeError, match="numbers need a metric"):
            make_table([Column("rate", "rate")], [{"rate": value}])
    with pytest.raises(KeyError):
        metric_column("not_in_the_catalogue")
