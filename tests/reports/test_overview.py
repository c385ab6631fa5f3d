"""The report's overview: the best of each machine, compared where the work was equal."""

import math

import pytest
from jaxbench.reports.settings import setting_key

from jaxbench.analysis.pricing import Price
from jaxbench.reports.collect import collect
from jaxbench.reports.context import ReportContext
from jaxbench.reports.machines import compare_machines
from jaxbench.reports.page import render_html
from jaxbench.reports.prices import Prices
from jaxbench.reports.sections import make_sections
from jaxbench.reports.sections.overview import overview
from tests.reports.many_runs import write_many
from tests.reports.test_report import (
    Page,
    context_of,
    epochs,
    sections_of,
    tables,
    texts,
    throughput,
    trained,
    write_run,
)

H200 = {"device_kind": "NVIDIA H200", "num_devices": 1}
PAIR = H200 | {"num_devices": 2}
TPU = {"device_kind": "TPU v5e", "num_devices": 4}


def rows_of(*folders, table="Best of each machine"):
    """{machine: {column: cell}} of an overview with one comparison, and its heading."""
    found = tables(sections_of(*folders)["overview"])[table]
    [heading] = found.groups.values()
    return {
        row[0].text: dict(zip(found.columns, texts(row), strict=True)) for row in found.rows
    }, heading


def test_a_machine_has_its_best_figures_with_their_runs(tmp_path):
    more = {"environment": H200, "summary": {"telemetry": {"joules_per_image": 0.02}}}
    trained(tmp_path / "a", 5000.0, top1=0.94, **more)
    trained(tmp_path / "b", 6000.0, 0.92, environment=H200, config={"label_smoothing": 0.1})
    # Neither of these is a figure.
    trained(tmp_path / "c", 9000.0, top1=0.99, environment=H200, status="killed")
    write_run(tmp_path / "d", status="oom", environment=TPU)
    found = tables(sections_of(tmp_path)["overview"])["Best of each machine"]
    assert found.columns == [
        *("machine", "images/s", "best top-1 [%]", "energy [J/image]", "fastest with", "runs"),
    ]
    [row] = found.rows
    assert texts(row) == [
        "1 × NVIDIA H200",
        "6,000 (only n = 3)",
        "94.00 (only 1 seed)",
        "0.02000 (only 1 run)",
        "fp32, batch 128, R2",
        "2",
    ]
    # Each with a link to the run that it is of.
    assert [cell.run for cell in row] == [None, "R2", "R1", "R1", None, None]
    assert list(found.groups.values()) == ["cnn10 · training · resident feed"]


def test_the_step_alone_and_the_feeds_are_apart(tmp_path):
    throughput(tmp_path / "a", 9000.0)
    trained(tmp_path / "b", 5000.0)
    trained(tmp_path / "c", 4000.0, data={"feed": "stream"})
    found = tables(sections_of(tmp_path)["overview"])["Best of each machine"]
    rates = dict(zip(found.groups.values(), (texts(row)[1] for row in found.rows), strict=True))
    # Whole trainings come first.
    assert next(iter(rates)) == "cnn10 · training · resident feed"
    assert rates == {
        "cnn10 · training · resident feed": "5,000 (only n = 3)",
        "cnn10 · training · stream feed": "4,000 (only n = 3)",
        "cnn10 · training step alone · synthetic feed": "9,000 (8,820 to 9,180; n = 11)",
    }


def test_speedup_is_over_the_slowest_machine_at_equal_work(tmp_path):
    throughput(tmp_path / "slow", 1000.0, environment=H200)
    throughput(tmp_path / "pair", 1900.0, environment=PAIR)
    # Its fastest run is of another batch; the speed-up is not.
    throughput(tmp_path / "tpu", 3000.0, environment=TPU)
    throughput(tmp_path / "tpu-large", 9000.0, environment=TPU, config={"batch_size": 1024})
    rows, heading = rows_of(tmp_path)
    assert list(rows) == ["4 × TPU v5e", "2 × NVIDIA H200", "1 × NVIDIA H200"]
    assert [row["images/s"].split()[0] for row in rows.values()] == ["9,000", "1,900", "1,000"]
    # Single runs do not say how the runs of a machine differ.
    assert [row["speed-up"] for row in rows.values()] == ["3.00", "1.90", "1 (slowest)"]
    assert rows["4 × TPU v5e"]["fastest with"] == "fp32, batch 1,024, R4"
    assert heading.endswith("speed-up at fp32, batch 128")


