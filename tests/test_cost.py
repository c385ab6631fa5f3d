"""Prices, and what they come to: the published article's own figures from its rows."""

import functools
import json
import re

import pytest

from jaxbench.analysis.pricing import Price, add_costs, find_price, load_prices, read_prices
from jaxbench.errors import BadInput
from jaxbench.sweeps.grid import make_trials
from tests.conftest import MICRO, refusal, run_json
from tests.recorded import attempts, epochs, recorded_run

TPU, AWS = "Google Cloud TPU v2-8, on demand", "AWS p3.8xlarge, on demand"


HEADER = "offer,hardware,devices,usd_per_hour,date,source\n"


def test_a_users_prices_come_first(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text(HEADER + f'mine,1x H200,1,3.5,2026-11,"invoice"\n"{TPU}",v2-8,4,4.5,2026,web\n')
    prices = load_prices(str(own))
    assert find_price("mine", prices) == Price("mine", "1x H200", 1, 3.5, "2026-11", "invoice")
    assert find_price(TPU, prices).usd_per_hour == 4.5
    assert find_price(AWS, prices).usd_per_hour == 12.2
    refusal(find_price, "mien", prices, told="did you mean 'mine'")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("offer,usd_per_hour\nx,1\n", "line 1: no column 'hardware' in .*; must be a CSV file"),
        (HEADER.replace(",", ";") + "x;y;1;2,5;2026;web\n", "no column 'offer' in 'offer;hardw"),
        (HEADER.replace("usd", "eur") + "x,y,1,2.5,2026,web\n", "no column 'usd_per_hour' in "),
        ("usd_per_hour," + HEADER + "3,x,y,1,2.5,2026,web\n", "2 columns 'usd_per_hour' in "),
        (
            HEADER + 'x,y,1,"2,5",2026,web\n',
            "2: usd_per_hour is '2,5': expected a number, written like 1.5",
        ),
        (HEADER + "x,y,1,$2.5,2026,web\n", "line 2: usd_per_hour is '\\$2.5': expected a number"),
        (HEADER + "x,y,1,1e400,2026,web\n", "line 2: usd_per_hour is '1e400'"),
        (HEADER + "x,y,1,inf,2026,web\n", "line 2: usd_per_hour is 'inf'"),
        ((HEADER + "x,y,1,2.5,2026,web\n").encode("utf-16"), "is no UTF-8 text; must be a CSV"),
        ((HEADER + "x,y,1,2.5,2026,für\n").encode("latin-1"), "is no UTF-8 text; must be a CSV"),
        ("", "has no offer below its first line"),
        (HEADER + "x,y,1,,2026,web\n", "line 2: .*usd_per_hour"),
        (HEADER + "x,y,1,2.5,,\n", "line 2: .*date"),
        (HEADER + "x,y,0,2.5,2026,web\n", "line 2: .*devices"),
        (HEADER + "x,y,1_0,2.5,2026,web\n", "line 2: .*devices"),
        (HEADER + "x, on demand,y,1,2.5,2026,web\n", "line 2: it has more cells .* quote"),
        (HEADER + "x,y,1,2.5,2026,web\n" * 2, "has offers of one name: x"),
        (HEADER + "x\x1b[2J,y,1,2.5,2026,web\n", "line 2: .*offer"),
        (HEADER + "x,y,1,nan,2026,web\n", "line 2: .*usd_per_hour"),
        (HEADER + "x,y,1,-1,2026,web\n", "line 2: .*usd_per_hour"),
    ],
)
def test_a_price_without_all_that_belongs_to_it_is_refused(tmp_path, text, told):
    own = tmp_path / "own.csv"
    own.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=told):
        load_prices(str(own))
    refusal(load_prices, str(tmp_path / "none.csv"), told="No such file")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_a_spreadsheet_adds_is_left_out(tmp_path, end):
    lines = [f"{HEADER.strip()},,", ",,,,,,,,", 'x,y,8.0,2.5\xa0,2026,"a\nquote",', ",,,"]
    (tmp_path / "own.csv").write_bytes(end.join(lines).encode("utf-8-sig"))
    assert read_prices(str(tmp_path / "own.csv")) == [Price("x", "y", 8, 2.5, "2026", "a quote")]


@pytest.fixture
def run_cost(run_cli):
    return functools.partial(run_cli, module="jaxbench.cost")


