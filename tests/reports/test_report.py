"""python -m jaxbench.report: all that was measured on one page, nothing mixed, nothing lost."""

import base64
import collections
import csv
import hashlib
import html.parser
import io
import json
import math
import os
import random
import re
import statistics

import numpy as np
import pytest
from jaxbench.reports.fields import Estimate
from jaxbench.reports.formats import clock_time, with_interval
from jaxbench.reports.tables import Column, make_table

from jaxbench.errors import BadInput
from jaxbench.metrics import UNKNOWN, plain
from jaxbench.records.run_lock import lock_run
from jaxbench.records.writers.tables import inert_cell
from jaxbench.reports.blocks import (
    BarChart,
    Dot,
    DotChart,
    LineChart,
    Point,
    Section,
    Series,
    Table,
)
from jaxbench.reports.collect import collect
from jaxbench.reports.context import ReportContext
from jaxbench.reports.csv_rows import COLUMNS, render_csv
from jaxbench.reports.markdown import render_markdown
from jaxbench.reports.page import render_html
from jaxbench.reports.plot import draw, legend_mark
from jaxbench.reports.runs import read_run
from jaxbench.reports.sections import make_sections
from jaxbench.reports.sections.learning import _lines
from jaxbench.reports.sections.telemetry import buckets, read_readings, singles
from jaxbench.sweeps.sweep_dir import SweepDir
from tests.conftest import ROOT

_VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}


def write_run(folder, records=(), *, status="done", summary=None, **fields):
    """A run directory of cnn10 on CIFAR-10, as the jobs write them; `fields` change run.json."""
    folder.mkdir(parents=True)
    config = {"batch_size": 128, "precision": "fp32", "seed": 0, "data": {"source": "tfds"}}
    document = {
        "schema_version": 2,
        "experiment": "cnn10",
        "mode": "train",
        "status": status,
        "reason": None if status == "done" else "out of luck",
        "model": "Cnn10",
        "parameters": 1_900_000,
        "started_at": "2026-03-04T05:06:07+00:00",
        "telemetry_s": 1.0,
        "command_line": ["python"],
        **fields,
        "config": config | fields.get("config", {}),
        "data": {"feed": "resident", "description": "cifar10 3.0.2", "train_examples": 50_000}
        | fields.get("data", {}),
        "environment": {
            "hostname": "lab",
            "device_kind": "NVIDIA H200",
            "num_devices": 1,
            "versions": {"jax": "0.10.2"},
            "git": {"commit": "c0ffee" * 6, "dirty": False},
        }
        | fields.get("environment", {}),
        "summary": {"kind": "summary", "wall_s": 100.0, **(summary or {})},
    }
    (folder / "run.json").write_text(json.dumps(document))
    # A run that has ended wrote its summary there too.
    ended = [] if status == "running" else [document["summary"]]
    lines = "".join(json.dumps(record) + "\n" for record in [*records, *ended])
    (folder / "metrics.jsonl").write_text(lines)
    return folder


def epochs(rates, top1=0.9):
    return [
        {
            "kind": "epoch",
            "epoch": number,
            "epochs": len(rates),
            "complete": True,
            "images_per_s": rate,
            "epoch_time_s": 50_000 / rate,
            "step": 390 * number,
            "elapsed_s": 15.75 * number,
            "train_loss": 2 / number,
            "eval_loss": 2.2 / number,
            "eval_top1": top1 * number / len(rates),
            "eval_count": 10_000,
        }
        for number, rate in enumerate(rates, 1)
    ]


def trained(folder, rate=5000.0, top1=0.9, **fields):
    summary = {
        "compile_s": 7.0,
        "compile_cache": "miss",
        "first_epoch_with_compile_s": 20.0,
        "median_epoch_s": 50_000 / rate,
        "eval_top1": top1,
        "epochs_done": 4,
        "phases_s": {"compile": 7.0, "train": 80.0, "eval": 12.0, "other": 1.0},
    } | fields.pop("summary", {})
    records = epochs([rate / 2, rate, rate * 1.01, rate * 0.99], top1)
    return write_run(folder, records, summary=summary, **fields)


def throughput(folder, rate, stage="train_step", **fields):
    record = {
        "kind": "throughput",
        "stage": stage,
        "images_per_s": rate,
        "images_per_s_low": rate * 0.98,
        "images_per_s_high": rate * 1.02,
        "windows_s": [1.0] * 11,
        "latency_p50_s": 0.02,
        "latency_p95_s": 0.03,
        "latency_p99_s": 0.04,
        "latency_steps": 100,
        "mfu": 0.4,
        "flops_per_byte": 40.0,
        "flops_per_byte_at_ridge": 103.0,
        "bound_by": "memory",
        "flops_per_s_per_device": 2e14,
        "peak": {
            "kind": "NVIDIA H200",
            "arithmetic": "tf32",
            "flops_per_s": 4.947e14,
            "bytes_per_s": 4.8e12,
            "source": "a datasheet",
        },
    }
    fields["data"] = {"feed": "synthetic"} | fields.get("data", {})
    return write_run(folder, [record], mode="throughput", **fields)


def write_telemetry(folder, rows, devices=("gpu0", "gpu1", "host")):
    draw = random.Random(0)
    with open(folder / "telemetry.csv", "w") as file:
        file.write("time,elapsed_s,device,kind,load_percent,memory_used_bytes,sm_clock_mhz,")
        file.write("temperature_c,power_w\n")
        for second in range(rows):
            for device in devices:
                load = 90 + draw.random() * 10
                file.write(f"t,{second}.5,{device},gpu,{load:.1f},1000000,1410,65,{load * 3:.1f}\n")


def context_of(*folders):
    return ReportContext(collect([str(folder) for folder in folders]))


def sections_of(*folders):
    made = make_sections(context_of(*folders))
    return {section.name: section for section in made}


def page_of(*folders, title="a report"):
    return render_html(list(sections_of(*folders).values()), title)


def tables(section):
    return {block.title: block for block in section.blocks if isinstance(block, Table)}


def texts(row):
    return [cell.text for cell in row]


def charts(section, kind=LineChart):
    return [block for block in section.blocks if isinstance(block, kind)]


