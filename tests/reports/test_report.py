"""python -m jaxbench.report: all that was measured on one page, nothing mixed, nothing lost.

What the tables hold is in `test_golden.py`.
"""

import base64
import hashlib
import json
import math
import os
import random
import re
import shutil
import statistics

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from jaxbench.analysis.pricing import Price
from jaxbench.cards.card import measured
from jaxbench.records.run_lock import lock_run
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.collect import collect
from jaxbench.reports.plot import draw, numbers
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs import read_run
from jaxbench.reports.runs_table import COLUMNS
from jaxbench.reports.write import render_markdown, write_report
from jaxbench.schema import METRICS
from jaxbench.sweeps.sweep_dir import SweepDir
from jaxbench.tables.spreadsheet import inert_cell, render_csv
from tests.cards import made
from tests.conftest import ROOT, refusal
from tests.recorded import (
    attempts,
    change_json,
    epochs,
    recorded_run,
    throughput,
    trained,
    write_results,
    write_run,
    write_telemetry,
)
from tests.reports.pages import (
    Page,
    charts,
    column_of,
    csv_rows,
    page_of,
    rows_of,
    sections_of,
    shown,
    tables,
    texts,
)
from tests.reports.test_golden import write_golden_runs
from tests.strategies import with_a_wrong_value


