"""The published rows agree with their own arithmetic."""

import collections
import re

import pytest

from jaxbench.analysis.published import (
    TABLES,
    load_published,
    published_rates,
    read_published_rates,
)


@pytest.mark.parametrize("table", TABLES)
def test_every_row_names_its_source_and_date(table):
    """The conv2d page names no date; every other row has a year at least."""
    rows = load_published(table)
    assert rows
    for row in rows:
        assert row["source"] and row["hardware"] and row.get("devices", 1) >= 1
        if table == "conv2d":
            assert "date" not in row
        else:
            assert row["date"][:2] == "20" and row["date"][:4].isdigit(), row


def test_totals_are_the_first_epoch_and_99_medians():
    rows = [r for r in load_published("training_runs") if r["first_epoch_s"]]
    assert len(rows) == 22
    for row in rows:
        total_s = row["first_epoch_s"] + 99 * row["median_epoch_s"]
        assert total_s == pytest.approx(row["total_time_s"], rel=0.02), row


def test_images_per_s_for_a_dollar_an_hour():
    """The article's 476, 256 and 374, from its throughputs and prices."""
    rate = {
        row.hardware[:7]: row.examples_per_s
        for row in published_rates()
        if row.network == "resnet50" and row.data == "synthetic" and row.batch_size == 1024
    }
    price = {row["offer"]: row["usd_per_hour"] for row in load_published("prices")}
    assert rate["4x TPU "] / price["Google Cloud TPU v2-8, on demand"] == pytest.approx(476, abs=1)
    assert rate["4x V100"] / price["AWS p3.8xlarge, on demand"] == pytest.approx(256, abs=1)
    # The third is the reserved offer, at the price that the article rounds.
    reserved = rate["4x V100"] / price["AWS p3.8xlarge, reserved 12 months"]
    assert reserved == pytest.approx(374, rel=0.01)


def test_cost_to_accuracy():
    prices = {row["offer"]: row["usd_per_hour"] for row in load_published("prices")}
    published = [row for row in load_published("time_to_accuracy") if row["usd_published"]]
    assert len(published) == 2
    for row in published:
        hours = row["epochs"] * 1_281_167 / row["images_per_s"] / 3600
        assert hours * prices[row["offer"]] == pytest.approx(row["usd_published"], abs=0.5)


def test_a_rate_has_the_date_of_its_measurement_and_not_of_the_copy_that_was_read():
    """No run is older than its container; a README's table has the date of its container."""
    for row in read_published_rates():
        assert re.fullmatch(r"20\d\d(-\d\d){0,2}", row.date or "") or "is of" in row.note, row
        for year, month in re.findall(r"(?:NGC |[.]nv)(\d\d)[.](\d\d)", row.version or ""):
            assert row.date[:7] >= f"20{year}-{month}"[: len(row.date)], row
        if "DeepLearningExamples" in row.source:
            year, month = row.version.removeprefix("NGC ").split(".")
            assert row.date == f"20{year}-{month}" and not row.batch_assumed, row


def test_two_rates_of_a_source_differ_in_more_than_the_number():
    rows = collections.Counter(
        (row.network, row.device, row.num_devices, row.precision, row.batch_size)
        + (row.software, row.version, row.source, row.note)
        for row in published_rates()
    )
    assert rows.most_common(1)[0][1] == 1, rows.most_common(1)


def test_rates_that_no_xla_compiled_are_not_said_to_be_of_xla():
    """The logs of TensorFlow 2.2 have no line "Compiled cluster using XLA"; the others have it."""
    rows = [row for row in read_published_rates() if "tf_cnn_benchmarks" in row.software]
    assert {"XLA" in row.software for row in rows if "2.2" in row.version} == {False}
    assert {"XLA" in row.software for row in rows if "2.2" not in row.version} == {True}
