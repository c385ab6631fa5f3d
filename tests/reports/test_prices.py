"""Prices from SkyPilot's catalogues, and the runs that they are of."""

import shutil

import pytest

from jaxbench.analysis.pricing import Price, load_prices, read_prices
from jaxbench.reports.collect import collect
from jaxbench.reports.prices import Prices
from tests.conftest import refusal
from tests.recorded import trained

# Made up, in the form of SkyPilot's files.
CATALOGUE = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
big.1,16,200,H200,1.0,"{'Gpus': [{'Name': 'H200'}]}",5.0,1.0,north,north-a
big.1,16,200,H200,1.0,"{'Gpus': [{'Name': 'H200'}]}",3.6,1.0,south,south-b
big.8,128,1600,H200,8.0,"{'Gpus': [{'Name': 'H200'}]}",30.0,,north,north-a
small.1,4,16,T4,0.5,,0.2,0.1,north,north-a
plain.1,4,16,,,,0.1,0.05,north,north-a
,,,H200,1.0,,2.0,0.9,north,north-a
rumour.1,16,200,H100,1.0,,,1.5,north,north-a
,,,tpu-v5litepod-8,1.0,tpu-v5litepod-8,9.0,4.0,north,north-a
,,,tpu-v5litepod-4,1.0,tpu-v5litepod-4,4.5,2.0,north,north-a
"""


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "aws-20261120.csv"
    path.write_text(CATALOGUE)
    return path


def test_a_catalogue_has_the_lowest_price_of_each_machine(catalogue):
    prices = {price.offer: price for price in read_prices(str(catalogue))}
    # Not half a T4, not Google's GPU without a machine, not what has a spot price alone.
    assert [*prices] == ["H200:1", "H200:8", "tpu-v5litepod-8", "tpu-v5litepod-4"]
    assert prices["H200:1"] == Price(
        *("H200:1", "H200", 1, 3.6, "2026-11-20"),
        "SkyPilot's catalogue aws-20261120.csv, big.1 in south",
    )
    assert prices["tpu-v5litepod-8"].devices is None
    assert load_prices(str(catalogue))[0].offer == "H200:1"
    undated = shutil.copy(catalogue, catalogue.with_name("vms.csv"))
    assert {price.date for price in read_prices(str(undated))} == {"date unknown"}


def test_a_catalogue_without_prices_of_accelerators_is_refused(tmp_path):
    path = tmp_path / "vms.csv"
    path.write_text("".join(CATALOGUE.splitlines(keepends=True)[i] for i in (0, 5, 6)))
    refusal(read_prices, str(path), told="a catalogue without a price of a machine")


@pytest.mark.parametrize(
    "count, price",
    [("1", "-1"), ("1", "nan"), ("1", "inf"), ("1", "0"), ("1", "1e300")]
    + [("-8", "3"), ("1.5", "3"), ("nan", "3"), ("inf", "3")],
)
def test_an_impossible_price_or_count_of_a_catalogue_is_left_out_and_said(
    catalogue, capsys, count, price
):
    whole = read_prices(str(catalogue))
    head, *lines = catalogue.read_text().splitlines()
    odd = f"big.1,16,200,H200,{count},,{price},1.0,south,south-b"
    assert not capsys.readouterr().err
    catalogue.write_text("\n".join([head, odd, *lines, odd]))
    assert read_prices(str(catalogue)) == whole
    assert capsys.readouterr().err.count("\n") == 1
    catalogue.write_text(f"{head}\n{odd}\n")
    refusal(read_prices, str(catalogue), told="a catalogue without a price of a machine")
    assert ": 1 row(s) with an impossible price or count" in capsys.readouterr().err


def test_a_catalogue_prices_runs_by_its_own_names(tmp_path, catalogue):
    """The smallest machine with devices enough; a slice of just the run's size."""
    found = {
        ("NVIDIA H200", 1): ["H200:1"],
        ("NVIDIA H200", 2): ["H200:8"],
        ("TPU v5 lite", 8): ["tpu-v5litepod-8"],
        ("TPU v5 lite", 2): [],
        ("NVIDIA H100 PCIe", 1): [],
    }
    prices = Prices(listed=read_prices(str(catalogue)))
    for place, (kind, devices) in enumerate(found):
        environment = {"device_kind": kind, "num_devices": devices}
        trained(tmp_path / "runs" / str(place), environment=environment)
    runs = collect([str(tmp_path / "runs")]).runs
    assert [[own.offer for own in prices.of(run)] for run in runs] == [*found.values()]
