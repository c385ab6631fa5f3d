"""What a report says of money and of the way to an accuracy."""

import json
import os
import random

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.errors import BadInput
from jaxbench.records.run_lock import lock_run
from jaxbench.reports.blocks import DotChart
from jaxbench.reports.collect import collect
from jaxbench.reports.context import ReportContext
from jaxbench.reports.markdown import render_markdown
from jaxbench.reports.page import render_html
from jaxbench.reports.prices import Prices
from jaxbench.reports.sections import make_sections
from tests.in_process import run_command
from tests.reports.test_report import (
    charts,
    epochs,
    leaves,
    replaced,
    run_report,  # noqa: F401
    tables,
    texts,
    throughput,
    trained,
    write_run,
)

PRICE = {
    "offer": "stated",
    "hardware": "",
    "devices": None,
    "usd_per_hour": 3.6,
    "date": "2026-03-04",
    "source": "--usd_per_hour",
}


def sections_of(folder, prices=None, target=None):
    made = make_sections(ReportContext(collect([str(folder)]), prices or Prices(), target))
    return {section.name: section for section in made}


def on_the_way(folder, scores, target=0.8, status="done", **fields):
    """A run that was to stop at the target, ten seconds and 100 steps an epoch."""
    records = [
        record | {"eval_top1": score, "elapsed_s": 10.0 * number, "step": 100 * number}
        for number, (score, record) in enumerate(
            zip(scores, epochs([5000.0] * len(scores)), strict=True), 1
        )
    ]
    summary = {"target_accuracy": {"value": target, "energy_j": 7200.0}} if target else {}
    return write_run(folder, records, status=status, summary=summary, **fields)


def test_without_prices_and_targets_there_are_no_such_sections(tmp_path):
    trained(tmp_path / "run")
    assert not {"cost", "target"} & set(sections_of(tmp_path))


def test_rates_and_runs_are_priced_as_their_records_say(tmp_path):
    trained(tmp_path / "run", 5000.0, price=PRICE, summary={"telemetry": {"energy_j": 3.6e6}})
    throughput(tmp_path / "step", 2000.0, price=PRICE | {"usd_per_hour": 1.8})
    prices = Prices(usd_per_kwh=0.25)
    section = sections_of(tmp_path, prices)["cost"]
    table, electricity = tables(section).values()
    run, step = (dict(zip(range(99), texts(row), strict=False)) for row in table.rows)
    at = {name: place for place, name in enumerate(table.columns)}
    assert run[at["images/s per USD/h"]] == "1,389" and run[at["whole run [USD]"]] == "0.1000"
    assert run[at["USD per million images"]] == "0.2000"
    assert texts(electricity.rows[0])[5:7] == ["1.000", "0.2500"] and len(electricity.rows) == 1
    # The interval is the rate's: 1,960 to 2,040 images/s, dearer the slower.
    place = table.columns.index("95 % interval")
    assert step[place] == "1,089 to 1,133" and step[place + 3] == "0.2451 to 0.2551"
    assert step[at["whole run [s]"]] == "–"
    assert "2026-03-04, --usd_per_hour" in step[len(table.columns) - 1]


def test_tokens_are_priced_where_images_are_sequences(tmp_path):
    def column(name):
        table, *_ = tables(sections_of(tmp_path)["cost"]).values()
        return [dict(zip(table.columns, texts(row), strict=True)).get(name) for row in table.rows]

    trained(tmp_path / "images", 5000.0, price=PRICE, config={"data": {"sequence_length": 0}})
    assert column("USD per billion tokens") == [None]
    trained(tmp_path / "tokens", 5000.0, price=PRICE, config={"data": {"sequence_length": 50}})
    assert column("USD per million images") == ["0.2000", "0.2000"]
    assert column("USD per billion tokens") == ["–", "4.000"]


