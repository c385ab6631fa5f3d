"""What a report says of machines that are not here: never as if it had been measured."""

import itertools
import json
import random

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.errors import BadInput
from jaxbench.reports.blocks import DotChart
from jaxbench.reports.collect import collect
from jaxbench.reports.compiled import CompiledStep, largest_batch
from jaxbench.reports.context import ReportContext
from jaxbench.reports.csv_rows import render_csv
from jaxbench.reports.markdown import render_markdown
from jaxbench.reports.page import render_html
from jaxbench.reports.plot import Axis, draw
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs import read_run
from jaxbench.reports.sections import make_sections
from jaxbench.reports.write import write_report
from jaxbench.results.tables import run_row
from tests.in_process import run_command
from tests.reports.test_report import (
    charts,
    csv_rows,
    leaves,
    replaced,
    tables,
    texts,
    throughput,
    write_run,
)

GIB = 2**30
SAYS = "What the compilers say"


def compiled(folder, target="gpu:rtx2080ti:2", batch=128, fits=True, **fields):
    """A run of `--target`, whose step needs a GiB for 128 images a device and may use eight."""
    kind, devices = {
        "gpu:rtx2080ti:2": ("GeForce RTX 2080 Ti", 2),
        "gpu:h100:8": ("NVIDIA H100 80GB HBM3", 8),
        "tpu:v2:2x2": ("TPU v2", 8),
    }[target]
    record = {
        "kind": "target",
        "target": target,
        "origin": "compiled",
        "compiler": "jax-cuda12-plugin 0.10.2",
        "device_kind": kind,
        "num_devices": devices,
        "batch_size": batch,
        "batch_per_device": batch // devices,
        "precision": "fp32",
        "device_memory_bytes": 8 * GIB,
        "fits": fits,
        "needed_bytes": batch * GIB // 128,
        "compile_s": 12.5,
        "collectives": {"all-reduce": {"count": 1, "bytes": 3_000_000, "largest_bytes": 1}},
        "ceiling": {
            "images_per_s": 20_000.0 * devices,
            "bound_by": "memory",
            "assumptions": "all at once",
            "peak": {"arithmetic": "fp32"},
        },
        **fields.pop("record", {}),
    }
    own = {
        "mode": "compile",
        "target": target,
        "model": "Cnn10",
        "parameters": 1_900_000,
        "status": "done" if fits else "oom",
        "reason": None if fits else f"{target}: the step needs more",
        "summary": {"compile_s": 12.5, "ceiling_images_per_s": 1.0, "phases_s": {"compile": 12.5}},
        **fields,
        "config": {"batch_size": batch} | fields.get("config", {}),
        "environment": {"device_kind": kind, "num_devices": devices},
    }
    return write_run(folder, [record], **own)


def section_from(context):
    return {section.name: section for section in make_sections(context)}["before-you-rent"]


def section_of(folder, prices=None):
    return section_from(ReportContext(collect([str(folder)]), prices or Prices()))


def rows_of(folder, prices=None, title=SAYS):
    table = tables(section_of(folder, prices))[title]
    return [dict(zip(table.columns, texts(row), strict=True)) for row in table.rows]


def search(folder, batches, **fields):
    """A sweep for the largest batch; batches: {batch: whether it fits}, in the order of trials."""
    for batch, fits in batches.items():
        compiled(folder / "trials" / f"b{batch}" / "run1", batch=batch, fits=fits, **fields)
        result = {"place": {"batch_size": str(batch)}, "status": "done" if fits else "oom"}
        result |= {"key": f"k{batch}", "run": f"trials/b{batch}/run1"}
        result |= {"figures": {}, "wall_s": 1.0, "log": f"trials/b{batch}/run1.log"}
        with open(folder / "results.jsonl", "a") as file:
            file.write(json.dumps(result) + "\n")
    (folder / "max_batch.csv").write_text("target,status,max_batch\ngpu:rtx2080ti:2,done,1024\n")