def write_run(path, top1=(0.8, 0.95), rates=None, summary=None, **fields):
    """A finished training run whose epochs ended with these top-1, ten seconds each."""
    records = epochs(
        [5000.0] * len(top1),
        eval_top1=top1,
        elapsed_s=[10.0 * number for number, _ in enumerate(top1, 1)],
        images_per_s=rates or [None] * len(top1),
    )
    usual = {"images_per_s_whole_run": 2000.0, "wall_s": 3600.0}
    return str(recorded_run(path, records, summary=usual | (summary or {}), **fields))


def cost_of(done):
    """The only run's costs that the command printed as JSON."""
    assert done.returncode == 0, done.stderr
    [cost] = json.loads(done.stdout)["costs"].values()
    return cost


def test_the_tokens_of_sequences_cost_too(run_cost, tmp_path):
    run = write_run(tmp_path / "run", config={"data": {"sequence_length": 250}})
    done = run_cost(run, "--usd_per_hour=3.6")
    # A million sequences for half a dollar have 250 million tokens.
    assert "USD per billion tokens: 2.000\n" in done.stdout


def test_the_command_says_what_a_run_cost(run_cost, tmp_path, snapshot):
    telemetry = {"energy_j": 7.2e6, "energy_covers": "GPU boards: gpu0"}
    run = write_run(tmp_path / "run", summary={"telemetry": telemetry})
    # An accuracy that is just reached is reached.
    args = (run, "--usd_per_hour=3.6", "--target_accuracy=0.95", "--usd_per_kwh=0.25")
    cost = cost_of(run_cost(*args, "--json"))
    assert (cost["usd_per_million_images"], cost["wall_usd"]) == pytest.approx((0.5, 3.6))
    assert (cost["target_s"], cost["target_usd"]) == pytest.approx((20, 0.02))
    assert cost["electricity_usd"] == 0.5 and cost["price"].pop("date")
    never = run_cost(run, "--usd_per_hour=3.6", "--target_accuracy=0.96")
    lines = run_cost(*args).stdout + never.stdout
    shown = (json.dumps(cost, indent=1) + "\n" + lines).replace(str(tmp_path), "...")
    assert re.sub(r"\d{4}-\d\d-\d\d", "TODAY", shown) == snapshot


def test_all_processes_of_a_resumed_run_are_paid_for(run_cost, tmp_path):
    resumes = [
        {"step": 100, "elapsed_s": 5.0, "lost_s": 1800.0},
        {"step": 900, "elapsed_s": 25.0, "lost_s": 3600.0},
    ]
    run = write_run(tmp_path / "run", (0.8, 0.95, 0.96), attempts=attempts(*resumes))
    args = ("--usd_per_hour=3.6", "--target_accuracy=0.94")
    cost = cost_of(run_cost(run, *args, "--json"))
    assert (cost["wall_s"], cost["paid_s"], cost["wall_usd"]) == (3600, 9000, 9)
    # What was lost after the target was reached is not of its price.
    assert (cost["target_s"], cost["target_usd"]) == (20, pytest.approx(1.82))
    told = run_cost(run, *args).stdout
    assert "paid, with the work that was lost [s]: 9,000\n  paid [USD]: 9.000\n" in told
    # The last process went back before the target: it reached it again.
    back = {"step": 100, "elapsed_s": 5.0, "lost_s": 0.0}
    run = write_run(tmp_path / "back", (0.8, 0.95, 0.96), attempts=attempts(*resumes, back))
    assert cost_of(run_cost(run, *args, "--json"))["target_usd"] == pytest.approx(5.42)


def test_a_run_that_was_resumed_records_what_it_cost():
    summary = {"wall_s": 3600.0, "target_accuracy": {"reached": True, "time_s": 1800.0}}
    add_costs(summary, 3.0, attempts({"elapsed_s": 5.0, "lost_s": 1800.0}))
    assert summary["usd"] == 4.5 and summary["target_accuracy"]["usd"] == 3.0


_EACH = ("--target_accuracy=0.9", "--usd_per_kwh=0.25")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"summary": {"images_per_s_whole_run": 0.0}}, "it has no rate"),
        ({"summary": {"images_per_s_whole_run": None}}, "it has no rate"),
        ({"top1": ()}, "has no evaluations with an accuracy"),
        ({"summary": {"epochs_done": 3}}, "metrics.jsonl has 2 epochs, its summary counts 3"),
        ({"status": "running"}, "its status is killed"),
        ({"price": {"usd_per_hour": "much"}}, "run: run.json: Expected `float`, got `str`"),
    ],
)
def test_a_run_without_what_a_cost_is_of_is_refused(refused, tmp_path, fields, told):
    refused(write_run(tmp_path / "run", **fields), *_EACH, told=told, module="jaxbench.cost")