def test_published_rates_stand_beside_the_same_network_alone(tmp_path):
    network = {"model": "ResNet", "parameters": 25_557_032, "experiment": "resnet50_synthetic"}
    throughput(tmp_path / "own", 2500.0, price=PRICE, **network)
    section = sections_of(tmp_path)["cost"]
    [chart] = charts(section, DotChart)
    assert [dot.published for dot in chart.dots].count(False) == 1
    found = {dot.label: dot.value for dot in chart.dots if dot.published}
    tpu = (
        "4x TPU v2 (Cloud TPU v2-8), TensorFlow 1.7, bf16, Google Cloud TPU v2-8, on demand (2018)"
    )
    assert round(found[tpu], 1) == 475.5
    # Only with the offers of the machine that a rate names: MXNet's names none, and nobody
    # measured Cirrascale's.
    assert sorted(round(value) for value in found.values()) == [256, 372, 476]
    assert not any("MXNet" in label or "Cirrascale" in label for label in found)
    assert "estimated from" in chart.note
    table = tables(section)["Published rates at the prices of their day"]
    assert {texts(row)[0] for row in table.rows} == {"published"}
    assert all(texts(row)[-1].startswith("2018 [") for row in table.rows)
    other = throughput(tmp_path / "other" / "own", 2500.0, price=PRICE)
    assert len(tables(sections_of(other.parent)["cost"])) == 1


def test_other_images_stand_beside_no_published_price(tmp_path):
    network = {"model": "ResNet", "parameters": 25_557_032, "experiment": "resnet50_synthetic"}
    for name, side in (("small", 32), ("whole", 224)):
        config = {"data": {"image_shape": [side, side, 3]}}
        throughput(tmp_path / name / "a", 2500.0, price=PRICE, config=config, **network)
        priced = PRICE | {"usd_per_hour": 1.0}
        throughput(tmp_path / name / "b", 2500.0, price=priced, config=config, **network)
    # Together they are two charts all the same.
    both = charts(sections_of(tmp_path)["cost"], DotChart)
    assert [[dot.published for dot in chart.dots].count(True) for chart in both] == [0, 3]
    assert [chart.note.rpartition("; ")[2] for chart in both] == ["R1, R2", "R3, R4"]


def test_electricity_needs_no_price(tmp_path):
    energy = {"telemetry": {"energy_j": 7.2e6, "energy_covers": "GPU boards: gpu0"}}
    target = {
        "target_accuracy": {"value": 0.4, "score": "top1", "reached": True, "energy_j": 3.6e6}
    }
    trained(tmp_path / "a", summary=energy | target)
    trained(tmp_path / "b")
    assert "cost" not in sections_of(tmp_path)
    section = sections_of(tmp_path, Prices(usd_per_kwh=0.25))["cost"]
    [table] = tables(section).values()
    [row] = table.rows
    own = dict(zip(table.columns, texts(row), strict=True))
    assert (own["energy [kWh]"], own["electricity [USD]"]) == ("2.000", "0.5000")
    assert (own["to the target [kWh]"], own["to the target [USD]"]) == ("1.000", "0.2500")
    assert "evaluations" in table.note and own["energy covers"] == "GPU boards: gpu0"


def test_a_price_of_other_hardware_is_marked(tmp_path):
    cpu = {"device_kind": "cpu", "num_devices": 4, "cpu": "Xeon"}
    trained(tmp_path / "a", environment=cpu)
    trained(tmp_path / "b", environment={"device_kind": "TPU v2", "num_devices": 8})
    a, b = collect([str(tmp_path)]).runs
    offer = Price("v2-8", "4x TPU v2", 4, 6.7, "2018", "web")
    for run, marked in ((a, True), (b, False)):
        [table] = tables(sections_of(run.path, Prices(offer))["cost"]).values()
        cell = table.rows[0][-1]
        assert (cell.mark == "bad") == marked
        assert ("PRICE OF OTHER HARDWARE: 4x TPU v2" in cell.text) == marked
    # More than the run used: the rest was paid for, and the run may have had a smaller machine.
    pair = trained(tmp_path / "p", environment={"device_kind": "TPU v2", "num_devices": 4})
    for listed in (Prices(offer), Prices(listed=[offer])):
        section = sections_of(pair, listed)["cost"]
        [cell] = [row[-1] for row in tables(section)["What rates and runs cost"].rows]
        assert cell.mark == "bad" and "PRICE OF 4 CHIPS, THE RUN USED 2" in cell.text
    # A v2-8 is eight JAX devices, two a chip.
    for devices, cores in ((4, 8), (3, 8), (4, 9)):
        trained(
            tmp_path / f"{devices}of{cores}",
            environment={"device_kind": "TPU v2", "num_devices": cores},
        )
        [run] = collect([str(tmp_path / f"{devices}of{cores}")]).runs
        listed = offer._replace(devices=devices)
        assert Prices(listed=[listed]).of(run) == ([listed] if (devices, cores) == (4, 8) else [])
    # Two processors are two kinds of hardware.
    trained(tmp_path / "c", environment=cpu | {"cpu": "EPYC"})
    other = collect([str(tmp_path / "c")]).runs
    with pytest.raises(BadInput, match="on EPYC and on Xeon"):
        Prices(offer).check([a, *other])
    Prices(offer).check([a])
    # So are one device and several; CPU devices are of one host, however many.
    more = trained(tmp_path / "d", environment={"device_kind": "TPU v2", "num_devices": 4})
    with pytest.raises(BadInput, match="on 4 × TPU v2 and on 8 × TPU v2"):
        Prices(offer).check([b, *collect([str(more)]).runs])
    wide = trained(tmp_path / "e", environment=cpu | {"num_devices": 8})
    Prices(offer).check([a, *collect([str(wide)]).runs])