def test_repeats_give_a_speedup_its_interval(tmp_path):
    for seed, factor in enumerate((1.0, 1.01, 0.99)):
        # Three epochs from the 2nd on are too few for an interval of their own.
        own = {"config": {"seed": seed}}
        trained(tmp_path / f"a{seed}", 1000.0 * factor, environment=H200, **own)
        trained(tmp_path / f"b{seed}", 2000.0 * factor, environment=PAIR, **own)
    [found] = compare_machines(context_of(tmp_path))
    fast, slow = found.machines
    assert (fast.name, slow.speedup.value) == ("2 × NVIDIA H200", 1.0)
    assert fast.speedup.value == pytest.approx(2.0)
    assert 1.9 < fast.speedup.low < 1.99 and 2.01 < fast.speedup.high < 2.1


def test_no_machine_is_slower_than_the_slowest(tmp_path):
    for seed, rate in enumerate((1000.0, 1000.0, 9000.0)):
        trained(tmp_path / f"a{seed}", rate, environment=H200, config={"seed": seed})
    trained(tmp_path / "b", 1900.0, environment=PAIR, config={"seed": 0})
    rows, _ = rows_of(tmp_path)
    # By their geometric means, 2,080 and 1,900, as the ratio is; by medians it would be 0.91. Three
    # epochs from the 2nd on are too few for an interval, and so is one run of a side.
    assert rows["1 × NVIDIA H200"]["speed-up"] == "1.09"
    assert rows["2 × NVIDIA H200"]["speed-up"] == "1 (slowest)"


def test_ends_that_cannot_be_are_no_interval(tmp_path):
    for seed in (0, 1):
        for name, place in (("a", H200), ("b", PAIR)):
            folder = tmp_path / f"{name}{seed}"
            throughput(folder, 1000.0 + seed, environment=place, config={"seed": seed})
            lines = (folder / "metrics.jsonl").read_text().replace('_low": ', '_low": -')
            (folder / "metrics.jsonl").write_text(lines)
    [found] = compare_machines(context_of(tmp_path))
    assert found.machines[0].speedup.value == pytest.approx(1.0)


def test_the_fastest_is_never_one_lucky_run(tmp_path):
    write_run(tmp_path / "long", epochs([900.0, *(1000.0 + n for n in range(8))]))
    # Without an interval of its own.
    trained(tmp_path / "lucky", 9000.0, config={"batch_size": 512})
    [found] = compare_machines(context_of(tmp_path))
    assert (found.machines[0].rate.run.id, found.machines[0].rate.counted[:5]) == ("R1", "n = 8")
    [row] = tables(sections_of(tmp_path)["overview"])["Best of each machine"].rows
    assert row[1].text.startswith("1,004 (1,00") and row[1].text.endswith("; n = 8)")
    assert row[1].mark == ""
    # Three runs have an interval of their own; the best of them is not the setting's.
    for seed, rate in enumerate((9500.0, 8500.0), 1):
        trained(tmp_path / f"s{seed}", rate, config={"batch_size": 512, "seed": seed})
    [found] = compare_machines(context_of(tmp_path))
    rate = found.machines[0].rate
    assert rate.counted == "3 runs" and 8990 < rate.of.value < 9000
    # Of two the slower stands for both.
    context = context_of(tmp_path / "lucky", tmp_path / "s1")
    assert compare_machines(context)[0].machines[0].rate.of.value == 9000.0


def test_seeds_that_failed_count_in_the_overview(tmp_path):
    def run(name, seed, top1, status="done", **config):
        summary = {"target_accuracy": {"score": "top1", "value": 0.5}}
        config |= {"seed": seed}
        trained(
            tmp_path / name,
            top1=top1,
            summary=summary,
            config=config,
            status=status,
        )

    for seed in range(5):
        run(f"a{seed}", seed, 0.9 if seed < 2 else 0.2, "done" if seed < 2 else "diverged")
    run("lucky", 0, 0.95, batch_size=512)
    [found] = compare_machines(context_of(tmp_path))
    [machine] = found.machines
    # Five seeds are a result, though one seed of another setting got there.
    assert (machine.time_s.of.value, machine.time_s.counted) == (math.inf, "5 seeds")
    assert machine.runs == 3
    [machine] = compare_machines(context_of(*(tmp_path / f"a{n}" for n in range(5))))[0].machines
    assert machine.score.counted == "2 seeds, 3 failed"