def test_a_row_has_what_the_compiler_said(tmp_path):
    compiled(tmp_path / "a")
    compiled(tmp_path / "b", "gpu:h100:8", precision="fp32")
    compiled(tmp_path / "c", "gpu:h100:8", config={"precision": "bf16"})
    compiled(tmp_path / "d", "gpu:h100:8", config={"remat": "blocks"})
    rows = rows_of(tmp_path)
    assert [row["target"] for row in rows] == ["gpu:rtx2080ti:2"] + ["gpu:h100:8"] * 3
    assert [row["precision"] for row in rows] == ["fp32", "fp32", "bf16", "fp32"]
    assert [row["setting"] for row in rows] == ["–", "remat=–", "remat=–", "remat=blocks"]
    first = rows[0]
    assert first["machine"] == "2 × GeForce RTX 2080 Ti"
    assert first["fits (compiled)"] == "yes" and first["batch"] == "128"
    assert (first["GiB a device (compiled)"], first["of GiB usable"]) == ("1.00", "8.00")
    assert first["ceiling images/s (predicted)"] == "40,000"
    assert first["bound by (predicted)"] == "memory"
    assert first["compiling took [s]"] == "12.50"
    assert "measured images/s" not in first  # nobody did
    assert "all at once" in tables(section_of(tmp_path))[SAYS].note


def test_bytes_moved_are_compared_with_the_least(tmp_path):
    name = "bytes moved, times the least (predicted)"
    compiled(tmp_path / "a", record={"moved_bytes": 3_000_000})  # attention has no least
    assert name not in rows_of(tmp_path)[0]
    bytes_ = {"moved_bytes": 3_000_000, "bytes_lower_bound": 2_000_000}
    compiled(tmp_path / "b", "gpu:h100:8", record=bytes_)
    assert [row[name] for row in rows_of(tmp_path)] == ["–", "1.500"]
    assert "Bytes moved:" in tables(section_of(tmp_path))[SAYS].note


def test_a_language_model_has_sequences(tmp_path):
    for number, target in enumerate(("gpu:rtx2080ti:2", "gpu:h100:8")):
        compiled(tmp_path / str(number), target, config={"data": {"sequence_length": 1024}})
    [chart] = charts(section_of(tmp_path), DotChart)
    assert chart.x_label == "sequences/s" and "sequences/s at most" in chart.title
    assert "An image of a language model is a sequence." in chart.table.note


def test_what_does_not_fit_has_its_reason_and_no_ceiling(tmp_path):
    compiled(tmp_path / "a", fits=False, record={"refusal": "no", "ceiling": None})
    compiled(tmp_path / "b", "gpu:h100:8", fits=False)  # compiled, but larger than the memory
    write_run(tmp_path / "c", mode="compile", target="tpu:v2:2x2", status="failed")
    refused, large, crashed = rows_of(tmp_path)
    assert refused["fits (compiled)"] == large["fits (compiled)"] == "no"
    assert refused["why not"] == "the step needs more"
    assert crashed["fits (compiled)"] == "failed" and crashed["why not"] == "out of luck"
    assert refused["largest batch (compiled)"] == "none; not 128"
    assert crashed["largest batch (compiled)"] == "–"
    assert "ceiling images/s (predicted)" not in refused
    assert charts(section_of(tmp_path), DotChart) == []


@pytest.mark.parametrize(
    ("tried", "told"),
    [
        ({128: True}, "at least 128"),
        ({128: True, 512: True, 2048: False, 1024: False}, "512; not 1,024"),
        # A compiler may refuse a batch and accept a larger one.
        ({64: False, 128: True, 256: False}, "128; not 256"),
        ({128: False, 64: False}, "none; not 64"),
        ({128: None}, "–"),
        ({}, "–"),
    ],
)
def test_the_largest_batch_is_derived(tmp_path, tried, told):
    steps = []
    for batch, fits in tried.items():
        run = read_run("R1", "r", compiled(tmp_path / str(batch), batch=batch))
        steps.append(CompiledStep(run, {"fits": fits}, None))
    assert str(largest_batch(steps)) == told


def test_a_search_is_its_first_batch_and_the_largest(tmp_path):
    search(tmp_path / "max", {128: True, 512: True, 2048: False, 1024: True, 1152: False})
    # The search of another precision, which is not the same step.
    search(tmp_path / "bf16", {128: False, 64: True}, config={"precision": "bf16"})
    rows = rows_of(tmp_path)
    found = [(row["precision"], row["batch"], row["largest batch (compiled)"]) for row in rows]
    assert found == [
        ("bf16", "128", "64; not 128"),
        ("bf16", "64", "64; not 128"),
        ("fp32", "128", "1,024; not 1,152"),
        ("fp32", "1,024", "1,024; not 1,152"),
    ]