class Page(html.parser.HTMLParser):
    """Fails where an element is not closed in its place; keeps text, ids and addresses."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.loads, self.words = [], [], [], [], []
        self.elements, self.attributes = set(), collections.defaultdict(list)
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self._see(tag, attributes)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self._see(tag, attributes)

    def _see(self, tag, attributes):
        self.elements.add(tag)
        for name, value in attributes:
            self.attributes[name].append(value)
            if name == "id":
                self.ids.append(value)
            if name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "href", "srcset", "data", "xlink:href", "action"):
                self.loads.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def everything(tmp_path):
    """A folder with a run of every kind and state."""
    folder = tmp_path / "all"
    trained(folder / "a" / "fp32")
    trained(folder / "a" / "bf16", 9000.0, config={"precision": "bf16"})
    for batch in (128, 256, 512):
        throughput(folder / f"tp{batch}", batch * 10.0, config={"batch_size": batch})
    scaled = [
        {
            "kind": "scaling",
            "scaling": "weak",
            "num_devices": count,
            "batch_size": 64 * count,
            "batch_per_device": 64,
            "images_per_s": 1000.0 * count**0.9,
            "images_per_s_low": 990.0 * count**0.9,
            "images_per_s_high": 1010.0 * count**0.9,
            "efficiency": count**-0.1,
            "windows_s": [1.0] * 9,
        }
        for count in (1, 2, 4)
    ]
    write_run(folder / "scaling", scaled, mode="scaling")
    convolved = [
        {
            "kind": "conv2d",
            "devices": count,
            "images": 840,
            "height": 100,
            "width": 100,
            "channels": 1,
            "kernel": 3,
            "lower_s": 0.01,
            "compile_s": 0.2,
            "first_use_s": 0.3,
            "host_to_device_s": 0.004,
            "compute_s": 0.001,
            "device_to_host_s": 0.002,
            "steady_total_s": 0.007,
            "scipy_s": 0.2,
            "images_per_s": 840_000.0,
            "speedup": 1.0,
            "samples": {"compute_s": [0.001] * 5},
        }
        for count in (1, 2)
    ]
    write_run(folder / "conv", convolved, mode="conv2d", experiment="conv2d")
    write_run(folder / "oom", status="oom", config={"batch_size": 4096})
    write_telemetry(folder / "a" / "fp32", 300)
    return folder


def test_all_sections_are_there_when_their_data_are(everything):
    assert list(sections_of(everything)) == [
        "overview",
        "runs",
        "batches",
        "history",
        "rates",
        "learning",
        "time",
        "scaling",
        "roofline",
        "telemetry",
        "conv2d",
    ]
    lonely = write_run(everything / "own", experiment="mine", model="Own")
    assert list(sections_of(lonely)) == ["runs"]


def test_the_page_is_well_formed_and_needs_nothing_else(everything):
    page = Page(page_of(everything))
    assert page.loads == ["data:,"]
    style = (ROOT / "jaxbench" / "reports" / "page.css").read_text()
    assert "url(" not in style and "@import" not in style
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_rates_come_out_as_they_went_in(tmp_path):
    trained(tmp_path / "run", 5000.0)
    [row] = ReportContext(collect([str(tmp_path)])).measurements
    # The first epoch is warm-up; the median of the three others, too few for an interval.
    assert row.rate == Estimate(5000.0, None, None, 3)
    assert row.run.total_s == pytest.approx(7 + 20 + 10 + 10 / 1.01 + 10 / 0.99)
    table = tables(sections_of(tmp_path)["rates"])["All rates"]
    assert texts(table.rows[0])[7:11] == ["128", "5,000", "–", "3"]


def test_a_slow_epoch_does_not_move_the_rate(tmp_path):
    write_run(tmp_path / "run", epochs([500.0, 1000.0, 1001.0, 1002.0, 100.0, 1003.0]))
    [row] = ReportContext(collect([str(tmp_path)])).measurements
    assert row.rate.value == 1001.0


def test_the_mfu_of_training_is_that_of_the_epochs_of_its_rate(tmp_path):
    own = [
        epoch | {"mfu": mfu} for epoch, mfu in zip(epochs([100.0, 400.0]), (0.1, 0.4), strict=True)
    ]
    write_run(tmp_path / "run", own)
    [row] = csv_rows(tmp_path)
    assert figures(row, "images_per_s", "mfu") == [400.0, 0.4]


def test_an_interval_is_of_six_or_more(tmp_path):
    for later in (5, 6):
        write_run(tmp_path / f"{later}", epochs([500.0, *(1000.0 + n for n in range(later))]))
    five, six = ReportContext(collect([str(tmp_path)])).measurements
    assert five.rate == Estimate(1002.0, None, None, 5)
    assert six.rate == Estimate(1002.5, 1000.0, 1005.0, 6)
    stage = throughput(tmp_path / "step", 1000.0)
    assert ReportContext(collect([str(stage)])).measurements[0].rate.low == 980.0
    lines = (stage / "metrics.jsonl").read_text().replace(", ".join(["1.0"] * 11), "1.0, 1.0")
    (stage / "metrics.jsonl").write_text(lines)
    [row] = ReportContext(collect([str(stage)])).measurements
    assert row.rate == Estimate(1000.0, None, None, 2)


def test_the_batch_table_has_oom_where_memory_ended(tmp_path):
    for batch in (128, 256):
        trained(tmp_path / f"b{batch}", config={"batch_size": batch})
    write_run(tmp_path / "b512", status="oom", config={"batch_size": 512})
    found = tables(sections_of(tmp_path)["batches"])
    rows = [texts(row) for row in found["cnn10, training"].rows]
    assert [row[:2] for row in rows] == [["128", "done"], ["256", "done"], ["512", "OOM"]]
    assert rows[0][2:7] == ["7.000", "20.00", "10.00", "0:00:57", "4"]
    columns = len(found["cnn10, training"].columns)
    for row in found["cnn10, training"].rows:
        assert sum(cell.span for cell in row) == columns


def test_the_last_run_of_ten_is_the_tenth(tmp_path):
    for number in range(10):
        config = {"batch_size": 256 if number == 0 else 128}
        environment = {"num_devices": 1 + number % 2}
        place = tmp_path / f"{number}"
        trained(place, 1000.0 + number, config=config, environment=environment)
    found = tables(sections_of(tmp_path)["batches"])
    [row, _] = found["cnn10, training: images/s"].rows
    assert [cell.run for cell in row[1:]] == ["R9", "R10"]
    shown = [row[-1].run for row in found["cnn10, training"].rows]
    assert shown == ["R3", "R5", "R7", "R9", "R1", "R2", "R4", "R6", "R8", "R10"]


def test_a_whole_number_of_epochs_has_no_decimals(tmp_path):
    for number, epochs_ in enumerate((10.0, 16, 2.5)):
        trained(tmp_path / f"{number}", config={"epochs": epochs_})
    shown = tables(sections_of(tmp_path)["runs"])["Runs"]
    at = shown.columns.index("setting")
    assert [texts(row)[at] for row in shown.rows] == ["epochs=10", "epochs=16", "epochs=2.5"]


def test_cells_say_what_they_are_sorted_by(tmp_path):
    rows = [{"a": Estimate(3550.4, 3000.0, 4000.0, 7)}, {"a": Estimate(math.inf)}, {"a": None}]
    table = make_table([Column("a", "a", with_interval(clock_time))], rows)
    page = Page(render_html([Section("s", "S", "", [table])], "t"))
    assert page.attributes["data-sort"] == ["3550.4", "Infinity"]
    # What a plain number says itself is not said twice.
    plain_table = make_table([Column("a", "a.value", plain)], rows[:1])
    assert (
        "data-sort" not in Page(render_html([Section("s", "S", "", [plain_table])], "t")).attributes
    )


def test_the_matrix_sets_devices_side_by_side(tmp_path):
    for devices in (1, 2):
        for batch in (128, 2048):
            place = tmp_path / f"{devices}-{batch}"
            environment = {"num_devices": devices}
            config = {"batch_size": batch}
            if (devices, batch) == (1, 2048):
                write_run(place, status="oom", config=config, environment=environment)
            else:
                trained(place, 1000.0 * devices, config=config, environment=environment)
    matrix = tables(sections_of(tmp_path)["batches"])["cnn10, training: images/s"]
    assert [texts(row) for row in matrix.rows] == [
        ["128", "1,000", "2,000"],
        ["2,048", "OOM", "2,000"],
    ]
    assert matrix.columns[1].startswith("1 × NVIDIA H200")


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
        {"config": {"batch_norm": "sync"}},
    ],
    ids=str,
)
def test_what_differs_in_more_than_the_batch_is_on_no_common_line(tmp_path, fields):
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
    assert all("fp32" in series.label or "bf16" in series.label for series in lines)


def test_seeds_of_one_setting_share_a_line(tmp_path):
    for seed in (0, 1):
        for batch in (128, 256):
            config = {"seed": seed, "batch_size": batch}
            throughput(tmp_path / f"{seed}-{batch}", 1000.0 + 100 * seed, config=config)
    [chart, _] = charts(sections_of(tmp_path)["rates"])
    [series] = chart.series
    # Two repeats are dots about their mean, without a bar: their range is no interval.
    mean = pytest.approx((1000 * 1100) ** 0.5)
    for point in series.points:
        assert (point.y, point.low, point.runs) == (mean, None, [1000.0, 1100.0])
    assert series.points[0].told == "2 runs, no interval"
    # Three have the interval over runs that a verdict rests on, here wider than their own.
    for batch in (128, 256):
        config = {"seed": 2, "batch_size": batch}
        throughput(tmp_path / f"2-{batch}", 1200.0, config=config)
    [chart, latency] = charts(sections_of(tmp_path)["rates"])
    point = chart.series[0].points[0]
    logs = [math.log(rate) for rate in (1000, 1100, 1200)]
    error = statistics.stdev(logs) / 3**0.5
    ends = [math.exp(statistics.fmean(logs) + sign * 4.302653 * error) for sign in (-1, 1)]
    assert (point.low, point.high) == pytest.approx(ends)
    assert point.told == "3 runs, 95 % interval"
    # A latency's bar reaches from p50 to p99, of several runs too.
    assert latency.series[0].points[0][2:5] == (20.0, 40.0, "p50, bar to p99, medians of 3 runs")
    assert "small dots" in chart.note and "; 3 runs, 95 % interval|" in draw(chart)


def seeded(folder, scores_by_seed, status="done", **config):
    """A run for each seed, with the top-1 of its epochs."""
    for seed, scores in scores_by_seed.items():
        records = epochs([1000.0] * len(scores))
        for record, score in zip(records, scores, strict=True):
            record["eval_top1"] = score
        write_run(folder / f"seed{seed}", records, status=status, config={"seed": seed} | config)


def top1_chart(*folders):
    found = charts(sections_of(*folders)["learning"])
    [chart] = [chart for chart in found if chart.y_label == "top-1 [%]"]
    return chart


def drawn(series):
    return [(p.x, *(v and round(v, 6) for v in (p.y, p.low, p.high))) for p in series.points]


def test_seeds_of_one_setting_are_one_curve_with_a_band(tmp_path):
    seeded(tmp_path, {0: [0.5, 0.9], 1: [0.3, 0.8], 5: [0.4, 0.7]})
    chart = top1_chart(tmp_path)
    [series] = chart.series
    assert series.band and series.label.endswith("3 seeds")
    assert drawn(series) == [(1, 40.0, 30.0, 50.0), (2, 80.0, 70.0, 90.0)]
    assert "median" in chart.note and "least to the greatest" in chart.note
    assert "n = 3 (R1, R2, R3)" in chart.note
    rows = [texts(row) for row in chart.table.rows]
    assert rows[:2] == [
        ["1", "40.00", "30.00", "50.00", "3 of 3"],
        ["2", "80.00", "70.00", "90.00", "3 of 3"],
    ]
    # Below: where each seed ended, with its run.
    assert [(row[0], row[1]) for row in rows[2:]] == [
        ("R1, seed 0, epoch 2", "90.00"),
        ("R2, seed 1, epoch 2", "80.00"),
        ("R3, seed 5, epoch 2", "70.00"),
    ]
    assert [row[0].run for row in chart.table.rows[2:]] == ["R1", "R2", "R3"]
    assert list(chart.table.groups) == [0, 2]
    # One that failed is counted, though it has no line among them.
    seeded(tmp_path / "failed", {7: [0.1]}, status="diverged")
    [together] = tables(sections_of(tmp_path)["learning"])["Seeds together"].rows
    assert texts(together)[5:] == (
        ["3", "2", "top-1", "80.00", "70.00", "90.00", "80.00", "10.00", "–", "1"]
    )
    assert 'class="band"' in page_of(tmp_path)


def test_a_band_ends_where_its_first_seed_does(tmp_path):
    """The seeds that go on are the slow ones: their median alone would be another curve."""
    seeded(tmp_path, {0: [0.5, 0.9], 1: [0.3, 0.4, 0.5, 0.6], 2: [0.4, 0.5, 0.9]})
    chart = top1_chart(tmp_path)
    [series] = chart.series
    assert drawn(series) == [(1, 40.0, 30.0, 50.0), (2, 50.0, 40.0, 90.0)]
    assert "R1's band ends at epoch 2, the last that all 3 have a value of (some go on to 4)" in (
        chart.note
    )
    rows = [texts(row) for row in chart.table.rows]
    assert [row[-1] for row in rows[:4]] == ["3 of 3", "3 of 3", "2 of 3", "1 of 3"]
    assert rows[2][1:4] == rows[3][1:4] == ["–", "–", "–"]
    assert [row[1] for row in rows[4:]] == ["90.00", "60.00", "90.00"]


def test_seeds_that_are_evaluated_now_and_then_have_both_their_figures(tmp_path):
    for seed, scores in enumerate(([0.5, 0.8], [0.7, 0.9])):
        found = epochs([1000.0] * 4)
        for record in found:
            if record["epoch"] % 2:
                del record["eval_loss"], record["eval_top1"], record["eval_count"]
            else:
                record["eval_top1"] = scores[record["epoch"] // 2 - 1]
                record["eval_top1_tta"] = record["eval_top1"] + 0.05
        write_run(tmp_path / f"{seed}", found, config={"seed": seed})
    [own] = top1_chart(tmp_path).series
    assert drawn(own) == [(2, 60.0, 50.0, 70.0), (4, 85.0, 80.0, 90.0)]
    [chart] = [c for c in charts(sections_of(tmp_path)["learning"]) if "augmentation" in c.title]
    assert drawn(chart.series[0]) == [(2, 65.0, 55.0, 75.0), (4, 90.0, 85.0, 95.0)]
    together = tables(sections_of(tmp_path)["learning"])["Seeds together"].rows
    assert [texts(row)[7:9] for row in together] == [
        ["top-1", "85.00"],
        ["top-1 with test-time augmentation", "90.00"],
    ]


def test_a_run_that_ended_early_is_in_no_band(tmp_path):
    seeded(tmp_path / "a", {0: [0.5, 0.9], 1: [0.3, 0.8]})
    seeded(tmp_path / "b", {2: [0.1]}, status="diverged")
    band, alone = top1_chart(tmp_path).series
    assert drawn(band) == [(1, 40.0, 30.0, 50.0), (2, 85.0, 80.0, 90.0)]
    assert not alone.band and alone.label == "R3 fp32, seed 2 (diverged)"
    assert drawn(alone) == [(1, 10.0, None, None)]


def test_a_seed_run_again_does_not_count_as_another(tmp_path):
    seeded(tmp_path / "a", {0: [0.5], 1: [0.3]})
    seeded(tmp_path / "b", {1: [0.3]})
    band, alone = top1_chart(tmp_path).series
    assert drawn(band) == [(1, 40.0, 30.0, 50.0)]
    assert drawn(alone) == [(1, 30.0, None, None)] and alone.label == "R3 fp32, seed 1"


@pytest.mark.parametrize("config", [{"batch_size": 256}, {"epochs": 9}, {"label_smoothing": 0.1}])
def test_seeds_of_two_settings_are_two_curves(tmp_path, config):
    seeded(tmp_path / "a", {0: [0.5], 1: [0.3]})
    seeded(tmp_path / "b", {2: [0.9], 3: [0.7]}, **config)
    found = top1_chart(tmp_path).series
    assert [drawn(series) for series in found] == [
        [(1, 40.0, 30.0, 50.0)],
        [(1, 80.0, 70.0, 90.0)],
    ]
    [name] = config
    assert all(name in series.label for series in found)


def test_models_of_one_run_are_a_band_of_their_own(tmp_path):
    """Of replicas=independent; one that diverged is drawn alone, whatever the others did."""
    [record] = epochs([1000.0])
    record |= {"eval_top1": 0.4, "eval_top1_std": 0.1, "eval_top1_min": 0.3, "eval_top1_max": 0.5}
    record["eval_models"] = [
        {"seed": 3, "top1": 0.5, "loss": 1.0},
        {"seed": 4, "top1": 0.3, "loss": 2.0},
        {"seed": 5, "top1": 0.1, "loss": None},
    ]
    write_run(tmp_path / "run", [record], config={"seed": 3}, summary={"diverged_seeds": [5]})
    band, alone = top1_chart(tmp_path).series
    assert drawn(band) == [(1, 40.0, 30.0, 50.0)] and band.label == "R1 fp32, 2 seeds"
    assert drawn(alone) == [(1, 10.0, None, None)]
    assert alone.label == "R1 fp32, seed 5 (diverged)"


def test_every_chart_says_units_n_and_runs(everything):
    for section in sections_of(everything).values():
        for chart in (b for b in section.blocks if isinstance(b, LineChart | BarChart | DotChart)):
            assert re.search(r"\bn = \d|medians of windows|p50", chart.note), chart.title
            runs = chart.title + chart.note + str(chart)
            assert re.search(r"\bR\d", runs), chart.title
            assert chart.x_label and chart.table.rows


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
        assert re.fullmatch(r"[-\w.,;=|% ()∞]+", own)
    markdown = render_markdown(list(sections_of(tmp_path).values()), bad)
    assert "<script" not in markdown
    for line in markdown.splitlines():
        if line.startswith("| "):
            assert "{{ 7\\*7 }}\\|\\`\\*" in line or "7*7" not in line


def test_states_are_told_apart(tmp_path):
    trained(tmp_path / "a-done")
    # Which process it was, and where, says nothing: the lock does.
    running = {"status": "running", "pid": os.getpid(), "environment": {"hostname": "moon"}}
    lock = lock_run(write_run(tmp_path / "b-running", epochs([10.0]), **running))
    write_run(tmp_path / "c-killed", **running)
    os.close(lock_run(write_run(tmp_path / "d-killed", **running)))
    (write_run(tmp_path / "e-unknown", **running) / "run.lock").symlink_to("elsewhere")
    (trained(tmp_path / "f-cut") / "run.json").write_text('{"experiment": "cnn')
    (trained(tmp_path / "g-middle") / "metrics.jsonl").write_text('{"kind": "epo\n{}\n')
    (trained(tmp_path / "h-tail") / "metrics.jsonl").write_text('{"kind": "x"}\n{"kind": "epo')
    (trained(tmp_path / "i-list") / "metrics.jsonl").write_text("[1]\n")
    (trained(tmp_path / "j-gone") / "metrics.jsonl").unlink()
    (trained(tmp_path / "k-binary") / "run.json").write_bytes(b"\xff\xfe\x00")
    (trained(tmp_path / "l-deep") / "run.json").write_text("[" * 100_000)
    states = {run.name: run.status for run in collect([str(tmp_path)]).runs}
    assert [states[name] for name in sorted(states)] == [
        "done",
        "running",
        "killed",
        "killed",
        "running",
        "corrupt",
        "corrupt",
        "corrupt",
        "corrupt",
        "corrupt",
        "corrupt",
        "corrupt",
    ]
    page = page_of(tmp_path)
    os.close(lock)
    Page(page)
    for name in states:
        assert name in page
    assert "metrics.jsonl: line 1 is corrupt" in page


def test_a_run_that_was_resumed_says_what_it_lost(tmp_path):
    for name in ("a", "b"):
        resumes = [{"lost_s": None}, {"lost_s": 12.5}]
        write_run(tmp_path / name, epochs([1.0]), status="running", resumes=resumes)
    careful = tables(sections_of(tmp_path)["runs"])["Warnings"]
    [row] = [texts(row) for row in careful.rows if "resumed" in texts(row)[0]]
    assert row[0].startswith("resumed 2 times; 12.50 s of work was lost")
    assert row[1] == "R1, R2"


def test_a_run_that_changed_its_software_or_devices_is_marked(tmp_path):
    entry = {"step": 5, "num_devices": 2, "versions": {"jax": "0.12"}}
    environment = {"num_devices": 4, "versions": {"jax": "0.10"}}
    write_run(tmp_path / "a", epochs([1.0]), environment=environment, resumes=[entry])
    careful = tables(sections_of(tmp_path)["runs"])["Warnings"]
    [row] = [texts(row) for row in careful.rows if "something else" in texts(row)[0]]
    assert row[0].endswith("something else: num_devices 4, then 2; jax 0.10, then 0.12")


def test_a_run_that_lost_records_is_not_well(tmp_path):
    for name, lines in (("cut", 2), ("epoch", 3), ("whole", None)):
        folder = trained(tmp_path / name)
        kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        kept = [*kept[:lines], *kept[4:]] if name == "epoch" else kept[:lines]
        (folder / "metrics.jsonl").write_text("".join(kept))
    states = {run.name: (run.status, run.reason) for run in collect([str(tmp_path)]).runs}
    assert states == {
        "cut": ("corrupt", "metrics.jsonl ends before its summary: records are lost"),
        "epoch": ("corrupt", "metrics.jsonl has 3 epochs, its summary counts 4: records are lost"),
        "whole": ("done", None),
    }
    careful = tables(sections_of(tmp_path)["runs"])["Warnings"]
    assert [texts(row)[1] for row in careful.rows] == ["R1", "R2"]
    rows = ReportContext(collect([str(tmp_path)])).measurements
    assert [row.usable for row in rows] == [False, False, True]


def test_a_run_json_that_is_a_pipe_does_not_wait(tmp_path):
    folder = trained(tmp_path / "run")
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    [run] = collect([str(tmp_path)]).runs
    assert run.status == "corrupt" and "run.json is no regular file" in run.reason


def test_linked_folders_are_searched_once(tmp_path):
    trained(tmp_path / "elsewhere" / "run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere" / "run")
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    assert [run.name for run in collect([str(tmp_path / "runs")]).runs] == ["linked"]


def leaves(value, path=()):
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    yield path


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
@pytest.mark.parametrize("name", ["a/fp32", "tp128", "scaling", "conv"])
def test_no_wrong_value_anywhere_is_a_crash(everything, name, file):
    """Up to 30 values of a file are something else once; the page is made all the same."""
    draw, folder = random.Random(name + file), everything / name
    wrong = [None, "x", "", -1, 0, 1e308, 10**400, float("nan"), True, [], {}, [[1]], {"a": {}}]
    before = (folder / file).read_text()
    lines = before.splitlines() if file == "metrics.jsonl" else [before]
    parsed = [json.loads(line) for line in lines]
    paths = [path for path in leaves(parsed) if len(path) > 1]
    assert len(paths) > 20
    for path in draw.sample(paths, min(30, len(paths))):
        changed = replaced(parsed, path, draw.choice(wrong))
        (folder / file).write_text("\n".join(map(json.dumps, changed)) + "\n")
        context = context_of(folder)
        sections = make_sections(context)
        render_html(sections, "t")
        render_markdown(sections, "t")
        render_csv(context)


def test_a_sweep_shows_cells_that_left_no_run(tmp_path):
    sweep = tmp_path / "sweep"
    trained(sweep / "trials" / "c1" / "run1", config={"batch_size": 64})
    trained(sweep / "trials" / "c1" / "run2", 4000.0, config={"batch_size": 64})
    last = trained(sweep / "trials" / "c4" / "run1", config={"batch_size": 512}, status="running")
    lock = lock_run(last)
    cells = [
        {"key": "1", "status": "done", "run": "trials/c1/run2", "log": "trials/c1/run2.log"},
        {"key": "2", "status": "oom", "run": None, "log": "trials/c2/run1.log"},
        {"key": "3", "status": "timeout", "run": "../../outside", "log": "trials/c3/run1.log"},
    ]
    for cell, batch in zip(cells, (64, 128, 256), strict=True):
        cell |= {"experiment": "cnn10", "place": {"batch_size": str(batch)}, "reason": "so it was"}
        cell |= {"figures": {}, "wall_s": 1.0}
    lines = [json.dumps(cell) for cell in cells]
    (sweep / "results.jsonl").write_text("\n".join(lines) + '\n{"key": "4", "sta')
    collection = collect([str(tmp_path)])
    # The first attempt is superseded; the cell without a result is at work.
    assert [run.path.name for run in collection.runs] == ["run2", "run1"]
    rows = ReportContext(collection).measurements
    assert sorted((row.run.batch_size, row.run.status) for row in rows) == [
        (64, "done"),
        (128, "oom"),
        (256, "timeout"),
        (512, "running"),
    ]
    found = tables(sections_of(tmp_path)["batches"])["cnn10, training"]
    assert sorted(texts(row)[1] for row in found.rows) == ["OOM", "done", "running", "timeout"]
    # A corrupt line hides no other one.
    (sweep / "results.jsonl").write_text("\n".join(["nonsense", *lines]) + "\n")
    assert "results.jsonl: line 1 is corrupt" in page_of(tmp_path)
    again = ReportContext(collect([str(tmp_path)])).measurements
    assert [(row.run.batch_size, row.run.status) for row in again] == [
        (row.run.batch_size, row.run.status) for row in rows
    ]
    os.close(lock)


def test_a_cell_that_left_no_run_stands_with_its_sweep(tmp_path):
    sweep = tmp_path / "sweep"
    throughput(sweep / "trials" / "c1" / "run1", 1000.0, config={"batch_size": 64})
    cells = [
        {"key": "1", "status": "done", "run": "trials/c1/run1", "place": {"batch_size": "64"}},
        {"key": "2", "status": "oom", "run": None, "place": {"batch_size": "128"}},
        # Of another precision nothing is known but the mode.
        {"key": "3", "status": "oom", "place": {"batch_size": "64", "precision": "bf16"}},
    ]
    more = {"experiment": "cnn10", "figures": {}, "wall_s": 1.0}
    lines = "".join(json.dumps(cell | more) + "\n" for cell in cells)
    (sweep / "results.jsonl").write_text(lines)
    rows = ReportContext(collect([str(tmp_path)])).measurements
    assert [(row.run.mode, row.feed) for row in rows] == [
        ("throughput", "synthetic"),
        ("throughput", "synthetic"),
        ("throughput", UNKNOWN),
    ]
    table = tables(sections_of(tmp_path)["batches"])["cnn10, training step alone"]
    # The bf16 cell first, then all of fp32 below one heading.
    assert table.groups[1] == "1 × NVIDIA H200 · fp32 · synthetic feed" and len(table.groups) == 2
    assert [texts(row)[:2] for row in table.rows] == [["64", "OOM"], ["64", "done"], ["128", "OOM"]]


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
def test_a_logarithmic_axis_has_ticks_to_read_by(xs, ticks):
    line = Series("one", [Point(x, 1.0) for x in xs])
    chart = LineChart("t", "n", "x", "y", [line], Table(("a",), []), x_log=True)
    found = re.findall(r'y="272" text-anchor="middle">([^<]+)<', draw(chart))
    assert found == ticks


def test_a_long_label_of_a_dot_is_read_to_its_end():
    label = "R1 fp32, 8 devices, NVIDIA H200, data.image_shape=[224, 224, 3], 3.600 USD/h, spot"
    text = draw(DotChart("t", "n", "x", [Dot(label, 1.0), Dot("R2", 2.0)], Table(("a",), [])))
    shown = re.findall(r'text-anchor="end">([^<]+)<', text)
    assert " ".join(shown).startswith(label) and "R2" in shown


def test_points_that_are_not_joined_have_no_line_in_the_legend():
    assert "H29" in legend_mark(0) and "H29" not in legend_mark(0, joined=False)
    assert legend_mark(0, joined=False).count("<path") == 1


def test_environments_are_told_apart(tmp_path):
    trained(tmp_path / "a")
    trained(tmp_path / "b")
    trained(tmp_path / "c", environment={"versions": {"jax": "0.12.0"}})
    found = tables(sections_of(tmp_path)["runs"])
    rows = {texts(row)[0]: row for row in found["Where the environments differ"].rows}
    assert set(rows) == {"runs", "jax"}
    assert [cell.mark for cell in rows["jax"][1:]] == ["", "differs"]
    assert ["hostname", "lab"] in [texts(row) for row in found["Common environment"].rows]


def test_most_runs_say_what_is_usual(tmp_path):
    """One environment of three runs, two of one run each: two of three is not most."""
    for number in range(3):
        trained(tmp_path / f"a{number}", environment={"hostname": "big"})
    for number in range(2):
        place = {"hostname": "small", "python": f"3.{number}"}
        trained(tmp_path / f"b{number}", environment=place)
    found = tables(sections_of(tmp_path)["runs"])["Where the environments differ"]
    rows = {texts(row)[0]: row for row in found.rows}
    assert [cell.mark for cell in rows["hostname"][1:]] == ["", "differs", "differs"]


def test_published_rows_stand_beside_and_apart(tmp_path):
    trained(tmp_path / "same")
    trained(tmp_path / "small", parameters=31_000, experiment="cnn10:tiny")
    section = sections_of(tmp_path)["history"]
    table = tables(section)["cnn10 on cifar10: training"]
    marks = [row[1].mark for row in table.rows]
    assert marks.count("measured") == 2 and marks.count("published") == 15
    [oom] = [row for row in table.rows if "OOM" in texts(row)]
    assert texts(oom)[:3] == ["2,048", "published", "NVIDIA GeForce RTX 2080 Ti 11GB"]
    assert all("2019-05-14 [1]" in texts(row) for row in table.rows if row[1].mark == "published")
    assert "Qiita: RTX 2080 Ti SLI vs Google Colab TPU" in table.note
    other = [texts(row) for row in table.rows if "OTHER WORK" in texts(row)[-1]]
    assert [row[-2] for row in other] == ["R2"]
    [chart] = charts(section, DotChart)
    own = [dot for dot in chart.dots if not dot.published]
    assert [dot.value for dot in own] == [10.0] and own[0].label.endswith("R1")


def test_dots_beside_published_ones_are_of_one_setting(tmp_path):
    cpu = {"device_kind": "cpu", "num_devices": 1}
    trained(tmp_path / "a", 5000.0)
    trained(tmp_path / "b", 6000.0, config={"seed": 1})
    trained(tmp_path / "c", 2000.0, data={"feed": "stream"})
    trained(tmp_path / "d", 100.0, environment=cpu | {"cpu": "Xeon"})
    trained(tmp_path / "e", 300.0, environment=cpu | {"cpu": "EPYC"})
    section = sections_of(tmp_path)["history"]
    [chart] = charts(section, DotChart)
    own = {dot.label: round(dot.value, 2) for dot in chart.dots if not dot.published}
    assert sorted(own.values()) == [9.13, 25.0, 166.67, 500.0]
    [seeds] = [label for label, value in own.items() if value == 9.13]
    assert "resident" in seeds and seeds.endswith("R1, R2")
    assert any("stream" in label for label in own)
    assert any("cpu=Xeon" in label for label in own) and any("cpu=EPYC" in label for label in own)
    table = tables(section)["cnn10 on cifar10: training"]
    at = table.columns.index("feed")
    assert {texts(row)[at] for row in table.rows if row[1].mark == "measured"} == {
        "resident",
        "stream",
    }


RESNET = {"model": "ResNet", "parameters": 25_557_032, "experiment": "resnet50_synthetic"}
IMAGENET = {"image_shape": [224, 224, 3], "num_classes": 1000, "source": "synthetic"}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, None),
        ({"image_shape": [32, 32, 3]}, "images of 32×32×3"),
        ({"num_classes": 100}, "100 classes"),
    ],
)
def test_other_images_are_other_work(tmp_path, data, told):
    throughput(tmp_path / "run", 2500.0, config={"data": IMAGENET | data}, **RESNET)
    section = sections_of(tmp_path)["history"]
    table = tables(section)["resnet50: training, images/s"]
    [row] = [texts(row) for row in table.rows if row[0].mark == "measured"]
    assert row[table.columns.index("what")] == "training step alone"
    assert ("OTHER WORK" in row[-1]) == bool(told) and (told or "") in row[-1]
    drawn = [dot.label for c in charts(section, DotChart) for dot in c.dots if not dot.published]
    assert len(drawn) == (0 if told else 1)
    assert all("training step alone" in label for label in drawn)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"source": "tfds", "name": "cifar10"}, ""),
        ({"source": "tfds", "name": "svhn"}, "data set svhn"),
        ({"source": "synthetic"}, "synthetic images"),
    ],
)
def test_other_data_are_other_work(tmp_path, config, told):
    trained(tmp_path / "run", config={"data": config})
    table = tables(sections_of(tmp_path)["history"])["cnn10 on cifar10: training"]
    [row] = [texts(row) for row in table.rows if row[1].mark == "measured"]
    assert row[-1].endswith(f"OTHER WORK: {told}" if told else "cifar10 3.0.2")


def test_a_dot_of_one_run_is_no_median(tmp_path):
    throughput(tmp_path / "a", 1000.0)
    throughput(tmp_path / "b", 2000.0, config={"seed": 1})
    [chart, *_] = charts(sections_of(tmp_path)["rates"], DotChart)
    assert "a dot is one run" in chart.note and "of several runs" not in chart.note


def test_time_of_checkpoints_is_a_part(tmp_path):
    phases_s = {"train": 70.0, "checkpoint": 12.0, "restore": 3.0, "records": 4.0, "other": 1.0}
    phases_s |= {"init": 6.0, "init_from_images": 4.0}
    trained(tmp_path / "a", summary={"phases_s": phases_s})
    section = sections_of(tmp_path)["time"]
    found = tables(section)["Seconds"]
    row = dict(zip(found.columns, texts(found.rows[0]), strict=True))
    assert (row["checkpoints [s]"], row["other [s]"], row["adds up"]) == ("15.00", "5.000", "yes")
    assert row["initialise [s]"] == "10.00"
    [chart] = charts(section, BarChart)
    style = (ROOT / "jaxbench" / "reports" / "page.css").read_text()
    assert all(f".f{place} {{" in style for place in range(len(chart.parts)))


def test_goodput_is_shown_where_it_is_known(tmp_path):
    trained(tmp_path / "old")
    badput_s = {"startup": 30.0, "lost_work": 8.0, "down": 2.0, "new": 1.0}
    fields = {"goodput": 0.6, "badput_s": badput_s, "total_wall_s": 100.0, "num_resumes": 2}
    trained(tmp_path / "resumed", summary=fields)
    trained(tmp_path / "odd", summary={"goodput": 0.5, "badput_s": [1], "total_wall_s": "x"})
    found = tables(sections_of(tmp_path)["time"])["Goodput"]
    odd, row = (dict(zip(found.columns, texts(row), strict=True)) for row in found.rows)
    assert (row["goodput [%]"], row["resumes"], row["total wall [s]"]) == ("60.00", "2", "100.0")
    assert (row["lost_work [s]"], row["down [s]"], row["eval [s]"]) == ("8.000", "2.000", "–")
    assert odd["down [s]"] == odd["total wall [s]"] == "–"


def test_time_split_adds_up_or_says_that_it_does_not(tmp_path):
    trained(tmp_path / "a")
    trained(tmp_path / "b", summary={"wall_s": 130.0})
    section = sections_of(tmp_path)["time"]
    rows = [texts(row) for row in tables(section)["Seconds"].rows]
    assert [row[-3:] for row in rows] == [
        ["100.0", "100.0", "yes"],
        ["100.0", "130.0", "no: -23.08 % off"],
    ]
    [chart] = charts(section, BarChart)
    assert [sum(values) for _, values in chart.bars] == [100.0, 100.0]


def test_scaling_has_the_ideal_line(everything):
    [chart] = charts(sections_of(everything)["scaling"])
    measured, ideal = chart.series
    assert [point.y for point in ideal.points] == [1000.0, 2000.0, 4000.0]
    assert ideal.reference and not measured.reference


def test_roofline_has_a_roof(everything):
    [chart] = charts(sections_of(everything)["roofline"])
    roof = chart.series[-1]
    assert roof.reference
    assert max(point.y for point in roof.points) == pytest.approx(494_700)
    ridge = roof.points[1]
    assert ridge.x == pytest.approx(103.06, rel=1e-3) and ridge.y == pytest.approx(494_700)


def test_seeds_are_not_searched_among_all_others(tmp_path):
    """A seed is compared with no other run's, however many there are; a repeat is a line."""
    compared = []

    class Seed(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            compared.append(int(other))
            return int(self) == int(other)

    seeds = [*range(40), 7]
    runs = [read_run(f"R{n}", "", trained(tmp_path / f"{n}")) for n in range(len(seeds))]
    for run, seed in zip(runs, seeds, strict=True):
        run.config["seed"] = Seed(seed)
    lines = _lines(runs)
    assert [len(line) for line in lines] == [40, 1]
    assert 0 < len(compared) < 4 * len(seeds)


def test_buckets_keep_least_mean_and_most():
    times = np.arange(10_000.0)
    values = np.zeros(10_000)
    values[5_000] = 7.0
    points = buckets(singles(times, values))
    assert len(points) == 96
    assert max(point.high for point in points) == 7.0
    assert max(point.y for point in points) == pytest.approx(7 / (10_000 / 96), rel=0.01)
    assert sum(point.low for point in points) == 0


def test_samples_of_a_week_are_folded_while_they_are_read(tmp_path):
    """A reading of days is not kept: its mean, least, greatest and count are."""
    rows = [f"{second},gpu0,{second % 50}" for second in range(100_000)]
    rows[77_777] = "77777,gpu0,100"
    path = tmp_path / "telemetry.csv"
    path.write_text("\n".join(["elapsed_s,device,load_percent", *rows, "100000,gpu0,nan", ""]))
    readings, skipped = read_readings(path)
    curve = readings["gpu0"]["load_percent"]
    spans = curve.spans()
    assert len(spans) < 100_000 / 64 + 64 * 96 + 64 and len(curve.times) <= 64 * 96
    assert spans["count"].sum() == 100_000 and skipped == 0
    points = buckets(spans)
    assert len(points) == 96 and max(point.high for point in points) == 100
    assert min(point.low for point in points) == 0
    assert all(point.y == pytest.approx(24.5, abs=1) for point in points)


def test_the_longest_runs_have_panels_not_the_largest_files(tmp_path):
    for name, wall_s, rows in (("a", 10.0, 300), ("b", 500.0, 20), ("c", 400.0, 20)):
        write_telemetry(trained(tmp_path / name, summary={"wall_s": wall_s}), rows, ["gpu0"])
    # Of a run that was killed the last record with a time counts.
    killed = write_run(
        tmp_path / "d", epochs([9.0] * 40), status="killed", summary={"wall_s": None}
    )
    write_telemetry(killed, 20, ["gpu0"])
    drawn = charts(sections_of(tmp_path)["telemetry"])
    assert {chart.title[:2] for chart in drawn} == {"R2", "R4"}


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


def test_readings_stand_at_their_own_time(tmp_path):
    """One device is silent after a while; the others' rows go on, and it has none there."""
    folder = trained(tmp_path / "run")
    write_telemetry(folder, 40, ["gpu0", "gpu1"])
    lines = (folder / "telemetry.csv").read_text().splitlines(keepends=True)
    kept = [s for s in lines if not (",gpu0," in s and 10 <= float(s.split(",")[1]) < 30)]
    (folder / "telemetry.csv").write_text("".join(kept))
    [load, *_] = charts(sections_of(tmp_path)["telemetry"])
    assert list(load.table.groups.items()) == [(0, "gpu0"), (20, "gpu1")]
    rows = [texts(row) for row in load.table.rows]
    silent = [f"{second}.50" for second in range(10, 30)]
    assert [time for time, _ in rows[:20]] == [t for t, _ in rows[20:] if t not in silent]
    assert len(rows) == 60
    assert dict(rows[:20])["35.50"] == next(
        f"{float(s.split(',')[4]):.2f}" for s in kept if s.startswith("t,35.5,gpu0")
    )


def test_many_devices_are_split_evenly(tmp_path):
    folder = trained(tmp_path / "run")
    write_telemetry(folder, 5, [f"gpu{number}" for number in range(12)])
    loads = [c for c in charts(sections_of(tmp_path)["telemetry"]) if ": load" in c.title]
    assert [c.title[-8:] for c in loads] == ["(1 of 2)", "(2 of 2)"]
    assert [[s.label for s in c.series] for c in loads] == [
        [f"gpu{number}" for number in range(6)],
        [f"gpu{number}" for number in range(6, 12)],
    ]


def test_markdown_and_csv(everything):
    context = context_of(everything)
    markdown = render_markdown(make_sections(context), "t")
    widths = None
    for line in markdown.splitlines():
        if not line.startswith("|"):
            widths = None
            continue
        width = len(re.findall(r"(?<!\\)\|", line))
        assert widths in (None, width), line
        widths = width
    assert "| 4,096 | OOM |" in markdown.replace("1 × NVIDIA H200 · fp32 · resident feed | ", "")
    read = list(csv.DictReader(io.StringIO(render_csv(context))))
    own = [row for row in read if row["origin"] == "measured"]
    # Unknown is empty.
    assert not {"–", "None", "nan"} & {cell for row in read for cell in row.values()}
    assert [float(row["images_per_s"]) for row in own if row["name"] == "tp256"] == [2560.0]
    assert {row["run"] for row in own} == {run.id for run in context.runs}
    published = [row for row in read if row["origin"] == "published"]
    assert len(published) == 15 and all(row["source"] and not row["run"] for row in published)


def test_csv_text_is_no_formula(tmp_path):
    trained(tmp_path / "run", experiment='=HYPERLINK("x")')
    [row] = csv_rows(tmp_path)
    assert row["experiment"] == '\'=HYPERLINK("x")' and row["images_per_s"] == "5000.0"


@pytest.mark.parametrize("text", ["a\r=1+1", "\r=1+1", "a\n@x", "\x00-1", " =1+1", "\x0b+1"])
def test_no_line_or_cell_of_a_csv_file_begins_with_a_formula(tmp_path, text):
    trained(tmp_path / "run", experiment=text)
    SweepDir(tmp_path).write_table("sweep.csv", [{"reason": text}])
    [row] = csv_rows(tmp_path / "run")
    # As programs read it that end a line at a carriage return.
    _, *cells = (tmp_path / "sweep.csv").read_text().splitlines()
    assert cells == [row["experiment"]] == [inert_cell(text)]
    assert cells[0].isprintable() and cells[0].strip()[0] not in "=+-@"


def test_the_report_follows_no_link_that_lies_in_its_way(run_cli, tmp_path):
    trained(tmp_path / "run")
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "report.html.partial").symlink_to("precious")
    done = run_cli("run", module="jaxbench.report")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "precious").read_text() == "kept"
    assert "<html" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "report.html").is_symlink()