def test_a_price_that_changed_leaves_the_cost_unknown(tmp_path):
    resumes = [{"elapsed_s": 20.0, "step": 500, "price": PRICE | {"usd_per_hour": 10.0}}]
    run = on_the_way(tmp_path / "run", (0.5, 0.9), price=PRICE, resumes=resumes)
    trained(tmp_path / "other", price=PRICE)
    sections = sections_of(tmp_path)
    assert "R2: usd_per_hour 3.6, then 10.0: what it cost is unknown." in sections["cost"].blocks
    [table] = [t for t in tables(sections["cost"]).values() if "USD" in "".join(t.columns)]
    assert {row[0].text for row in table.rows} == {"R1"}
    [row] = tables(sections["target"])["Time to accuracy"].rows
    assert "3.6" not in "".join(texts(row))
    found = run_command(tmp_path, "run", "--target_accuracy=0.9", "--json", module="jaxbench.cost")
    [cost] = json.loads(found.stdout)["costs"].values()
    assert (cost["price"], cost["wall_usd"], cost["target_usd"]) == (None, None, None)
    assert cost["price_note"].endswith("what it cost is unknown") and cost["paid_s"] == 100
    # Who states a price has said what it cost.
    [run] = collect([str(run)]).runs
    stated = Price("stated", "", None, 2.0, "2026", "me")
    assert Prices(stated).of(run) == [stated] and Prices().of(run) == []


def test_lost_work_is_paid_for_in_every_section(tmp_path):
    resumes = [{"elapsed_s": 5.0, "lost_s": 1000.0, "step": 10}]
    folder = tmp_path / "offers"
    on_the_way(folder / "h200-1", (0.5, 0.9), price=PRICE, resumes=resumes)
    offer = {"name": "H200:1", "folder": "h200-1", "target": "gpu:h200:1"}
    (folder / "offers.json").write_text(json.dumps({"label": "cnn10", "offers": [offer]}))
    sections = sections_of(folder)

    def shown(section, column):
        for table in tables(sections[section]).values():
            if column in table.columns:
                return [texts(row)[table.columns.index(column)] for row in table.rows]

    # 20 s and 1,000 s that were lost, at 3.6 USD/h.
    assert shown("offers", "USD to it") == shown("target", "USD") == ["1.020"]
    assert shown("overview", "USD to top-1 80.00 %")[0].startswith("1.020 (only 1 seed")


def test_offers_of_one_price_are_told_apart(tmp_path):
    listed = [Price(name, "NVIDIA H200", 1, 3.6, "2026", "web") for name in ("spot", "flex")]
    for seed in (0, 1):
        on_the_way(tmp_path / f"s{seed}", (0.5, 0.9), config={"seed": seed})
    found = sections_of(tmp_path, Prices(listed=listed))
    [row] = tables(found["target"])["Time to the target, seeds together"].rows
    assert "0.02000 (at 3.600 USD/h, spot); 0.02000 (at 3.600 USD/h, flex)" in texts(row)
    trained(tmp_path / "rate")
    [chart] = charts(sections_of(tmp_path / "rate", Prices(listed=listed))["cost"], DotChart)
    assert {dot.label.rpartition(", ")[2] for dot in chart.dots} == {"spot", "flex"}