def test_the_batches_of_a_grid_are_all_there(tmp_path):
    for batch in (64, 128, 256):
        compiled(tmp_path / str(batch), batch=batch, fits=batch < 256)
    rows = rows_of(tmp_path)
    assert [row["batch"] for row in rows] == ["128", "256", "64"]
    assert {row["largest batch (compiled)"] for row in rows} == {"128; not 256"}


def test_a_price_is_of_the_machine_and_as_many_devices(tmp_path):
    compiled(tmp_path / "a", "gpu:h100:8")
    offers = [
        Price("dear", "NVIDIA H100 80GB HBM3", 8, 57.6, "2026-03-04", "a page"),
        Price("cheap", "8x NVIDIA H100 80GB HBM3", 8, 28.8, "2026-03-04", "a page"),
        Price("one", "NVIDIA H100 80GB HBM3", 1, 0.1, "2026-03-04", "a page"),
        Price("other", "NVIDIA H200", 8, 0.1, "2026-03-04", "a page"),
    ]
    [row] = rows_of(tmp_path, Prices(listed=offers))
    # 28.8 USD/h are 0.008 USD/s, in which 160,000 images pass.
    assert row["USD per million images at the ceiling (predicted)"] == "0.05000"
    assert row["price"] == "28.80 USD/h; cheap; 2026-03-04, a page"
    [other] = rows_of(tmp_path, Prices(stated=offers[-1]))
    assert "price" not in other


def test_what_was_measured_of_the_same_work_stands_beside(tmp_path):
    compiled(tmp_path / "a")
    hardware = {"device_kind": "NVIDIA GeForce RTX 2080 Ti", "num_devices": 2}
    throughput(tmp_path / "b", 9000.0, environment=hardware)
    throughput(tmp_path / "c", 9500.0, environment=hardware, config={"batch_size": 512})
    for name, fields in {
        "one": {"environment": hardware | {"num_devices": 1}},
        "half": {"environment": hardware, "config": {"precision": "fp16"}},
        "shape": {"environment": hardware, "config": {"data": {"image_shape": [9, 9, 3]}}},
        "other": {"environment": hardware, "experiment": "mine"},
        "failed": {"environment": hardware, "status": "failed"},
    }.items():
        throughput(tmp_path / name, 99_999.0, **fields)
    [row] = rows_of(tmp_path)
    assert row["measured images/s"] == "9,000 (training step alone, R2)"
    table = tables(section_of(tmp_path))[SAYS]
    cell = table.rows[0][table.columns.index("measured images/s")]
    assert (cell.mark, cell.run) == ("measured", "R2")
    [chart] = charts(section_of(tmp_path), DotChart)
    [dot] = chart.dots
    assert dot.value == 40_000 and [own.value for own in dot.below][0] == 9000
    drawn = draw(chart)
    assert 'class="dot ceiling"' in drawn and 'class="dot measured"' in drawn
    assert chart.x_log and "predicted" in chart.note


def test_another_batch_is_told(tmp_path):
    compiled(tmp_path / "a", "gpu:h100:8")
    hardware = {"device_kind": "NVIDIA H100 80GB HBM3", "num_devices": 8}
    throughput(tmp_path / "b", 9000.0, environment=hardware, config={"batch_size": 512})
    [row] = rows_of(tmp_path)
    assert row["measured images/s"] == "9,000 (batch 512, training step alone, R2)"


