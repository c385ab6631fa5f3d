"""What a report says of machines that are not here: never as if it had been measured."""

import itertools

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.rate import Estimate
from jaxbench.reports.blocks import DotChart
from jaxbench.reports.plot import Axis, draw
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs import read_run
from jaxbench.reports.runs_table import run_row
from jaxbench.reports.write import render_html, render_markdown, write_report
from tests.conftest import refusal
from tests.recorded import PRICE, compiled, throughput, write_results
from tests.reports.pages import charts, rows_of, sections_of, shown, tables

SAYS = "By machine"
RTX = {"device_kind": "NVIDIA GeForce RTX 2080 Ti", "num_devices": 2}


def section_of(folder, **asked):
    return sections_of(folder, **asked)["before-you-rent"]


def told(folder, *names, **asked):
    """The rows of the table, or some of their columns, as lines."""
    table = tables(section_of(folder, **asked))[SAYS]
    return "\n".join(" | ".join(row[name] for name in names) for row in rows_of(table))


def search(folder, batches, **fields):
    """A sweep for the largest batch; batches: {batch: whether it fits}, in the order of trials."""
    for batch, fits in batches.items():
        run = f"trials/b{batch}/run1"
        compiled(folder / run, batch=batch, fits=fits, **fields)
        status = "done" if fits else "oom"
        trial = {"key": run, "run": run, "status": status, "place": {"batch_size": str(batch)}}
        write_results(folder, trial)
    (folder / "max_batch.csv").write_text("target,status,max_batch\ngpu:rtx2080ti:2,done,1024\n")


def test_a_language_model_has_sequences(tmp_path):
    for number, target in enumerate(("gpu:rtx2080ti:2", "gpu:h100:8")):
        compiled(tmp_path / str(number), target, config={"data": {"sequence_length": 1024}})
    section = section_of(tmp_path)
    [chart] = charts(section, DotChart)
    assert chart.x_label == "sequences/s" and "sequences/s to expect" in chart.title
    [table] = tables(section).values()
    assert "An image of a language model is a sequence." in table.note


LARGEST = ("precision", "global batch", "largest batch (compiled)")


@pytest.mark.parametrize(
    "tried",
    [
        {128: True},
        {128: True, 512: True, 2048: False, 1024: False},
        # A compiler may refuse a batch and accept a larger one.
        {64: False, 128: True, 256: False},
        {128: False, 64: False},
    ],
)
def test_the_largest_batch_of_a_grid_is_derived(tmp_path, tried, snapshot):
    for batch, fits in tried.items():
        compiled(tmp_path / str(batch), batch=batch, fits=fits)
    assert told(tmp_path, *LARGEST) == snapshot


def test_a_search_is_its_first_batch_and_the_largest(tmp_path, snapshot):
    search(tmp_path / "max", {128: True, 512: True, 2048: False, 1024: True, 1152: False})
    # The search of another precision, which is not the same step.
    search(tmp_path / "bf16", {128: False, 64: True}, config={"precision": "bf16"})
    assert told(tmp_path, *LARGEST) == snapshot


def test_a_price_is_of_the_machine_and_as_many_devices(tmp_path):
    compiled(tmp_path / "a", "gpu:h100:8")
    offers = [
        Price("dear", "NVIDIA H100 80GB HBM3", 8, 57.6, "2026-03-04", "a page"),
        Price("cheap", "8x NVIDIA H100 80GB HBM3", 8, 28.8, "2026-03-04", "a page"),
        Price("one", "NVIDIA H100 80GB HBM3", 1, 0.1, "2026-03-04", "a page"),
        Price("other", "NVIDIA H200", 8, 0.1, "2026-03-04", "a page"),
    ]
    names = ("USD per million images (predicted)", "USD, 80 % interval (predicted)", "price")
    # 28.8 USD/h are 0.008 USD/s, in which 24,000 images pass.
    row = "0.3333 | 0.2667 to 0.4167 | 28.80 USD/h; cheap; 2026-03-04, a page"
    assert told(tmp_path, *names, prices=Prices(listed=offers)) == row
    section = section_of(tmp_path, prices=Prices(stated=offers[-1]))
    assert "price" not in tables(section)[SAYS].columns