def csv_rows(*folders):
    read = csv.DictReader(io.StringIO(render_csv(context_of(*folders))))
    return [row for row in read if row["origin"] != "published"]


def figures(row, *names):
    return [float(row[name]) if row[name] else None for name in names]


# As they were before any was added; who reads by place counts on it.
FIRST_HEADER = (
    "origin,run,name,status,reason,experiment,network,parameters,data,train_examples,"
    "feed,mode,stage,precision,batch_size,num_devices,hardware,processor,hostname,"
    "framework,images_per_s,images_per_s_low,images_per_s_high,n,images_per_s_per_device,"
    "latency_p50_s,latency_p95_s,latency_p99_s,latency_steps,mfu,flops_per_byte,"
    "flops_per_s_per_device,compile_s,compile_cache,first_epoch_with_compile_s,"
    "median_epoch_s,total_s,epochs,figure,score,best_score,peak_memory_bytes,"
    "joules_per_image,date,source"
)


def test_csv_begins_with_the_columns_it_always_had():
    assert ",".join(COLUMNS).startswith(FIRST_HEADER)
    page = (ROOT / "docs/howto/report.md").read_text()
    assert all(f"`{name}`" in page for name in COLUMNS[FIRST_HEADER.count(",") + 1 :])


def test_csv_has_scaling_and_tells_what_is_predicted(tmp_path):
    measured = {
        "kind": "scaling",
        "scaling": "strong",
        "num_devices": 4,
        "batch_size": 128,
        "images_per_s": 3600.0,
        "images_per_s_low": 3500.0,
        "images_per_s_high": 3700.0,
        "efficiency": 0.9,
        "efficiency_low": 0.85,
        "efficiency_high": 0.95,
        "windows_s": [1.0] * 9,
        "status": "done",
    }
    lost = {"kind": "scaling", "scaling": "weak", "num_devices": 8, "batch_size": 4096}
    lost |= {"status": "oom", "reason": "out of memory", "images_per_s": None, "efficiency": None}
    prediction = {
        "scaling": "weak",
        "num_devices": 64,
        "batch_per_device": 32,
        "images_per_s_no_overlap": 50_000.0,
        "images_per_s_full_overlap": 60_000.0,
        "efficiency_no_overlap": 0.8,
        "efficiency_full_overlap": 0.96,
        "link_source": "stated (--link_gb_per_s)",
    }
    write_run(
        tmp_path / "run",
        [measured, lost],
        mode="scaling",
        summary={"predictions": [prediction], "compile_s": 3.0, "peak_memory_bytes": 7},
    )
    strong, weak, *predicted = csv_rows(tmp_path)
    names = ("num_devices", "batch_size", "images_per_s", "images_per_s_low", "images_per_s_high")
    shares = ("efficiency", "efficiency_low", "efficiency_high", "n", "images_per_s_per_device")
    assert (strong["origin"], strong["run"], strong["mode"]) == ("measured", "R1", "scaling")
    assert (strong["stage"], strong["scaling"], strong["status"]) == ("scaling", "strong", "done")
    assert figures(strong, *names) == [4, 128, 3600, 3500, 3700]
    assert figures(strong, *shares) == [0.9, 0.85, 0.95, 9, 900]
    assert strong["hardware"] == "4 × NVIDIA H200"
    assert (weak["scaling"], weak["status"], weak["reason"]) == ("weak", "oom", "out of memory")
    assert figures(weak, "num_devices", "images_per_s", "n") == [8, None, None]
    # Of what is predicted there is neither n nor an interval, nor was anything compiled.
    assert [row["origin"] for row in predicted] == ["predicted"] * 2
    assert [row["overlap"] for row in predicted] == ["none", "full"]
    shown = tables(sections_of(tmp_path)["scaling"])["Predicted, not measured"]
    assert texts(shown.rows[0])[shown.columns.index("scaling")] == "weak"
    for row, rate, share in zip(predicted, (50_000, 60_000), (0.8, 0.96), strict=True):
        assert figures(row, *names) == [64, 64 * 32, rate, None, None]
        assert figures(row, *shares) == [share, None, None, None, rate / 64]
        assert figures(row, "compile_s", "peak_memory_bytes") == [None, None]
        assert "stated (--link_gb_per_s)" in row["source"]