def test_costs_by_the_reports_rate_and_electricity_without_a_price(run_cost, tmp_path, snapshot):
    target = {"value": 0.9, "score": "top1", "reached": True, "energy_j": 3.6e6}
    summary = {"wall_s": None, "telemetry": {"energy_j": 7.2e6}, "target_accuracy": target}
    run = write_run(tmp_path / "run", (0.5, 0.8, 0.95), [100.0, 1000.0, 1200.0], summary)
    cost = cost_of(run_cost(run, *_EACH, "--json"))
    assert (cost["images_per_s"], cost["price"], cost["wall_s"]) == (1100.0, None, None)
    assert cost["electricity_usd"] == 0.5 and cost["target_energy_j"] == 3.6e6
    name, *told = run_cost(run, *_EACH).stdout.splitlines()
    assert name == run and max(map(len, told)) <= 80
    assert "\n".join(told) == snapshot


def test_what_the_report_takes_has_costs(run_cost, refused, tmp_path):
    """A folder with a run that was measured elsewhere, and one that failed."""
    here, there = {"device_kind": "NVIDIA H200", "num_devices": 1}, {"device_kind": "TPU v4"}
    write_run(tmp_path / "runs/a", environment=here)
    write_run(tmp_path / "runs/b/c", environment=there | {"num_devices": 4})
    failed = write_run(tmp_path / "runs/failed", environment=here, status="failed")
    own = tmp_path / "own.csv"
    own.write_text(HEADER + "h,NVIDIA H200,1,3.6,2026,web\nt,TPU v4,4,7.2,2026,web\n")
    done = run_cost("runs", "--prices=own.csv", "--json")
    costs = json.loads(done.stdout)["costs"]
    assert {name: cost["wall_usd"] for name, cost in costs.items()} == {
        "runs/a": 3.6,
        "runs/b/c": 7.2,
    }
    assert re.fullmatch(r"jaxbench: failed: its status is failed.*\n", done.stderr)
    refused(
        "runs", "--usd_per_hour=1", told="one price, but the runs are on", module="jaxbench.cost"
    )
    refused(failed, "--usd_per_hour=1", told="its status is failed", module="jaxbench.cost")
    (tmp_path / "none").mkdir()
    refused("none", told="holds no run directory", module="jaxbench.cost")


def test_a_run_records_its_price_and_what_its_way_cost(run_cli, run_cost, tmp_path):
    priced = ("--usd_per_hour=3.6", "--target_accuracy=0.05", "--workdir=run")
    done = run_cli(f"--experiment={MICRO}", *priced)
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    summary = document["summary"]
    target = summary["target_accuracy"]
    assert document["price"]["usd_per_hour"] == 3.6
    assert summary["usd"] == pytest.approx(summary["wall_s"] / 1000)
    assert target["usd"] == pytest.approx(target["time_s"] / 1000) and target["reached"]
    assert re.search(r"reached in epoch \d.* for [\d.]+ USD", " ".join(done.stdout.split()))
    # The record's own price holds where none is stated.
    cost = cost_of(run_cost(str(tmp_path / "run"), "--json"))
    assert cost["wall_usd"] == pytest.approx(summary["usd"])


def test_another_price_or_project_is_no_other_trial():
    def key(*flags):
        return make_trials("quickstart:tiny", [], {"seed": ["0"]}, flags)[0].key

    assert key() == key("--usd_per_hour=3.6") == key("--offer=x", "--prices=y")
    assert key("--wandb=demo") == key() != key("--target_accuracy=0.5")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "give at least one DIR"),
        (("nowhere", "--usd_per_hour=1"), "nowhere: no such folder"),
        (("run",), "its record has no price; give --usd_per_hour, --prices or --offer"),
        (("run", "--usd_per_hour=0"), "--usd_per_hour=0: must be more than 0"),
        (("run", "--usd_per_hour=1e300"), "must be more than 0, at most 1e+12"),
        (("run", "--usd_per_kwh=nan"), "--usd_per_kwh=nan: must be more"),
        (("run", "--usd_per_hour=1", "--target_accuracy=94"), "must be a fraction"),
        (("run", "--offer=none"), "no such offer"),
        (("run", "--prices=own.csv", "--usd_per_hour=1"), "--usd_per_hour and --prices: give one"),
    ],
)
def test_what_makes_no_sense_is_refused(refused, tmp_path, args, told):
    write_run(tmp_path / "run")
    refused(*args, told=told, module="jaxbench.cost")