def test_what_was_published_of_the_machine_stands_beside(tmp_path):
    compiled(tmp_path / "a")
    compiled(tmp_path / "b", config={"precision": "fp16"}, record={"ceiling": None})
    compiled(tmp_path / "c", "gpu:h100:8")
    compiled(tmp_path / "d", config={"model": {"channels": 8}}, parameters=300_000)
    compiled(tmp_path / "e", experiment="cnn10:tiny", model="Mlp")
    v2 = {"ceiling": {"images_per_s": 1e5, "bound_by": "links", "peak": {"arithmetic": "bf16"}}}
    compiled(tmp_path / "f", "tpu:v2:2x2", record=v2)
    resnet = {"model": "ResNet", "parameters": 25_600_000}
    compiled(tmp_path / "g", "tpu:v2:2x2", experiment="resnet50_synthetic", record=v2, **resnet)
    small = {"data": {"image_shape": [9, 9, 3]}}
    compiled(tmp_path / "h", "tpu:v2:2x2", experiment="cnn10_small", record=v2, config=small)
    rows = rows_of(tmp_path)
    found = [(row["target"], row["published images/s"]) for row in rows]
    assert sorted(found) == sorted(
        [
            ("gpu:rtx2080ti:2", "5,537"),  # 50,000 images in 9.03 s
            ("gpu:rtx2080ti:2", "–"),
            ("gpu:h100:8", "–"),
            ("gpu:rtx2080ti:2", "–"),
            ("gpu:rtx2080ti:2", "–"),
            ("tpu:v2:2x2", "7,123"),
            ("tpu:v2:2x2", "3,186"),  # its eight devices are the four chips of the source
            ("tpu:v2:2x2", "–"),
        ]
    )
    assert rows[0]["published with"] == "fp32, batch 2,048, 2019-05-14 [1]"
    assert "[1] Qiita" in (note := tables(section_of(tmp_path))[SAYS].note)
    assert "[2] Habr" in note and "[3]" not in note
    dots = [dot for chart in charts(section_of(tmp_path), DotChart) for dot in chart.dots]
    assert sum(own.published for dot in dots for own in dot.below) == 3


def test_scaling_has_a_table_of_its_own(tmp_path):
    efficiency = {"efficiency_no_overlap": 0.5, "efficiency_full_overlap": 0.75}
    record = {"scaling": "weak"} | efficiency
    compiled(tmp_path / "a", "gpu:h100:8", scaling="weak", record=record)
    [row] = rows_of(tmp_path, title="Scaling, predicted")
    assert row["scaling"] == "weak" and row["devices"] == "8"
    assert row["efficiency [%], nothing hidden (predicted)"] == "50.00"
    assert row["MB exchanged (compiled)"] == "3.000" and row["fits (compiled)"] == "yes"
    assert SAYS not in tables(section_of(tmp_path))


def test_nothing_compiled_is_in_a_section_of_what_was_measured(tmp_path):
    search(tmp_path / "max", {128: True, 256: False})
    compiled(tmp_path / "scaled", "gpu:h100:8", scaling="weak", record={"scaling": "weak"})
    price = {"usd_per_hour": 3.0, "date": "2026-03-04", "source": "a page"}
    compiled(tmp_path / "tpu", "tpu:v2:2x2", price=price)
    made = make_sections(ReportContext(collect([str(tmp_path)]), Prices(usd_per_kwh=0.2)))
    assert [section.name for section in made] == ["before-you-rent", "runs"]
    assert "4 of them were compiled for machines that are not here" in made[1].lead
    assert list(tables(made[1])) == ["Runs"]  # no warnings, no environment
    # Beside a measured run all else is as if they were not there.
    alone = throughput(tmp_path / "only" / "own", 5000.0)
    both = make_sections(ReportContext(collect([str(tmp_path)])))
    own = make_sections(ReportContext(collect([str(alone.parent)])))
    for section in own:
        [same] = [other for other in both if other.name == section.name]
        if section.name != "runs":
            lines = [render_markdown([one], "t").replace("R3", "R1") for one in (section, same)]
            assert lines[0] == lines[1], section.name


def test_a_trial_whose_compiler_crashed_is_a_row(tmp_path):
    search(tmp_path / "max", {128: True})
    lost = {"key": "k", "status": "failed", "reason": "killed", "experiment": "cnn10"}
    lost |= {"place": {"target": "gpu:h100:8"}, "figures": {}, "wall_s": 1.0}
    with open(tmp_path / "max" / "results.jsonl", "a") as file:
        file.write(json.dumps(lost) + "\n")
    rows = rows_of(tmp_path)
    assert [row["fits (compiled)"] for row in rows] == ["yes", "failed"]
    assert rows[1]["why not"] == "killed" and rows[1]["target"] == "gpu:h100:8"
    made = make_sections(ReportContext(collect([str(tmp_path)])))
    assert [section.name for section in made] == ["before-you-rent", "runs"]