def test_a_run_has_one_rate_one_feed_and_its_data(everything):
    """The table of runs has them as the page does."""
    rows = [row for row in csv_rows(everything) if row["run"]]
    table = rows_of(tables(sections_of(everything)["runs"])["Runs"])
    assert {"input", "train/interval", "states/lost", "tp128"} < {row["name"] for row in rows}
    for row, on_page in zip(rows, table, strict=True):
        for name in ("run", "name", "feed", "data", "n"):
            assert on_page[name] == (row[name] or "–"), name
        rate = METRICS["images_per_s"].show(float(row["images_per_s"] or "nan"))
        assert on_page["images/s"] == (rate if row["images_per_s"] else "–")
        is_one_batch = row["feed"] == "synthetic"
        assert is_one_batch == (row["data"] == "one synthetic batch")
    assert {row["feed"] for row in rows} == {"synthetic", "resident", "stream", ""}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The golden runs: one of every kind and state."""
    folder = tmp_path_factory.mktemp("golden")
    os.close(write_golden_runs(folder))
    return folder


def test_the_page_is_well_formed_and_needs_nothing_else(everything):
    page = Page(page_of(everything))
    assert page.loads == ["data:,"]
    style = (ROOT / "jaxbench" / "reports" / "page.css").read_text()
    assert "url(" not in style and "@import" not in style
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_a_run_is_distorted_if_one_of_its_processes_was(tmp_path):
    write_run(tmp_path / "a", 100.0, busy=True, distorters=["A=1 (slow)"])
    write_run(tmp_path / "b", 100.0)
    resumed = {"step": 1, "elapsed_s": 1.0, "lost_s": 0.0, "distorters": ["B=1 (slower)"]}
    change_json(tmp_path / "a" / "run.json", attempts=attempts(resumed))
    distorted = ["distorted by A=1 (slow)", "distorted by B=1 (slower)"]
    assert read_run("R1", "a", tmp_path / "a").doubts == ["the host was busy", *distorted]
    text = " ".join(page_of(tmp_path).split())
    assert "1 of 2 runs had settings for debugging" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"config": {"precision": "bf16"}},
        {"data": {"feed": "stream"}},
        {"model": "Vgg", "experiment": "vgg_cifar10"},
        {"environment": {"num_devices": 4}},
        {"environment": {"device_kind": "TPU v4"}},
        {"environment": {"matmul_precision": "highest"}},
        {"environment": {"versions": {"jax": "0.12.0"}}},
        {"environment": {"distorters": ["JAX_DISABLE_JIT=1 (slow)"]}},
        {"config": {"batch_norm": "sync"}},
    ],
    ids=str,
)
def test_rate_lines_are_of_one_setting(tmp_path, fields):
    for batch in (128, 256):
        throughput(tmp_path / f"a{batch}", 1000.0, config={"batch_size": batch})
        config = {"batch_size": batch} | fields.get("config", {})
        throughput(tmp_path / f"b{batch}", 2000.0, **(fields | {"config": config}))
    rated = [c for c in charts(sections_of(tmp_path)["rates"]) if c.title.endswith("images/s")]
    lines = [series for chart in rated for series in chart.series]
    assert len(lines) == 2
    for line in lines:
        assert len({point.y for point in line.points}) == 1
        assert [point.x for point in line.points] == [128, 256]
    names = [(c.title, c.note, s.label.split(" · ")[0]) for c in rated for s in c.series]
    assert len(set(names)) == 2


def test_rate_lines_of_seeds_are_one(tmp_path):
    for seed in (0, 1):
        # Whole numbers of two kinds are one setting.
        config = {"seed": seed, "width": 3.0 if seed else 3}
        throughput(tmp_path / f"{seed}", 1000.0 + 100 * seed, config=config)
        throughput(tmp_path / f"b{seed}", 9.0, config=config | {"batch_size": 256})
    [chart] = charts(sections_of(tmp_path)["rates"])
    [series] = chart.series
    # Two repeats are dots about their mean, without a bar: their range is no interval.
    mean = pytest.approx((1000 * 1100) ** 0.5)
    assert series.points[0][1:3] == (mean, None) and series.points[0].runs == [1000.0, 1100.0]
    assert series.points[0].tooltip == "2 runs, no interval"
    # Three have the interval over runs that a verdict rests on, here wider than their own.
    throughput(tmp_path / "2", 1200.0, config={"seed": 2, "width": 3})
    [chart] = charts(sections_of(tmp_path)["rates"])
    point = chart.series[0].points[0]
    logs = [math.log(rate) for rate in (1000, 1100, 1200)]
    error = statistics.stdev(logs) / 3**0.5
    ends = [math.exp(statistics.fmean(logs) + sign * 4.302653 * error) for sign in (-1, 1)]
    assert (point.low, point.high) == pytest.approx(ends)
    assert "small dots" in chart.note and "; 3 runs, 95 % interval|" in draw(chart)


def seeded(folder, scores_by_seed, status="done", **config):
    """A run for each seed, with the top-1 of its epochs."""
    for seed, scores in scores_by_seed.items():
        records = epochs([1000.0] * len(scores), eval_top1=scores)
        config |= {"seed": seed}
        recorded_run(folder / f"seed{seed}", records, status=status, config=config)


def top1_lines(*folders):
    """{label: [(epoch, geometric mean, least, most)]} of the chart of top-1."""
    drawn = charts(sections_of(*folders)["learning"])
    [chart] = [chart for chart in drawn if chart.y_label == "top-1 [%]"]
    return {
        series.label: [
            (p.x, *(v and round(v, 6) for v in (p.y, p.low, p.high))) for p in series.points
        ]
        for series in chart.series
    }


def test_learning_band_ends_where_its_first_seed_does(tmp_path):
    """The seeds that go on are the slow ones: their mean alone would be another curve."""
    seeded(tmp_path, {0: [0.5, 0.9], 1: [0.3, 0.4, 0.5, 0.6], 2: [0.4, 0.5, 0.9]})
    [line] = top1_lines(tmp_path).values()
    assert line == [(1, 39.148676, 30.0, 50.0), (2, 56.462162, 40.0, 90.0)]
    assert 'class="band"' in page_of(tmp_path)


@pytest.mark.parametrize(
    ("scores", "status", "label"),
    [
        ({2: [0.1]}, "diverged", "R3 fp32, seed 2 (diverged)"),  # ended early
        ({1: [0.3, 0.8]}, "done", "R3 fp32, seed 1"),  # was run again
    ],
)
def test_learning_band_is_of_other_seeds_only(tmp_path, scores, status, label):
    seeded(tmp_path / "a", {0: [0.5, 0.9], 1: [0.3, 0.8]})
    seeded(tmp_path / "b", scores, status=status)
    lines = top1_lines(tmp_path)
    band, alone = lines.values()
    assert band == [(1, 38.729833, 30.0, 50.0), (2, 84.852814, 80.0, 90.0)]
    assert alone[0][2:] == (None, None) and [*lines][1] == label


@pytest.mark.parametrize("config", [{"batch_size": 256}, {"epochs": 9}, {"label_smoothing": 0.1}])
def test_learning_curves_of_two_settings(tmp_path, config):
    seeded(tmp_path / "a", {0: [0.5], 1: [0.3]})
    seeded(tmp_path / "b", {2: [0.9], 3: [0.7]}, **config)
    lines = top1_lines(tmp_path)
    # Seeds of one epoch are dots: their range is no interval.
    assert [*lines.values()] == [[(1, 38.729833, None, None)], [(1, 79.372539, None, None)]]
    [name] = config
    assert any(name.partition("_")[0] in label for label in lines)


def test_seeds_have_their_last_scores(tmp_path):
    for seed, tta in enumerate((0.4, 0.9)):
        records = epochs([1000.0] * 2, eval_top1=[0.7, tta - 0.1], eval_top1_tta=[0.1, tta])
        recorded_run(tmp_path / f"{seed}", records, config={"seed": seed})
    [row] = rows_of(tables(sections_of(tmp_path)["learning"])["Seeds together"])
    mean = "[%], mean (95 % interval)"
    assert (row[f"score {mean}"], row[f"top-1 with TTA {mean}"]) == ("48.99", "60.00")


def test_every_chart_says_units_n_and_runs(everything):
    for section in sections_of(everything).values():
        drawn = charts(section, LineChart | DotChart)
        assert len({chart.title for chart in drawn}) == len(drawn)
        for chart in drawn:
            note = r"\bn = \d|medians of windows|p50|predicted"
            assert re.search(note, chart.note), chart.title
            # A prediction is of no run.
            assert "predicted" in chart.note or re.search(r"\bR\d", str(chart)), chart.title
            assert chart.x_label


def test_markup_in_names_stays_text(tmp_path):
    bad = "<script>alert(1)</script>\"'&{{ 7*7 }}|`*"
    trained(
        tmp_path / "run",
        experiment=bad,
        model=bad,
        environment={"hostname": bad, "device_kind": bad, "versions": {bad: bad}},
        config={"precision": bad},
        data={"feed": bad, "description": bad},
        summary={"warnings": [bad]},
    )
    [check] = made.doctor().checks
    notes = replace(made.doctor(), checks=(replace(check, name=bad, detail=bad),))
    network = measured("images_per_s", 1.0, network=bad, precision=bad, batch=bad)
    parts = [notes, replace(made.networks(), figures=(network,)), made.skipped("soak", reason=bad)]
    names = dict.fromkeys(("host", "kind", "preset", "jaxbench_version"), bad)
    made.write(tmp_path / "card", made.judged(*parts, **names))
    throughput(tmp_path / "x", 1.0, stage=bad, experiment=bad)
    throughput(tmp_path / "y", 2.0, stage=bad, experiment=bad, config={"batch_size": 256})
    text = page_of(tmp_path, title=bad)
    page = Page(text)
    script = (ROOT / "jaxbench" / "reports" / "page.js").read_text()
    # The page's own script is the only one, and the only one that a browser runs.
    assert re.findall(r"<script[^>]*>.*?</script>", text, re.DOTALL) == [
        f"<script>{script}</script>"
    ]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{hashed}';" in text
    assert bad in "".join(page.words)
    # What the script reads out of attributes is text there too.
    assert any(bad in label for label in page.attributes["data-label"])
    for own in page.attributes["data-points"]:
        assert re.fullmatch(r"[-\w.,:;=|% ()∞]+", own)
    markdown = render_markdown(list(sections_of(tmp_path).values()), bad)
    assert "<script" not in markdown
    for line in markdown.splitlines():
        if line.startswith("| "):
            assert "{{ 7\\*7 }}\\|\\`\\*" in line or "7*7" not in line


def test_status_of_running_and_killed_runs(tmp_path):
    # Which process it was, and where, says nothing: the lock does.
    running = {"status": "running", "pid": os.getpid(), "environment": {"hostname": "moon"}}
    lock = lock_run(recorded_run(tmp_path / "b-running", **running))
    recorded_run(tmp_path / "c-killed", **running)
    os.close(lock_run(recorded_run(tmp_path / "d-killed", **running)))
    (recorded_run(tmp_path / "e-unknown", **running) / "run.lock").symlink_to("elsewhere")
    states = [run.status for run in collect([str(tmp_path)]).runs]
    os.close(lock)
    assert states == ["running", "killed", "killed", "running"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("run.json", b'{"experiment": "cnn', "cannot be read: Unterminated string"),
        ("run.json", b"\xff\xfe\x00", "cannot be read: is no UTF-8 text"),
        ("run.json", b"[" * 100_000, "cannot be read: maximum recursion depth"),
        ("run.json", {"environment": {"versions": {"jax": []}}}, "environment.versions[...]"),
        ("metrics.jsonl", None, "it has no metrics.jsonl"),
        ("metrics.jsonl", b'{"kind": "epo\n{}\n', "metrics.jsonl: line 1 is corrupt"),
        ("metrics.jsonl", b'{"kind": "x"}\n{"kind": "epo', "no kind of record: 'x'"),
        ("metrics.jsonl", b"[1]\n", "metrics.jsonl: line 1 is corrupt"),
        ("metrics.jsonl", b"", "metrics.jsonl ends before its summary: records are lost"),
        ("metrics.jsonl", {"wall_s": "long"}, "metrics.jsonl, record 5: Expected `float | null`"),
        ("metrics.jsonl", {"kind": "epoch"}, "metrics.jsonl, record 5: Object missing"),
    ],
)
def test_a_damaged_run_is_one_line_and_the_rest_of_the_report_stands(
    tmp_path, file, content, reason
):
    damaged, whole = trained(tmp_path / "a"), trained(tmp_path / "b")
    if isinstance(content, dict):
        change_json(damaged / file, **content)
    else:
        (damaged / file).unlink()
    if isinstance(content, bytes):
        (damaged / file).write_bytes(content)
    sections = sections_of(damaged, whole)
    rows = {row["run"]: row for row in rows_of(tables(sections["runs"])["Runs"])}
    assert [rows[id]["status"] for id in ("R1", "R2")] == ["corrupt", "done"]
    [line] = [row["what"] for row in rows_of(tables(sections["overview"])["Warnings"])]
    assert line.startswith("corrupt: ") and reason in line
    rates = {row["run"]: row["images_per_s"] for row in csv_rows(damaged, whole)}
    assert rates["R2"] == "5000.0" and rates["R1"] == ""


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
@pytest.mark.parametrize("run", ["train/seed0", "tp128", "scaling", "conv2d", "compiled/a"])
def test_any_wrong_value_leaves_a_report(everything, tmp_path, run, file):
    """A page and a CSV file are made, whatever somebody put into a record."""
    folder = tmp_path / "run"
    shutil.copytree(everything / run, folder)
    *lines, last = (folder / file).read_text().splitlines()

    @settings(max_examples=12)
    @given(with_a_wrong_value(json.loads(last)))
    def check(wrong):
        (folder / file).write_text("\n".join([*lines, json.dumps(wrong)]) + "\n")
        page_of(folder)
        csv_rows(folder)

    check()


def test_collect_finds_a_run_once(tmp_path):
    """However it is named: by two of its folders, by a link, or by links that run in a circle."""
    trained(tmp_path / "a" / "run")
    assert len(collect([str(tmp_path / name) for name in ("", "a", "a/run")]).runs) == 1
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "a" / "run")
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    assert [run.name for run in collect([str(tmp_path / "runs")]).runs] == ["linked"]


def test_a_sweep_shows_cells_that_left_no_run(tmp_path, snapshot):
    sweep = tmp_path / "sweep"
    for attempt, batch in (("c1/run1", 64), ("c1/run2", 64)):
        throughput(sweep / "trials" / attempt, 1000.0, config={"batch_size": batch})
    last = recorded_run(sweep / "trials" / "c4" / "run1", mode="throughput", status="running")
    lock = lock_run(last)
    write_results(
        sweep,
        {"run": "trials/c1/run2", "place": {"batch_size": "64"}},
        {"status": "oom", "log": "trials/c2/run1.log", "place": {"batch_size": "512"}},
        {"status": "timeout", "run": "../../outside", "place": {"batch_size": "256"}},
        # Of another precision nothing is known but the mode.
        {"status": "oom", "place": {"batch_size": "64", "precision": "bf16"}},
    )
    with open(sweep / "results.jsonl", "a") as file:
        file.write('{"key": "4", "sta')

    def cells():
        # The first attempt is superseded; the cell without a result is at work.
        assert [run.path.name for run in collect([str(tmp_path)]).runs] == ["run2", "run1"]
        names = ("batch_size", "status", "precision", "mode", "feed")
        return "\n".join(" ".join(row[name] for name in names) for row in csv_rows(tmp_path))

    before = cells()
    assert before == snapshot
    # A corrupt line hides no other one.
    lines = (sweep / "results.jsonl").read_text()
    (sweep / "results.jsonl").write_text("nonsense\n" + lines)
    assert "results.jsonl: line 1 is corrupt" in page_of(tmp_path)
    assert cells() == before
    os.close(lock)


@pytest.mark.parametrize("run", ["../run", "/RUN", "trials/../../run", "r" * 5000, "r\0"])
def test_a_result_names_no_run_outside_of_its_sweep(tmp_path, run):
    throughput(tmp_path / "run", 1000.0)
    write_results(
        tmp_path / "sweep",
        {
            "status": "oom",
            "run": run.replace("/RUN", str(tmp_path / "run")),
            "place": {"seed": "1"},
        },
    )
    collection = collect([str(tmp_path / "sweep")])
    assert not collection.runs
    assert [one.status for one in collection.sweeps[0].missing] == ["oom"]


@pytest.mark.parametrize(
    ("xs", "ticks"),
    [
        # Equal steps within less than a decade, decades over many.
        ((5.3, 13.6), ["7.5", "10", "12.5"]),
        ((0.5, 2e4), ["1", "10", "100", "1,000", "10,000"]),
        ((64, 128, 256), ["64", "128", "256"]),
        ((3,), ["3"]),
    ],
)
def test_chart_ticks_of_a_logarithmic_axis(xs, ticks):
    line = Series("one", [Point(x, 1.0) for x in xs])
    chart = LineChart("t", "n", "x", "y", [line], x_log=True)
    found = re.findall(r'y="272" text-anchor="middle">([^<]+)<', draw(chart))
    assert found == ticks


def test_chart_shows_a_long_label_to_its_end():
    label = "R1 fp32, 8 devices, NVIDIA H200, data.image_shape=[224, 224, 3], 3.600 USD/h, spot"
    text = draw(DotChart("t", "n", "x", [Dot(label, 1.0), Dot("R2", 2.0)]))
    shown = re.findall(r'text-anchor="end">([^<]+)<', text)
    assert " ".join(shown).startswith(label) and "R2" in shown


def test_environment_that_differs_is_marked(tmp_path, snapshot):
    """One environment of three runs, two of one run each: two of three is not most."""
    for number in range(3):
        trained(tmp_path / f"a{number}", environment={"hostname": "big"})
    for number in range(2):
        place = {"hostname": "small", "python": f"3.{number}"}
        trained(tmp_path / f"b{number}", environment=place)
    assert shown(sections_of(tmp_path)["runs"], "Environment") == snapshot


def test_history_dots_are_of_one_setting(tmp_path, snapshot):
    cpu = {"device_kind": "cpu", "num_devices": 1}
    trained(tmp_path / "a", 5000.0)
    trained(tmp_path / "b", 6000.0, config={"seed": 1})
    trained(tmp_path / "c", 2000.0, data={"feed": "stream"})
    trained(tmp_path / "d", 100.0, environment=cpu | {"cpu": "Xeon"})
    trained(tmp_path / "e", 300.0, environment=cpu | {"cpu": "EPYC"})
    trained(tmp_path / "small", parameters=31_000, experiment="cnn10:tiny")
    [chart] = charts(sections_of(tmp_path)["history"], DotChart)
    dots = [f"{dot.value:.2f} {dot.label}" for dot in chart.dots if dot.kind == "measured"]
    assert "\n".join(dots) == snapshot


def test_scaling_has_the_ideal_line(everything):
    [chart, *_] = charts(sections_of(everything / "scaling")["scaling"])
    measured, ideal = chart.series
    assert [point.y for point in ideal.points] == [1000.0, 4000.0]
    assert ideal.reference and not measured.reference


def test_telemetry_panels_are_of_the_longest_runs(tmp_path):
    for name, wall_s, rows in (("a", 10.0, 300), ("b", 500.0, 20), ("c", 400.0, 20)):
        write_telemetry(trained(tmp_path / name, summary={"wall_s": wall_s}), rows, ["gpu0"])
    # Of a run that was killed the last record with a time counts.
    killed = recorded_run(tmp_path / "d", epochs([9.0] * 40), status="running")
    write_telemetry(killed, 20, ["gpu0"])
    drawn = charts(sections_of(tmp_path)["telemetry"])
    assert {chart.title[:2] for chart in drawn} == {"R2", "R4"}


def test_an_idle_device_has_a_load_of_zero(tmp_path):
    idle = {"gpu0": {"load_percent_mean": 0.0}, "host": {"cpu_percent_mean": 0.0}, "gpu1": {}}
    trained(tmp_path / "run", summary={"telemetry": {"devices": idle}})
    table = tables(sections_of(tmp_path)["telemetry"])["Summary"]
    assert column_of(table, "load [%]") == ["0.00", "0.00", "–"]


def test_a_power_cap_names_the_boards_limit(tmp_path):
    gpu = {"samples": 2.0, "throttle_reasons": {"gpu_idle": 0.1, "sw_power_cap": 1.0}}
    trained(
        tmp_path / "run",
        summary={"telemetry": {"devices": {"gpu0": gpu}}},
        environment={"boards": [{"device": "gpu0", "power_limit_w": 700.0}]},
    )
    page = page_of(tmp_path)
    assert "gpu_idle 10 %, sw_power_cap 100 %; its power limit is 700 W" in page


def test_damaged_telemetry_lines_are_left_out_and_counted(tmp_path):
    folder = trained(tmp_path / "run")
    write_telemetry(folder, 30, ["gpu0"])
    with open(folder / "telemetry.csv", "ab") as file:
        file.write(b"t,nan,gpu0,gpu,1,1,1,1,1\nt,31,gpu0\n\xff\xfe\x00\nt,32,gpu0,gpu,x,,,,")
    [load, *_] = charts(sections_of(tmp_path)["telemetry"])
    assert "n = 30 samples" in load.note and "4 corrupt lines" in load.note
    # So few are drawn one by one.
    assert "band" not in load.note
    (folder / "telemetry.csv").write_bytes(random.Random(0).randbytes(5000))
    assert "R1: telemetry.csv is corrupt" in page_of(tmp_path)


def test_telemetry_of_a_week_is_drawn_in_buckets(tmp_path):
    folder = trained(tmp_path / "run")
    rows = [f"{second},gpu0,{second % 50}" for second in range(100_000)]
    rows[77_777] = "77777,gpu0,100"
    lines = ["elapsed_s,device,load_percent", *rows, ""]
    (folder / "telemetry.csv").write_text("\n".join(lines))
    [load] = charts(sections_of(tmp_path)["telemetry"])
    [series] = load.series
    assert len(series.points) == 96 and "n = 100,000 samples" in load.note
    assert max(point.high for point in series.points) == 100
    assert min(point.low for point in series.points) == 0
    assert all(point.y == pytest.approx(24.5, abs=1) for point in series.points)


def test_telemetry_stands_at_its_own_time(tmp_path):
    """One device is silent after a while; the others' rows go on, and it has none there."""
    path = trained(tmp_path / "run") / "telemetry.csv"
    write_telemetry(path.parent, 40, ["gpu0", "gpu1"])
    lines = path.read_text().splitlines(keepends=True)
    kept = [s for s in lines if not (",gpu0," in s and 10 <= float(s.split(",")[1]) < 30)]
    path.write_text("".join(kept))
    [load, *_] = charts(sections_of(tmp_path)["telemetry"])
    table = numbers(load)
    assert list(table.groups.items()) == [(0, "gpu0"), (20, "gpu1")]
    times = [texts(row)[0] for row in table.rows]
    silent = [f"{second}.50" for second in range(10, 30)]
    assert times[:20] == [time for time in times[20:] if time not in silent] and len(times) == 60