def test_the_cheapest_is_first_and_overlapping_intervals_share_ranks(tmp_path):
    rates = {"gpu:rtx2080ti:2": 2_000.0, "gpu:h100:8": 48_000.0, "tpu:v2:2x2": 20_000.0}
    for number, (target, rate) in enumerate(rates.items()):
        predicted = Estimate(rate, 0.8 * rate, 1.25 * rate).fields("images_per_s")
        compiled(tmp_path / f"{number}", target, record={"predicted": predicted})
    compiled(tmp_path / "not", "gpu:h100:8", batch=64, record={"predicted": None})
    names = ("rank by cost (predicted)", "target", "USD per million images (predicted)")
    assert told(tmp_path, *names[:2]).splitlines() == [
        "1 | gpu:h100:8",
        "2 | tpu:v2:2x2",
        "3 | gpu:rtx2080ti:2",
        "– | gpu:h100:8",
    ]
    # The fastest is the dearest.
    offers = [
        Price("a", "NVIDIA H100 80GB HBM3", 8, 18.0, "2026-03-04", "a page"),
        Price("b", "TPU v2", 4, 7.2, "2026-03-04", "a page"),
        Price("c", "GeForce RTX 2080 Ti", 2, 0.36, "2026-03-04", "a page"),
    ]
    assert told(tmp_path, *names, prices=Prices(listed=offers)).splitlines() == [
        "1 | gpu:rtx2080ti:2 | 0.05000",
        "2 to 3 | tpu:v2:2x2 | 0.1000",
        "2 to 3 | gpu:h100:8 | 0.1042",
        "– | gpu:h100:8 | –",
    ]


def test_a_prediction_without_a_compiler_is_not_shown_as_compiled(tmp_path):
    nothing = dict.fromkeys(("compiler", "needed_bytes", "collectives", "compile_s"))
    compiled(tmp_path / "a", record=nothing | {"origin": "predicted", "fits": None})
    table = tables(section_of(tmp_path))[SAYS]
    [row] = rows_of(table)
    assert row["fits (compiled)"] == "not compiled" and "Compiled with" not in table.note
    assert row["predicted images/s"] == "6,000"


def test_a_step_that_the_compiler_does_not_support_is_not_too_large(tmp_path):
    compiled(tmp_path / "a", record={"fits": None, "refusal": "UNIMPLEMENTED: some product"})
    [row] = rows_of(tables(section_of(tmp_path))[SAYS])
    assert row["fits (compiled)"] == "unsupported"
    assert "none; not" not in str(row)


def test_what_was_measured_of_the_same_work_stands_beside(tmp_path):
    compiled(tmp_path / "a")
    throughput(tmp_path / "b", 9500.0, environment=RTX, config={"batch_size": 512})
    # Another batch is told; the same one comes first.
    measured = "9,500 (batch 512, training step alone, R2)"
    assert told(tmp_path, "measured images/s") == measured
    throughput(tmp_path / "c", 9000.0, environment=RTX)
    for name, fields in {
        "one": {"environment": RTX | {"num_devices": 1}},
        "half": {"environment": RTX, "config": {"precision": "fp16"}},
        "shape": {"environment": RTX, "config": {"data": {"image_shape": [9, 9, 3]}}},
        "other": {"environment": RTX, "experiment": "mine"},
        "failed": {"environment": RTX, "status": "failed"},
    }.items():
        throughput(tmp_path / name, 99_999.0, **fields)
    assert "9,000 (training step alone, R3) [R3] (measured)" in shown(section_of(tmp_path), SAYS)
    [chart] = charts(section_of(tmp_path), DotChart)
    [dot] = chart.dots
    assert dot.value == 6_000 and [own.value for own in dot.beside][0] == 9000
    drawn = draw(chart)
    assert 'class="dot predicted"' in drawn and 'class="dot measured"' in drawn
    assert chart.x_log and "predicted" in chart.note