def test_csv_has_every_part_of_a_convolution(tmp_path):
    def cell(devices):
        return {
            "kind": "conv2d",
            "devices": devices,
            **{"images": 840, "height": 100, "width": 90, "channels": 3, "filters": 1},
            **{"kernel": 5, "lower_s": 0.25, "compile_s": 0.5, "first_use_s": 1.0},
            **{"host_to_device_s": 0.004, "compute_s": 0.002, "device_to_host_s": 0.001},
            "scipy_s": 0.4,
            "samples": {
                "host_to_device_s": [0.003, 0.004, 0.005],
                "compute_s": [0.001, 0.001, 0.002, 0.002, 0.004, 0.004],
                "device_to_host_s": [0.001, 0.001],
                "scipy_s": [0.4],
            },
        }

    write_run(tmp_path / "run", [cell(1), cell(2)], mode="conv2d")
    rows = csv_rows(tmp_path)
    parts = ["compile", "first_use", "host_to_device", "compute", "device_to_host"]
    # SciPy did it once, on the host, whatever the number of devices.
    assert [row["stage"] for row in rows] == [*parts, "scipy", *parts]
    assert {row["run"] for row in rows} == {"R1"}
    problem = ("kernel", "channels", "filters", "height", "width", "images")
    assert all(figures(row, *problem) == [5, 3, 1, 100, 90, 840] for row in rows)
    by_stage = {row["stage"]: row for row in rows[6:]}
    times = ("num_devices", "time_s", "time_s_low", "time_s_high", "n")
    assert figures(by_stage["compile"], *times) == [2, 0.75, None, None, 1]
    assert figures(by_stage["host_to_device"], *times) == [2, 0.004, None, None, 3]
    assert figures(by_stage["device_to_host"], *times) == [2, 0.001, None, None, 2]
    rates = ("images_per_s", "images_per_s_low", "images_per_s_high", "images_per_s_per_device")
    assert figures(by_stage["compute"], *rates) == [420_000, 210_000, 840_000, 210_000]
    assert figures(rows[5], *times, *rates) == [None, 0.4, None, None, 1, 2100, None, None, None]
    assert rows[5]["hardware"] == "1 CPU thread"
    # The page has the same interval, and how many rounds it is of.
    found = sections_of(tmp_path)
    shown = tables(found["conv2d"])["Every part"]
    cells = dict(zip(shown.columns, texts(shown.rows[0]), strict=True))
    assert cells["compute [ms]"] == "2.000 (1.000 to 4.000)" and cells["n"] == "6"
    assert cells["host to device [ms]"] == "4.000"