def test_offers_hold_for_the_very_hardware(tmp_path):
    trained(tmp_path / "a")
    trained(tmp_path / "b", environment={"device_kind": "TPU v4", "num_devices": 4})
    listed = [
        Price("h200", "NVIDIA H200", 1, 3.5, "2026", "web"),
        Price("h200 spot", "nvidia h200", 8, 9.0, "2026", "web"),
        Price("one TPU", "TPU v4", 1, 1.0, "2026", "web"),
        Price("TPU", "TPU", 4, 1.0, "2026", "web"),
    ]
    a, b = collect([str(tmp_path)]).runs
    prices = Prices(listed=listed)
    assert [price.offer for price in prices.of(a)] == ["h200", "h200 spot"]
    assert prices.of(b) == []
    [table] = tables(sections_of(tmp_path, prices)["cost"]).values()
    assert [texts(row)[0] for row in table.rows] == ["R1", "R1"]
    stated = Prices(Price("stated", "", None, 2.0, "2026", "me"))
    with pytest.raises(BadInput, match="the runs are on 1 × NVIDIA H200 and on 4 × TPU v4"):
        stated.check([a, b])
    stated.check([a])
    with pytest.raises(BadInput, match="no offer whose hardware is one of NVIDIA H200"):
        Prices(listed=listed[2:]).check([a])


def test_seeds_together_on_their_way_to_the_target(tmp_path):
    flops = {"training_flops_per_image": 1e9}
    for seed, scores in enumerate([(0.5, 0.8), (0.7, 0.79, 0.81), (0.9,), (0.85,), (0.8,)]):
        on_the_way(tmp_path / f"s{seed}", scores, config={"seed": seed}, price=PRICE, **flops)
    # Broken off, it says nothing; not to stop at the target, it has no way of its own.
    on_the_way(tmp_path / "s5", (0.3,), status="preempted", config={"seed": 5}, price=PRICE)
    trained(tmp_path / "s6", config={"seed": 6}, price=PRICE)
    section = sections_of(tmp_path)["target"]
    found = tables(section)
    [row] = found["Time to the target, seeds together"].rows
    own = dict(zip(found["Time to the target, seeds together"].columns, texts(row), strict=True))
    # 1.6 epochs of 100 steps of 128 images in the mean, the median 1.
    assert own["training, mean [TFLOP]"] == "20.48"
    assert (own["n seeds that ended"], own["reached"], own["caveat"]) == ("5 of 6", "5", "")
    assert (own["median [s]"], own["mean [s]"]) == ("10.00", "16.00")
    assert own["least to most [s]"] == "10.00 to 30.00"
    assert own["images, median"] == "12,800" and own["energy, median [J]"] == "7,200"
    assert own["USD, median"] == "0.01000 (at 3.600 USD/h)"
    rows = [texts(row) for row in found["Time to accuracy"].rows]
    assert [row[8] for row in rows] == ["yes"] * 5 + ["broken off"]
    place = found["Time to accuracy"].columns.index("training [TFLOP]")
    assert [row[place] for row in rows] == ["25.60", "38.40", "12.80", "12.80", "12.80", "–"]
    over_time, over_cost = charts(section)
    assert [point.x for point in over_time.series[1].points] == [10.0, 20.0, 30.0]
    assert [point.x for point in over_cost.series[1].points] == pytest.approx([0.01, 0.02, 0.03])
    assert over_time.series[-1].reference and over_time.series[-1].points[0].y == 80