def test_simulated_devices_are_named_where_they_are_counted(tmp_path):
    cpu = {"device_kind": "cpu", "num_devices": 4, "cpu": "Xeon", "num_processes": 1}
    throughput(tmp_path / "a", 1000.0, environment=cpu)
    throughput(tmp_path / "b", 1000.0, environment=cpu | {"num_processes": 4})
    rows, _ = rows_of(tmp_path)
    assert sorted(rows) == ["4 × cpu (Xeon)", "4 × cpu (simulated) (Xeon)"]
    scaled = [
        {"kind": "scaling", "scaling": "weak", "num_devices": n, "images_per_s": 9.0}
        for n in (1, 4)
    ]
    predicted = {"predictions": [{"scaling": "weak", "num_devices": 1024}]}
    write_run(tmp_path / "s", scaled, mode="scaling", environment=cpu, summary=predicted)
    section = sections_of(tmp_path / "s")["scaling"]
    assert "PREDICTED (simulated devices)" in texts(
        tables(section)["Predicted, not measured"].rows[0]
    )
    assert "(simulated devices)" in section.blocks[0].title


def test_a_speedup_of_single_rates_without_intervals_has_none(tmp_path):
    trained(tmp_path / "a", 1000.0, environment=H200)
    trained(tmp_path / "b", 2000.0, environment=PAIR)
    rows, _ = rows_of(tmp_path)
    assert rows["2 × NVIDIA H200"]["speed-up"] == "2.00"


@pytest.mark.parametrize(
    "config",
    [
        {"batch_size": 256},
        {"precision": "bf16"},
        {"data": {"source": "tfds", "crop_padding": 8}},
        {"model": {"width": 2}},
    ],
    ids=str,
)
def test_unequal_work_is_not_compared(tmp_path, config):
    throughput(tmp_path / "a", 1000.0, environment=H200)
    throughput(tmp_path / "b", 3000.0, environment=TPU, config=config)
    rows, heading = rows_of(tmp_path)
    assert len(rows) == 2 and all("speed-up" not in row for row in rows.values())
    assert "no speed-up: no two machines did equal work" in heading


def test_other_images_or_networks_are_blocks_of_their_own(tmp_path):
    throughput(tmp_path / "a", 1000.0, environment=H200)
    images = {"config": {"data": {"image_shape": [224, 224, 3]}}}
    throughput(tmp_path / "b", 10.0, environment=TPU, **images)
    throughput(tmp_path / "c", 500.0, environment=PAIR, parameters=9_000_000)
    found = compare_machines(context_of(tmp_path))
    assert [len(own.machines) for own in found] == [1, 1, 1]
    table = tables(sections_of(tmp_path)["overview"])["Best of each machine"]
    assert len(set(table.groups.values())) > 1


def test_strong_scaling_is_equal_work(tmp_path):
    records = [
        {
            "kind": "scaling",
            "scaling": kind,
            "num_devices": devices,
            "batch_size": 128 * devices if kind == "weak" else 128,
            "images_per_s": 1000.0 * devices**0.9,
        }
        for kind in ("strong", "weak")
        for devices in (1, 2, 4)
    ]
    write_run(tmp_path / "run", records, mode="scaling", environment={"num_devices": 4})
    found = {own.first.stage: own for own in compare_machines(context_of(tmp_path))}
    strong, weak = found["strong scaling"], found["weak scaling"]
    assert [machine.name[0] for machine in strong.machines] == ["4", "2", "1"]
    speedups = [machine.speedup.value for machine in strong.machines]
    assert speedups == [pytest.approx(4**0.9), pytest.approx(2**0.9), 1.0]
    assert weak.at is None and all(machine.speedup is None for machine in weak.machines)


def test_the_score_is_the_median_of_the_seeds_of_the_best_setting(tmp_path):
    for seed, top1 in enumerate((0.90, 0.92, 0.97)):
        trained(tmp_path / f"a{seed}", top1=top1, config={"seed": seed})
    # A seed that was run again says nothing of others.
    trained(tmp_path / "a3", top1=0.99, config={"seed": 0})
    trained(tmp_path / "b", top1=0.91, config={"label_smoothing": 0.1})
    [found] = compare_machines(context_of(tmp_path))
    [machine] = found.machines
    assert machine.score.of == (0.92, None, None, 3)