@pytest.mark.parametrize(
    ("target", "fields", "published"),
    [
        ("gpu:rtx2080ti:2", {}, "3,516"),  # 50,000 images in 14.22 s
        ("gpu:rtx2080ti:2", {"config": {"precision": "fp16"}}, "–"),
        ("gpu:h100:8", {}, "–"),
        ("gpu:rtx2080ti:2", {"config": {"model": {"channels": 8}}, "parameters": 300_000}, "–"),
        ("gpu:rtx2080ti:2", {"experiment": "cnn10:tiny", "model": "Mlp"}, "–"),
        ("tpu:v2:2x2", {"config": {"data": {"image_shape": [9, 9, 3]}}}, "–"),
    ],
)
def test_what_was_published_of_the_machine_stands_beside(tmp_path, target, fields, published):
    compiled(tmp_path / "a")
    compiled(tmp_path / "b", target, **fields)
    rows = rows_of(tables(section_of(tmp_path))[SAYS])
    first, *others = sorted(rows, key=lambda row: row["target"] != "gpu:rtx2080ti:2")
    with_128 = "fp32, batch 128, TensorFlow 1.13.1 Keras, 2019-05-14 [1]; 4 more"
    assert first["published with"] == with_128
    assert {row["published images/s"] for row in others} <= {published}
    assert "[1] Qiita" in tables(section_of(tmp_path))[SAYS].note


def test_nothing_compiled_is_in_a_section_of_what_was_measured(tmp_path):
    search(tmp_path / "max", {128: True, 256: False})
    compiled(tmp_path / "scaled", "gpu:h100:8", scaling="weak", record={"scaling": "weak"})
    compiled(tmp_path / "tpu", "tpu:v2:2x2", price=PRICE)
    found = sections_of(tmp_path, prices=Prices(usd_per_kwh=0.2))
    assert [*found] == ["before-you-rent", "runs"]
    assert "4 of them are of machines that are not here" in found["runs"].lead
    assert list(tables(found["runs"])) == ["Runs"]  # no warnings, no environment
    # Beside a measured run all else is as if they were not there.
    alone = throughput(tmp_path / "only" / "own", 5000.0)
    both, own = sections_of(tmp_path), sections_of(alone.parent)
    for name in own.keys() - {"runs"}:
        lines = [render_markdown([one[name]], "t").replace("R3", "R1") for one in (both, own)]
        assert lines[0] == lines[1], name


def test_compare_and_cost_say_that_nothing_was_measured(tmp_path, refused):
    folder = compiled(tmp_path / "a")
    for command, *more in (["compare", "a"], ["cost", "--usd_per_hour=2"]):
        words = "compiled for gpu:rtx2080ti:2, and nothing was measured"
        refused("a", *more, module=f"jaxbench.{command}", told=words)
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
    runs, no = [str(tmp_path / "runs")], str(tmp_path / "no.md")
    refusal(write_report, runs, no, section="before-you-ren", told="did you mean")
    refusal(write_report, runs, no, section="xyzzy", told="one of before-you-rent")
    no = str(tmp_path / "no.csv")
    refusal(write_report, runs, no, section="runs", told="CSV has no sections")
    assert not [*tmp_path.glob("no.*")]


@pytest.mark.parametrize("values", [(5_537, 160_000), (5_000, 9_000), (90_000, 120_000), (1, 1e9)])
def test_numbers_below_a_narrow_logarithmic_axis_are_apart(values):
    axis = Axis(values, 270.0, 430.0, log=True)
    places = [axis(tick) for tick in axis.ticks]
    assert places and all(b - a >= 50 for a, b in itertools.pairwise(places))