def test_what_never_gets_there_takes_without_end(tmp_path):
    on_the_way(tmp_path / "a", (0.5, 0.9), config={"seed": 0}, price=PRICE)
    on_the_way(tmp_path / "b", (0.5, 0.6), config={"seed": 1}, price=PRICE)
    found = tables(sections_of(tmp_path)["target"])
    [row] = found["Time to the target, seeds together"].rows
    own = dict(zip(found["Time to the target, seeds together"].columns, texts(row), strict=True))
    assert (own["reached"], own["median [s]"], own["mean [s]"]) == ("1", "∞", "∞")
    assert own["USD, median"].startswith("∞") and "fewer than 5 seeds" in own["caveat"]
    # Another target may be asked for; energy is known up to a run's own alone.
    found = tables(sections_of(tmp_path, target=0.55)["target"])
    [row] = found["Time to the target, seeds together"].rows
    own = dict(zip(found["Time to the target, seeds together"].columns, texts(row), strict=True))
    assert (own["reached"], own["median [s]"], own["energy, median [J]"]) == ("2", "20.00", "–")
    # Runs that were to be of different length are not together.
    on_the_way(tmp_path / "c", (0.9,), config={"seed": 2, "epochs": 9}, price=PRICE)
    found = tables(sections_of(tmp_path)["target"])
    assert len(found["Time to the target, seeds together"].rows) == 2


def seeds_of(folder):
    table = tables(sections_of(folder)["target"])["Time to the target, seeds together"]
    return [dict(zip(table.columns, texts(row), strict=False)) for row in table.rows]


def test_every_seed_counts_once(tmp_path):
    for seed in range(5):
        on_the_way(tmp_path / f"s{seed}", (0.5, 0.9), config={"seed": seed})
    on_the_way(tmp_path / "t", (0.9,), config={"seed": 0})
    # Failed before its first evaluation: it never gets there. Of one broken off nobody knows.
    folder = on_the_way(tmp_path / "u", (), status="failed", config={"seed": 5})
    on_the_way(tmp_path / "v", (), status="interrupted", config={"seed": 6})
    assert "target" not in sections_of(folder)
    [own] = seeds_of(tmp_path)
    assert (own["n seeds that ended"], own["reached"]) == ("6 of 7", "5")
    assert (own["median [s]"], own["mean [s]"]) == ("20.00", "∞")
    assert own["caveat"] == "R6: a seed run again, not counted"
    rows = tables(sections_of(tmp_path)["target"])["Time to accuracy"].rows
    assert [texts(row)[8] for row in rows[-2:]] == ["never", "broken off"]


def test_seeds_of_a_sweep_count_as_its_own_table_counts_them(tmp_path):
    sweep = tmp_path / "sweep"
    trials = []
    for seed, status in enumerate(("done", "diverged", "preempted", None)):
        run = f"trials/seed={seed}/run1"
        if status:
            scores = (0.5, 0.9) if status == "done" else (0.5,)
            own = {"config": {"seed": seed}, "target_accuracy": 0.8}
            on_the_way(sweep / run, scores, status=status, **own)
        # The sweep ended the one that was too slow, and one left no run.
        ended = {"diverged": "failed", "preempted": "timeout", None: "oom"}.get(status, status)
        trial = {"key": str(seed), "status": ended, "run": run if status else None}
        trial |= {"place": {"seed": str(seed)}, "experiment": "cnn10", "figures": {}, "wall_s": 1.0}
        trials.append(trial)
    (sweep / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trials))
    [own] = seeds_of(tmp_path)
    assert (own["n seeds that ended"], own["reached"]) == ("4 of 4", "1")
    assert (own["median [s]"], own["runs"]) == ("∞", "R1, R2, R3, –")
    rows = tables(sections_of(tmp_path)["target"])["Time to accuracy"].rows
    assert [texts(row)[1] for row in rows] == ["done", "diverged", "timeout", "OOM"]


def test_compiling_is_told_apart_from_epochs(tmp_path):
    for seed in range(5):
        run = on_the_way(tmp_path / f"s{seed}", (0.5, 0.9), config={"seed": seed})
        document = json.loads((run / "run.json").read_text())
        document["summary"]["compile_cache"] = "hit" if seed else "miss"
        (run / "run.json").write_text(json.dumps(document))
    [own] = seeds_of(tmp_path)
    # Two epochs of 50,000 images at 5,000 a second.
    assert own["epochs alone, median [s]"] == "20.00"
    assert own["caveat"] == "compilation cache differs (1 miss, 4 hit): compare the epochs alone"


