"""What a report says of money and of the way to an accuracy, beside `test_golden.py`."""

import contextlib
import functools
import json
import os

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.errors import BadInput
from jaxbench.metrics import UNKNOWN
from jaxbench.records.run_lock import lock_run
from jaxbench.reports.collect import collect
from jaxbench.reports.prices import Prices
from tests.conftest import refusal
from tests.recorded import PRICE, attempts, on_the_way, throughput, trained, write_results
from tests.reports.pages import charts, rows_of, sections_of, shown, tables

IMAGENET = {"image_shape": [224, 224, 3], "num_classes": 1000}
RESNET = {"model": "ResNet", "parameters": 25_557_032, "experiment": "resnet50_synthetic"}
SEEDS = "Time to the target, seeds together"


def test_without_prices_and_targets_there_are_no_such_sections(tmp_path):
    trained(tmp_path / "run", summary={"telemetry": {"energy_j": 7.2e6}})
    assert not {"cost", "target"} & set(sections_of(tmp_path))
    # Electricity needs no price.
    assert "cost" in sections_of(tmp_path, prices=Prices(usd_per_kwh=0.25))


def test_published_rates_are_priced_by_the_offers_of_their_machine(tmp_path):
    """MXNet's rate names none, and nobody measured Cirrascale's."""
    throughput(tmp_path / "run", 2500.0, price=PRICE, **RESNET, config={"data": IMAGENET})
    found = tables(sections_of(tmp_path)["history"])
    rows = rows_of(found["resnet50: training, images/s"])
    priced = {
        row["images/s per USD/h"]: row
        for row in rows
        if row["offer"] != UNKNOWN and row["run"] == UNKNOWN
    }
    assert {*priced} == {"256.4", "372.4", "475.5", "417.3", "232.7", "338.0"}
    assert not any("Cirrascale" in row["offer"] for row in rows)
    [mxnet] = [row for row in rows if row["images/s"] == "3,280"]
    assert mxnet["offer"] == UNKNOWN


@pytest.mark.parametrize(
    ("data", "is_beside"),
    [
        (IMAGENET | {"source": "tfds", "name": "imagenet2012"}, True),
        (IMAGENET | {"source": "synthetic"}, False),
        ({"image_shape": [32, 32, 3], "num_classes": 10}, False),
    ],
)
def test_the_way_to_an_accuracy_stands_beside_the_same_training_alone(tmp_path, data, is_beside):
    loaded = {"train_examples": 1_281_167}
    trained(tmp_path / "run", config={"data": data}, data=loaded, **RESNET)
    history = sections_of(tmp_path).get("history")
    found = tables(history) if history else {}
    table = found.get("resnet50 on imagenet: time and cost to an accuracy")
    assert (table is not None) == is_beside
    if table:
        costs = [row["whole run [USD]"] for row in rows_of(table)]
        assert costs == ["54.58", "73.34", "128.5", "88.45"]


XEON = {"device_kind": "cpu", "num_devices": 4, "cpu": "Xeon"}
H200 = {"device_kind": "NVIDIA H200", "num_devices": 1}
V2 = {"device_kind": "TPU v2", "num_devices": 8}  # a v2-8: two JAX devices a chip
V4 = {"device_kind": "TPU v4", "num_devices": 4}


def runs_on(folder, *environments):
    for number, environment in enumerate(environments):
        trained(folder / str(number), environment=environment)
    return collect([str(folder)]).runs


def test_a_price_of_other_hardware_is_marked(tmp_path):
    offer = Price("v2-8", "4x TPU v2", 4, 6.7, "2018", "web")

    def cell_of(run, prices):
        section = sections_of(run.path, prices=prices)["cost"]
        return tables(section)["What rates and runs cost"].rows[0][-1]

    other, same, half = runs_on(tmp_path, XEON, V2, V2 | {"num_devices": 4})
    cell = cell_of(other, Prices(offer))
    assert cell.mark == "bad" and "PRICE OF OTHER HARDWARE: 4x TPU v2" in cell.text
    cell = cell_of(same, Prices(offer))
    assert cell.mark != "bad" and "OTHER HARDWARE" not in cell.text
    # More than the run used: the rest was paid for, and the run may have had a smaller machine.
    for listed in (Prices(offer), Prices(listed=[offer])):
        cell = cell_of(half, listed)
        assert cell.mark == "bad" and "PRICE OF 4 CHIPS, THE RUN USED 2" in cell.text


@pytest.mark.parametrize(
    ("environment", "hardware", "devices", "holds"),
    [
        (H200, "NVIDIA H200", 1, True),
        (H200, "nvidia h200", 8, True),
        (H200, "TPU", 4, False),
        (V4, "TPU v4", 1, False),
        (V4, "TPU", 4, False),
        (V2, "4x TPU v2", 4, True),
        (V2, "4x TPU v2", 3, False),
        (V2 | {"num_devices": 9}, "4x TPU v2", 4, False),
    ],
)
def test_offers_hold_for_the_very_hardware(tmp_path, environment, hardware, devices, holds):
    [run] = runs_on(tmp_path, environment)
    listed = Prices(listed=[Price("it", hardware, devices, 3.5, "2026", "web")])
    assert [price.offer for price in listed.of(run)] == ["it"] * holds
    if hardware == "TPU":
        refusal(listed.check, [run], told="no offer whose hardware is one of")