def test_telemetry_of_many_devices_is_split_evenly(tmp_path):
    names = [f"gpu{number}" for number in range(12)]
    write_telemetry(trained(tmp_path / "run"), 5, names)
    loads = [c for c in charts(sections_of(tmp_path)["telemetry"]) if ": load" in c.title]
    assert [[s.label for s in c.series] for c in loads] == [names[:6], names[6:]]


@pytest.mark.parametrize("text", ["a\r=1+1", "\r=1+1", "a\n@x", "\x00-1", " =1+1", "\x0b+1"])
def test_no_line_or_cell_of_a_csv_file_begins_with_a_formula(tmp_path, text):
    trained(tmp_path / "run", experiment=text)
    SweepDir(tmp_path).write_table("sweep.csv", [{"reason": text}])
    [row] = csv_rows(tmp_path / "run")
    assert row["hostname"] == "lab" and row["mfu"] == row["target"] == row["usd"] == ""
    # As programs read it that end a line at a carriage return.
    _, *cells = (tmp_path / "sweep.csv").read_text().splitlines()
    assert cells == [row["experiment"]] == [inert_cell(text)]
    assert cells[0].isprintable() and cells[0].strip()[0] not in "=+-@"
    assert row["images_per_s"] == "5000.0"


def test_the_page_on_reports_names_the_columns():
    page = (ROOT / "docs/howto/report.md").read_text()
    assert not [name for name in COLUMNS if f"`{name}`" not in page]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_an_empty_cell(value):
    assert render_csv(["a", "b"], [{"a": value, "b": 0.0}]) == "a,b\n,0.0\n"