def test_csv_says_what_is_compiled_and_what_predicted(tmp_path):
    compiled(tmp_path / "a")
    compiled(tmp_path / "b", "gpu:h100:8", fits=False)
    found = csv_rows(tmp_path)
    told = [(row["origin"], row["stage"], row["machine"], row["fits"]) for row in found]
    assert told == [
        ("compiled", "compile", "gpu:rtx2080ti:2", "True"),
        ("predicted", "ceiling", "gpu:rtx2080ti:2", ""),
        ("compiled", "compile", "gpu:h100:8", "False"),
    ]
    assert [row["images_per_s"] for row in found] == ["", "40000.0", ""]
    assert "measured" not in render_csv(ReportContext(collect([str(tmp_path)])))


def test_compare_and_cost_say_that_nothing_was_measured(tmp_path):
    folder = compiled(tmp_path / "a")
    for command, *more in (["compare", "a"], ["cost", "--usd_per_hour=2"]):
        done = run_command(tmp_path, "a", *more, module=f"jaxbench.{command}")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "compiled for gpu:rtx2080ti:2, and nothing was measured" in done.stderr
    row = run_row(read_run("R1", "r", folder))
    assert (row["mode"], row["target"]) == ("compile", "gpu:rtx2080ti:2")
    assert row["images_per_s"] is None


def test_a_section_can_be_written_alone(tmp_path):
    compiled(tmp_path / "runs" / "a")
    out = tmp_path / "table.md"
    write_report([str(tmp_path / "runs")], str(out), section="before-you-rent")
    headings = [line for line in out.read_text().splitlines() if line.startswith("#")]
    assert headings == ["# jaxbench: runs", "## Before you rent", f"### {SAYS}"]
    # A link would lead to a table of runs that is not there.
    sections = [section_of(tmp_path)]
    assert 'href="#R1"' not in render_html(sections, "t")
    for given, told in (("before-you-ren", "did you mean"), ("rates", "it has before-you-rent")):
        with pytest.raises(BadInput, match=told):
            write_report([str(tmp_path / "runs")], str(tmp_path / "no.md"), section=given)
    with pytest.raises(BadInput, match="CSV has no sections"):
        write_report([str(tmp_path / "runs")], str(tmp_path / "no.csv"), section="runs")
    assert not (tmp_path / "no.md").exists() and not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
def test_no_wrong_value_of_a_compiled_run_is_a_crash(tmp_path, file):
    """Up to 25 values of a file are something else once; the page is made all the same."""
    draw = random.Random(file)
    folder = compiled(tmp_path / "a", record={"scaling": None})
    scaled = compiled(tmp_path / "b", "gpu:h100:8", scaling="weak", record={"scaling": "weak"})
    compiled(tmp_path / "c", batch=256)
    wrong = [None, "x", "", -1, 0, 1e308, 10**400, float("nan"), True, [], {}, [[1]], {"a": {}}]
    for path in (folder / file, scaled / file):
        before = path.read_text()
        parsed = [*map(json.loads, before.splitlines() if path.suffix == ".jsonl" else [before])]
        paths = [leaf for leaf in leaves(parsed) if len(leaf) > 1]
        for leaf in draw.sample(paths, 25):
            changed = replaced(parsed, leaf, draw.choice(wrong))
            path.write_text("\n".join(map(json.dumps, changed)) + "\n")
            context = ReportContext(collect([str(tmp_path)]))
            found = section_from(context)
            render_html([found], "t")
            render_markdown([found], "t")
            render_csv(context)
        path.write_text(before)


@pytest.mark.parametrize("values", [(5_537, 160_000), (5_000, 9_000), (90_000, 120_000), (1, 1e9)])
def test_numbers_below_a_narrow_logarithmic_axis_are_apart(values):
    axis = Axis(values, 270.0, 430.0, log=True)
    places = [axis(tick) for tick in axis.ticks]
    assert places and all(b - a >= 50 for a, b in itertools.pairwise(places))