def test_settings_of_two_lengths_have_two_names(tmp_path):
    for length in (5, 9):
        on_the_way(tmp_path / f"e{length}", (0.9,), config={"epochs": length})
    assert len({own["setting"] for own in seeds_of(tmp_path)}) == 2


def test_a_damaged_run_takes_not_without_end(tmp_path):
    run = on_the_way(tmp_path / "run", (0.5, 0.9))
    first = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    (run / "metrics.jsonl").write_text(first)
    [own] = seeds_of(tmp_path)
    assert (own["n seeds that ended"], own["median [s]"]) == ("0 of 1", "none has ended")
    rows = tables(sections_of(tmp_path)["target"])["Time to accuracy"].rows
    assert texts(rows[0])[8] == "not known" and "∞" not in "".join(texts(rows[0]))


def test_the_evaluation_at_the_target_is_drawn(tmp_path):
    scores = [0.5] * 1000
    scores[500] = 0.9
    on_the_way(tmp_path / "run", scores)
    [chart] = charts(sections_of(tmp_path)["target"])
    assert (5010.0, 90.0) in [(point.x * 3600, point.y) for point in chart.series[0].points]
    assert len(chart.series[0].points) <= 121


def test_the_articles_way_to_accuracy_stands_beside(tmp_path):
    network = {"model": "ResNet", "parameters": 25_557_032, "experiment": "resnet50"}
    on_the_way(tmp_path / "run", (0.76,), target=0.757, **network)
    table = tables(sections_of(tmp_path)["target"])["Published: resnet50 on ImageNet"]
    usd = [texts(row)[6] for row in table.rows]
    assert usd == ["54.58", "73.34", "128.5", "88.45"]
    assert [texts(row)[7] for row in table.rows] == ["55.00", "73.00", "–", "–"]


def test_a_running_run_is_asked_for_the_target_it_was_given(tmp_path):
    run = on_the_way(tmp_path / "run", (0.5,), None, status="running", target_accuracy=0.8)
    lock = lock_run(run)
    [row] = tables(sections_of(run)["target"])["Time to accuracy"].rows
    os.close(lock)
    assert "not yet" in texts(row)


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
def test_no_wrong_value_is_a_crash(tmp_path, file):
    folder = on_the_way(tmp_path / "run", (0.5, 0.9), price=PRICE)
    wrong = [None, "x", "", -1, 0, 1e308, 10**400, float("nan"), True, [], {}, [[1]], {"a": {}}]
    draw, prices = random.Random(file), Prices(usd_per_kwh=0.2)
    parsed = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    paths = [path for path in leaves(parsed) if len(path) > 1]
    assert len(paths) > 25
    for path in paths:
        changed = replaced(parsed, path, draw.choice(wrong))
        (folder / file).write_text("\n".join(map(json.dumps, changed)) + "\n")
        for target in (None, 0.6):
            made = list(sections_of(folder, prices, target).values())
            render_html(made, "t")
            render_markdown(made, "t")


def test_the_command_line_says_prices_and_target(tmp_path, run_report):  # noqa: F811
    on_the_way(tmp_path / "runs" / "a", (0.5, 0.9))
    args = ("runs", "--usd_per_hour=3.6", "--target_accuracy=0.9", "--out=r.md")
    done = run_report(*args)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "r.md").read_text()
    assert "## Cost" in told and "0.02000 (at 3.600 USD/h)" in told
    own = tmp_path / "own.csv"
    own.write_text("offer,hardware,devices,usd_per_hour,date,source\nx,NVIDIA H200,1,7.2,2026,me\n")
    done = run_report("runs", "--prices=own.csv", "--out=p.md")
    assert done.returncode == 0 and "x; 2026, me" in (tmp_path / "p.md").read_text()
    for wrong, words in (
        ("--target_accuracy=94", "must be a fraction"),
        ("--usd_per_kwh=0", "must be more than 0"),
        ("--usd_per_hour=-1", "must be more than 0"),
        ("--prices=none.csv", "No such file"),
        ("--offer=none", "no such offer"),
    ):
        done = run_report("runs", wrong, "--out=w.html")
        assert done.returncode == 2 and words in done.stderr
        assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "w.html").exists()