def test_time_and_cost_to_the_target(tmp_path):
    def run(name, top1, environment):
        summary = {"target_accuracy": {"score": "top1", "value": 0.5}}
        trained(tmp_path / name, top1=top1, environment=environment, summary=summary)

    # Epochs end every 15.75 s; the score grows evenly over four of them.
    run("quick", 0.9, H200)
    run("never", 0.4, TPU)
    prices = [
        Price("dear", "NVIDIA H200", 1, 3.6, "2026-03-04", "a list"),
        Price("cheap", "NVIDIA H200", 1, 1.8, "2026-03-04", "a list"),
    ]
    context = ReportContext(collect([str(tmp_path)]), Prices(listed=prices))
    [table] = overview(context).blocks
    rows = {row[0].text: dict(zip(table.columns, texts(row), strict=True)) for row in table.rows}
    time, usd = "time to top-1 50.00 % [h:mm:ss]", "USD to top-1 50.00 %"
    quick, never = (
        [rows[name][column].removesuffix(" (only 1 seed)") for column in (time, usd)]
        for name in ("1 × NVIDIA H200", "4 × TPU v5e")
    )
    assert (quick, never) == (["47.2 s", "0.02363"], ["never", "–"])
    # Another target is asked of all.
    [found] = compare_machines(ReportContext(collect([str(tmp_path)]), target_accuracy=0.2))
    assert sorted(machine.time_s.of.value for machine in found.machines) == [15.75, 31.5]


def test_a_training_without_a_rate_has_its_score(tmp_path):
    """One epoch is warm-up: no rate, though there is a score."""
    write_run(tmp_path / "run", epochs([900.0], 0.8), summary={"eval_top1": 0.8})
    [row] = tables(sections_of(tmp_path)["overview"])["Best of each machine"].rows
    assert texts(row)[:2] == ["1 × NVIDIA H200", "80.00 (only 1 seed)"]
    # Nor does one without any figure make a table.
    write_run(tmp_path / "none" / "run", [])
    assert "overview" not in sections_of(tmp_path / "none")


def test_rows_that_look_alike_say_what_tells_them_apart(tmp_path):
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            optimizer = {"name": "sgd", "learning_rate": rate}
            own = {"optimizer": optimizer, "seed": seed}
            trained(tmp_path / f"{rate}-{seed}", config=own)
    trained(tmp_path / "z", config={"precision": "bf16"})
    found = sections_of(tmp_path)
    shown = tables(found["runs"])["Runs"]
    at = shown.columns.index("setting")
    assert [texts(row)[at] for row in shown.rows] == [
        "seed=0, optimizer.learning_rate=0.1",
        "seed=1, optimizer.learning_rate=0.1",
        "seed=0, optimizer.learning_rate=0.2",
        "seed=1, optimizer.learning_rate=0.2",
        "–",
    ]
    # Where the seed has a column, it is not named again.
    results = tables(found["learning"])["Final results"]
    at = results.columns.index("setting")
    assert [texts(row)[at] for row in results.rows][1] == "optimizer.learning_rate=0.1"
    assert "setting" not in tables(sections_of(tmp_path / "z")["runs"])["Runs"].columns


def test_details_of_many_runs_are_folded(tmp_path):
    sections = make_sections(context_of(write_many(tmp_path, 70, num_epochs=3)))
    folded = [section.name for section in sections if section.folded]
    unfolded = [section.name for section in sections if not section.folded]
    assert unfolded == ["overview", "runs", "rates", "learning"] and "target" in folded
    runs = tables(sections[1])
    listed = [title for title in runs if title.startswith(("cnn10", "quickstart", "resnet18"))]
    # A table an experiment, with how its runs ended.
    assert len(listed) == 3 and listed[0] == "cnn10: 13 done, 1 oom"
    assert all(runs[title].folded for title in (*listed, "Common environment"))
    text = render_html(sections, "t")
    page = Page(text)
    assert text.count("<h2>") == len(sections) and page.ids.count("R70") == 1
    few = make_sections(context_of(tmp_path / "cnn10" / "run000"))
    assert not any(section.folded for section in few)


def test_the_first_table_ends_where_a_screen_does(tmp_path):
    for number in range(40):
        throughput(tmp_path / f"{number:02d}", 1000.0, experiment=f"e{number}")
    found = tables(sections_of(tmp_path)["overview"])
    first, further = found["Best of each machine"], found["Further experiments"]
    assert (len(first.rows), len(further.rows)) == (30, 10)
    assert (first.folded, further.folded) == (False, True)


@pytest.mark.parametrize("config", ["seed", "learning_rate"])
def test_no_chart_has_more_lines_or_dots_than_can_be_read(tmp_path, config):
    for number in range(40):
        trained(tmp_path / f"{number}", config={config: number / 100})
    for section in sections_of(tmp_path).values():
        for chart in section.blocks:
            assert len(getattr(chart, "series", ())) <= 7
            # Published ones besides.
            dots = [dot for dot in getattr(chart, "dots", ()) if not dot.published]
            assert len(dots) <= 16


def test_whole_numbers_of_two_kinds_are_one_setting():
    assert setting_key({"epochs": 3, "flip": True}) == setting_key({"epochs": 3.0, "flip": True})
    assert setting_key({"flip": True}) != setting_key({"flip": 1})
