"""What a report says of offers: those that came back and those that have not run."""

import json
import shutil

import pytest

from jaxbench.analysis.pricing import Price, load_prices, read_prices
from jaxbench.errors import BadInput
from jaxbench.offering.folder import OFFERS, read_offers
from jaxbench.reports.collect import collect
from jaxbench.reports.prices import Prices
from tests.recorded import on_the_way, throughput, trained
from tests.reports import pages
from tests.reports.pages import sections_of, tables
from tests.reports.test_report import run_report  # noqa: F401

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


def listed(folder, *offers, label="cnn10"):
    folder.mkdir(exist_ok=True)
    made = [{"name": name, "folder": own, "target": target} for name, own, target in offers]
    document = {"command": "jaxbench offers", "label": label, "offers": made}
    (folder / OFFERS).write_text(json.dumps(document))
    return folder


H200 = ("H200:1", "h200-1", "gpu:h200:1")
H100 = ("H100:8", "h100-8", "gpu:h100:8")


def rows_of(section):
    [table] = tables(section).values()
    return pages.rows_of(table)


def test_each_offer_has_its_figures_or_has_not_run(tmp_path, catalogue):
    folder = listed(tmp_path / "offers", H200, H100)
    on_the_way(folder / "h200-1", (0.5, 0.9))
    prices = Prices(listed=read_prices(str(catalogue)))
    section = sections_of(folder, prices=prices)["offers"]
    came_back, waiting = rows_of(section)
    assert (came_back["offer"], came_back["state"], came_back["run or card"]) == (
        *("H200:1", "done"),
        "R1",
    )
    # 20 s at 3.6 USD/h; 5,000 images/s are 0.2 USD for a million.
    assert came_back["to target [s]"] == "20.00" and came_back["to the target [USD]"] == "0.02000"
    assert came_back["USD per million images"] == "0.2000"
    assert "2026-11-20" in came_back["price: offer, date, source"]
    assert (waiting["offer"], waiting["state"]) == ("H100:8", "not yet run")
    assert {waiting[name] for name in ("images/s", "to the target [USD]", "run or card")} == {"–"}
    assert "2 machines to rent, 1 of them not yet run" in section.lead


def test_a_folder_without_any_result_is_reported_too(tmp_path, run_report):  # noqa: F811
    listed(tmp_path / "offers", H200, H100)
    done = run_report("offers", "--out=a.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.md").read_text().count("not yet run") == 3


def test_what_has_not_run_has_the_price_of_a_catalogue(tmp_path, catalogue, run_report):  # noqa: F811
    listed(tmp_path / "offers", H100, ("tpu-v5e-8", "tpu-v5e-8", "tpu:v5e:2x4"))
    done = run_report("offers", f"--prices={catalogue}", "--out=a.md")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "a.md").read_text().splitlines()
    unknown, known = (line for line in lines if "| not yet run |" in line)
    assert "2026-11-20" not in unknown and "H100:8" in unknown
    assert "| 9.0" in known and "2026-11-20" in known


def test_a_target_that_was_not_reached_costs_no_amount(tmp_path, catalogue):
    folder = listed(tmp_path / "offers", H200)
    on_the_way(folder / "h200-1", (0.5, 0.6))
    [row] = rows_of(
        sections_of(folder, prices=Prices(listed=read_prices(str(catalogue))))["offers"]
    )
    assert row["to target [s]"] == row["to the target [USD]"] == "∞"


def test_runs_elsewhere_are_of_no_offer(tmp_path):
    folder = listed(tmp_path / "offers", H200)
    throughput(folder / "h200-10", 2000.0)
    [row] = rows_of(sections_of(folder)["offers"])
    assert row["state"] == "not yet run"
    throughput(folder / "h200-1" / "results", 2000.0)
    [row] = rows_of(sections_of(folder)["offers"])
    assert row["state"] == "done" and row["images/s"] == "2,000"


def test_without_a_list_there_is_no_section(tmp_path):
    trained(tmp_path / "run")
    assert "offers" not in sections_of(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"label": "a"}',
        '{"label": "a", "offers": [{"name": "x", "target": "y", "folder": "../z"}]}',
    ],
)
def test_a_damaged_list_is_named(tmp_path, text):
    (tmp_path / OFFERS).write_text(text)
    with pytest.raises(BadInput, match=r"offers\.json: cannot be read as a list of offers"):
        read_offers(tmp_path)
    trained(tmp_path / "run")
    assert "offers.json" in collect([str(tmp_path)]).notes[0]  # and the report goes on


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


def test_a_catalogue_without_a_date_says_so(catalogue):
    undated = shutil.copy(catalogue, catalogue.with_name("vms.csv"))
    assert {price.date for price in read_prices(str(undated))} == {"date unknown"}


def test_a_catalogue_without_prices_of_accelerators_is_refused(tmp_path):
    path = tmp_path / "vms.csv"
    path.write_text("".join(CATALOGUE.splitlines(keepends=True)[i] for i in (0, 5, 6)))
    with pytest.raises(BadInput, match="a catalogue without a price of an accelerator"):
        read_prices(str(path))


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