def test_csv_has_the_way_to_a_target(tmp_path):
    reached = {"score": "top1", "value": 0.4, "reached": True, "energy_j": 7200.0}
    never = {"score": "top1", "value": 0.99, "reached": False, "energy_j": None}
    price = {"usd_per_hour": 3.6, "date": "2026-03-04", "source": "me", "offer": "x"}
    trained(
        tmp_path / "a",
        summary={"target_accuracy": reached},
        price=price,
        training_flops_per_image=10,
    )
    trained(tmp_path / "b", summary={"target_accuracy": never})
    trained(tmp_path / "c")
    own = csv_rows(tmp_path)
    assert figures(own[1], "training_flops") == [998_400]
    assert [(row["run"], row["stage"]) for row in own] == [
        ("R1", "training"),
        ("R1", "to_target"),
        ("R2", "training"),
        ("R2", "to_target"),
        ("R3", "training"),
    ]
    names = ("target", "epoch", "time_s", "images", "n", "score", "images_per_s")
    # Its score is that of the epoch that reached it: the second of four that end at 0.9.
    assert figures(own[1], *names) == [0.4, 2, 31.5, 99_840, 1, 0.45, None]
    costs = ("energy_j", "usd_per_hour", "usd")
    assert figures(own[0], *costs) == [None, 3.6, pytest.approx(0.1)]
    assert figures(own[1], *costs) == [7200, 3.6, pytest.approx(0.0315)]
    assert own[1]["price"] == "x; 2026-03-04, me"
    assert figures(own[3], *costs) == [None, None, None]
    assert figures(own[3], *names) == [0.99, None, None, None, 1, None, None]
    assert (own[1]["target_reached"], own[3]["target_reached"]) == ("True", "False")
    assert figures(own[0], "target", "time_s") == [None, None]