BEFORE = "origin,run,name,status,reason,experiment,network,parameters"
NOW = ",".join(COLUMNS)


@pytest.mark.parametrize("text", ["", f"{BEFORE},data\n", f"{NOW}\n", f"{NOW}\ncnn10,train\n"])
def test_a_table_of_an_earlier_report_is_written_over(tmp_path, text):
    (tmp_path / "report.csv").write_text(text)
    write_report([str(trained(tmp_path / "run"))], str(tmp_path / "report.csv"))
    assert (tmp_path / "report.csv").read_text().startswith(f"{NOW}\ncnn10,train,done,")


FOREIGN = {
    "another table": "experiment,mode,status\n",
    "load_runs as pandas writes it": f",{NOW}\n0,cnn10\n",
    "with a column of one's own": f"{NOW},my_notes\n",
    "with columns left out": "experiment,mode,images_per_s,run\n",
    "columns within a text": f"The columns are\n{NOW}\nand before they were\n{BEFORE},data\n",
    "one name": "origin\n",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_table_of_another_is_not_written_over(tmp_path, text):
    (tmp_path / "runs.csv").write_text(text)
    run, out = str(trained(tmp_path / "run")), str(tmp_path / "runs.csv")
    refusal(write_report, [run], out, told="is no report; it is not overwritten")
    assert (tmp_path / "runs.csv").read_text() == text


@pytest.mark.parametrize(
    "asked",
    [
        {"prices": Prices(stated=Price("stated", "", None, 2.0, "2026", "web"))},
        {"prices": Prices(listed=[Price("spot", "NVIDIA H200", 1, 1.8, "2026", "web")])},
        {"prices": Prices(usd_per_kwh=0.25)},
        {"target_accuracy": 0.9},
    ],
    ids=str,
)
def test_csv_has_what_runs_recorded(tmp_path, asked):
    """Nobody finds the usual costs where another price was asked for."""
    runs, out = [str(trained(tmp_path / "run"))], str(tmp_path / "runs.csv")
    refusal(write_report, runs, out, told="CSV has what runs recorded", **asked)
    assert not (tmp_path / "runs.csv").exists()
    write_report(runs, str(tmp_path / "runs.md"), **asked)


def test_command_line(tmp_path, run_cli):
    trained(tmp_path / "runs" / "run")

    def report(*args):
        done = run_cli("runs", *args, module="jaxbench.report")
        assert (done.returncode, done.stderr) == (0, "")

    for form in ("html", "md", "csv"):
        report(f"--format={form}")
        assert (tmp_path / f"report.{form}").stat().st_size > 500
    # A report is written over, and the same again; nothing else is.
    first = (tmp_path / "report.html").read_bytes()
    report()
    assert (tmp_path / "report.html").read_bytes() == first
    # A link stays one.
    (tmp_path / "link.html").symlink_to(tmp_path / "report.html")
    report("--out=link.html", "--title=new")
    assert (tmp_path / "link.html").is_symlink()
    assert "<title>new</title>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "give at least one DIR"),
        (["nowhere"], "nowhere: no such folder"),
        (["thesis.html"], "is a file; name a folder"),
        (["empty"], "holds no run directory"),
        (["run", "--out=thesis.html"], "is no report; it is not overwritten"),
        (["run", "--out=no/such/x.html"], "no such folder"),
        (["run", "--out=empty"], "is no regular file"),
        (["run", "--out="], "must name a file"),
        (["run", "--format=pdf"], "format"),
        (["run", "--format=md", "--out=x.html"], "are two formats"),
        (["run", "--out=x.txt"], "ends in none of .html, .md, .csv"),
        (["run", "--out=pipe.html"], "is no regular file"),
        (["run", "--out=/dev/null", "--format=html"], "is no regular file"),
    ],
)
def test_what_cannot_be_reported_is_refused(tmp_path, refused, args, told):
    trained(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "thesis.html").write_text("years of work")
    os.mkfifo(tmp_path / "pipe.html")
    refused(*args, told=told, module="jaxbench.report")


def test_markdown_steers_no_terminal():
    text = render_markdown([Section("a", "b\033[2J", "c\x9b1m", ["d\033]0;e\a"])], "f\x00")
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_metric_of_a_custom_task_has_a_curve(tmp_path):
    metrics = [{"kappa": 0.1}, {"kappa": 0.25}]
    recorded_run(tmp_path / "run", epochs([18.0, 20.0], eval_metrics=metrics))
    [chart] = [one for one in charts(sections_of(tmp_path)["learning"]) if "kappa" in one.title]
    assert chart.y_label == "kappa"
    assert [point.y for point in chart.series[0].points] == [0.1, 0.25]