@pytest.mark.parametrize(
    ("environments", "told"),
    [
        ((H200, V4), "the runs are on 1 × NVIDIA H200 and on 4 × TPU v4"),
        ((XEON, XEON | {"cpu": "EPYC"}), "on EPYC and on Xeon"),
        ((V2, V2 | {"num_devices": 4}), "on 4 × TPU v2 and on 8 × TPU v2"),
        ((XEON, XEON | {"num_devices": 8}), None),  # CPU devices are of one host, however many
    ],
)
def test_a_stated_price_is_of_one_kind_of_hardware(tmp_path, environments, told):
    runs = runs_on(tmp_path, *environments)
    stated = Prices(Price("stated", "", None, 2.0, "2026", "me"))
    stated.check(runs[:1])
    with pytest.raises(BadInput, match=told) if told else contextlib.nullcontext():
        stated.check(runs)


def test_a_price_that_changed_leaves_the_cost_unknown(tmp_path, run_cli):
    changed = {"elapsed_s": 20.0, "lost_s": 0.0, "step": 150}
    changed["price"] = PRICE | {"usd_per_hour": 10.0}
    run = on_the_way(tmp_path / "run", (0.5, 0.9), price=PRICE, attempts=attempts(changed))
    done = run_cli("run", "--target_accuracy=0.9", "--json", module="jaxbench.cost")
    [cost] = json.loads(done.stdout)["costs"].values()
    assert (cost["price"], cost["wall_usd"], cost["target_usd"]) == (None, None, None)
    assert cost["price_note"].endswith("what it cost is unknown") and cost["paid_s"] == 100
    # Who states a price has said what it cost.
    [run] = collect([str(run)]).runs
    stated = Price("stated", "", None, 2.0, "2026", "me")
    assert Prices(stated).of(run) == [stated] and Prices().of(run) == []


def test_offers_of_one_price_are_told_apart(tmp_path):
    listed = [Price(name, "NVIDIA H200", 1, 3.6, "2026", "web") for name in ("spot", "flex")]
    on_the_way(tmp_path / "run", (0.5, 0.9))
    cell = "0.02000 (at 3.600 USD/h, spot); 0.02000 (at 3.600 USD/h, flex)"
    assert cell in seeds_of(tmp_path, prices=Prices(listed=listed))


def seeds_of(folder, *titles, **asked):
    return shown(sections_of(folder, **asked)["target"], SEEDS, *titles)


def test_another_target_may_be_asked_for(tmp_path, snapshot):
    """Energy is known up to a run's own target alone."""
    on_the_way(tmp_path / "a", (0.5, 0.9), config={"seed": 0}, price=PRICE)
    on_the_way(tmp_path / "b", (0.5, 0.6), config={"seed": 1}, price=PRICE)
    assert f"{seeds_of(tmp_path)}\n\n{seeds_of(tmp_path, target=0.55)}" == snapshot


def test_seeds_of_a_sweep_count_as_its_own_table_counts_them(tmp_path, snapshot):
    trials = []
    for seed, status in enumerate(("done", "diverged", "preempted", None)):
        run = f"trials/seed={seed}/run1"
        if status:
            scores = (0.5, 0.9) if status == "done" else (0.5,)
            own = {"config": {"seed": seed}, "target_accuracy": 0.8}
            on_the_way(tmp_path / run, scores, status=status, **own)
        # The sweep ended the one that was too slow, and one left no run.
        ended = {"diverged": "failed", "preempted": "timeout", None: "oom"}.get(status, status)
        place = {"seed": str(seed)}
        trials.append({"status": ended, "run": run if status else None, "place": place})
    write_results(tmp_path, *trials)
    assert seeds_of(tmp_path, "Time to accuracy") == snapshot


def test_of_a_damaged_run_it_is_not_known_whether_it_got_there(tmp_path):
    run = on_the_way(tmp_path / "run", (0.5, 0.9))
    first = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    (run / "metrics.jsonl").write_text(first)
    assert "0 of 1" in seeds_of(tmp_path) and "none has ended" in seeds_of(tmp_path)


def test_a_running_run_is_asked_for_the_target_it_was_given(tmp_path):
    run = on_the_way(tmp_path / "run", (0.5,), None, status="running", target_accuracy=0.8)
    lock = lock_run(run)
    assert "not yet" in seeds_of(run, "Time to accuracy")
    os.close(lock)


def test_the_evaluation_at_the_target_is_drawn(tmp_path):
    scores = [0.5] * 1000
    scores[500] = 0.9
    on_the_way(tmp_path / "run", scores)
    [chart] = charts(sections_of(tmp_path)["target"])
    assert (5010.0, 90.0) in [(point.x * 3600, point.y) for point in chart.series[0].points]
    assert len(chart.series[0].points) <= 121


def test_the_command_line_says_prices_and_target(tmp_path, run_cli, refused):
    report = functools.partial(run_cli, "runs", module="jaxbench.report")
    on_the_way(tmp_path / "runs" / "a", (0.5, 0.9))
    done = report("--usd_per_hour=3.6", "--target_accuracy=0.9", "--out=r.md")
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "r.md").read_text()
    assert "## Cost" in told and "0.02000 (at 3.600 USD/h)" in told
    own = tmp_path / "own.csv"
    own.write_text("offer,hardware,devices,usd_per_hour,date,source\nx,NVIDIA H200,1,7.2,2026,me\n")
    assert report("--prices=own.csv", "--out=p.md").returncode == 0
    assert "x; 2026, me" in (tmp_path / "p.md").read_text()
    for wrong, words in (("--target_accuracy=94", "a fraction"), ("--usd_per_kwh=0", "than 0")):
        refused("runs", wrong, "--out=w.html", told=words, module="jaxbench.report")