@pytest.fixture
def run_report(run_cli):
    """Runs `python -m jaxbench.report` in this process, in `tmp_path`."""
    return lambda *args: run_cli(*map(str, args), module="jaxbench.report")


def test_command_line(everything, tmp_path, run_report):
    for form in ("html", "md", "csv"):
        done = run_report(everything, f"--format={form}")
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / f"report.{form}").stat().st_size > 1000
    # A report is written over, and the same again; nothing else is.
    first = (tmp_path / "report.html").read_bytes()
    assert run_report(everything).returncode == 0
    assert (tmp_path / "report.html").read_bytes() == first
    # So is one of a version that had fewer columns.
    (tmp_path / "report.csv").write_text(FIRST_HEADER + "\n")
    assert run_report(everything, "--format=csv").returncode == 0
    (tmp_path / "thesis.html").write_text("years of work")
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "nothing.html").symlink_to(tmp_path / "gone.html")
    # A link stays one.
    (tmp_path / "link.html").symlink_to(tmp_path / "report.html")
    assert run_report(everything, "--out=link.html", "--title=new").returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert "<title>new</title>" in (tmp_path / "report.html").read_text()
    empty = tmp_path / "empty"
    empty.mkdir()
    for args, told in (
        ([], "give at least one DIR"),
        (["nowhere"], "nowhere: no such folder"),
        (["thesis.html"], "is a file; name a folder"),
        ([empty], "holds no run directory"),
        ([everything, "--out=thesis.html"], "is no report; it is not overwritten"),
        ([everything, "--out=no/such/x.html"], "no such folder"),
        ([everything, f"--out={empty}"], "is a folder"),
        ([everything, "--out="], "must name a file"),
        ([everything, "--format=pdf"], "format"),
        ([everything, "--format=md", "--out=x.html"], "are two formats"),
        ([everything, "--out=x.txt"], "ends in none of .html, .md, .csv"),
        ([everything, "--out=pipe.html"], "is no regular file"),
        ([everything, "--out=/dev/null", "--format=html"], "is no regular file"),
        ([everything, "--out=nothing.html"], "is a link to nothing"),
    ):
        failed = run_report(*args)
        assert failed.returncode == 2, args
        assert told in failed.stderr and failed.stderr.count("\n") == 1
    assert (tmp_path / "thesis.html").read_text() == "years of work"


def test_a_folder_without_runs_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="holds no run directory"):
        collect([str(tmp_path)])


def test_a_run_given_twice_stands_once(tmp_path):
    trained(tmp_path / "a" / "run")
    collection = collect([str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "run")])
    assert len(collection.runs) == 1


def test_names_of_folders_steer_no_terminal(tmp_path):
    run = read_run("a\033[31mb", "a\033[31mb", tmp_path / "none")
    assert run.id == run.name == "a?[31mb"


def test_markdown_steers_no_terminal():
    text = render_markdown([Section("a", "b\033[2J", "c\x9b1m", ["d\033]0;e\a"])], "f\x00")
    assert all(letter.isprintable() or letter == "\n" for letter in text)
