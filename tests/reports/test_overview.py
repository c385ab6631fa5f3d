"""The report's overview: the best of each machine, compared where the work was equal."""

import json
import re

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.rate import Estimate
from jaxbench.reports.blocks import Answer, DotChart
from jaxbench.reports.prices import Prices
from jaxbench.reports.sections import make_sections
from jaxbench.reports.write import render_html
from jaxbench.sweeps.grid import make_trials, parse_grid, repeated
from tests.recorded import epochs, recorded_run, throughput, trained
from tests.reports.many_runs import write_many
from tests.reports.pages import Page, charts, context_of, sections_of, shown

H200 = {"device_kind": "NVIDIA H200", "num_devices": 1}
PAIR = H200 | {"num_devices": 2}
TPU = {"device_kind": "TPU v5e", "num_devices": 4}


def overview_of(*folders, **asked):
    return shown(sections_of(*folders, **asked)["overview"])


def test_the_highest_rate_is_never_hidden(tmp_path, snapshot):
    recorded_run(tmp_path / "long", epochs([900.0, *(1000.0 + n for n in range(8))]))
    # Without an interval of its own.
    trained(tmp_path / "lucky", 9000.0, config={"batch_size": 512})
    # The best of three runs is not the setting's rate.
    for seed, rate in enumerate((9500.0, 8500.0), 1):
        trained(tmp_path / f"s{seed}", rate, config={"batch_size": 512, "seed": seed})
    groups = (("long", "lucky"), ("long", "lucky", "s1", "s2"), ("lucky", "s1"))
    told = [overview_of(*(tmp_path / name for name in names)) for names in groups]
    assert "\n\n".join(told) == snapshot


def test_seeds_that_failed_count_in_the_overview(tmp_path, snapshot):
    def run(name, seed, top1, status="done", **config):
        summary = {"target_accuracy": {"score": "top1", "value": 0.5}}
        config |= {"seed": seed}
        trained(tmp_path / name, top1=top1, summary=summary, config=config, status=status)

    for seed in range(5):
        run(f"a{seed}", seed, 0.9 if seed < 2 else 0.2, "done" if seed < 2 else "diverged")
    before = overview_of(tmp_path)
    # Five seeds are a result, though one seed of another setting got there.
    run("lucky", 0, 0.95, batch_size=512)
    assert f"{before}\n\n{overview_of(tmp_path)}" == snapshot


def test_other_images_or_networks_are_in_no_chart_together(tmp_path):
    throughput(tmp_path / "a", 1000.0, environment=H200)
    images = {"config": {"data": {"image_shape": [224, 224, 3]}}}
    throughput(tmp_path / "b", 10.0, environment=TPU, **images)
    throughput(tmp_path / "c", 500.0, environment=PAIR, parameters=9_000_000)
    assert not charts(sections_of(tmp_path)["rates"], DotChart)


def test_time_and_cost_to_the_target(tmp_path, snapshot):
    """Epochs end every 15.75 s; the score grows evenly over four of them."""
    for name, top1, environment in (("quick", 0.9, H200), ("never", 0.4, TPU)):
        summary = {"target_accuracy": {"score": "top1", "value": 0.5}}
        trained(tmp_path / name, top1=top1, environment=environment, summary=summary)
    prices = [Price(f"{usd}", "NVIDIA H200", 1, usd, "2026-03-04", "a list") for usd in (3.6, 1.8)]
    told = [overview_of(tmp_path, prices=Prices(listed=prices)), overview_of(tmp_path, target=0.2)]
    assert "\n\n".join(told) == snapshot


def test_rows_that_look_alike_say_what_tells_them_apart(tmp_path, snapshot):
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            own = {"optimizer": {"name": "sgd", "learning_rate": rate}, "seed": seed}
            trained(tmp_path / f"{rate}-{seed}", config=own)
    trained(tmp_path / "z", config={"precision": "bf16"})
    found = sections_of(tmp_path)
    # Where the seed has a column, it is not named again.
    told = [shown(found["runs"], "Runs"), shown(found["learning"], "Final results")]
    assert "\n\n".join([*told, shown(sections_of(tmp_path / "z")["runs"], "Runs")]) == snapshot


def test_details_of_many_runs_are_folded(tmp_path):
    sections = make_sections(context_of(write_many(tmp_path, 70, num_epochs=3)))
    folded = [section.name for section in sections if section.folded]
    unfolded = [section.name for section in sections if not section.folded]
    assert unfolded == ["overview", "runs", "rates", "learning"] and "target" in folded
    text = render_html(sections, "t")
    page = Page(text)
    assert text.count("<h2>") == len(sections) and page.ids.count("R70") == 1
    few = make_sections(context_of(tmp_path / "cnn10" / "run000"))
    assert not any(section.folded for section in few)


@pytest.mark.parametrize("config", ["seed", "learning_rate"])
def test_no_chart_has_more_lines_or_dots_than_can_be_read(tmp_path, config):
    for number in range(40):
        trained(tmp_path / f"{number}", config={config: number / 100})
    for section in sections_of(tmp_path).values():
        for chart in section.blocks:
            assert len(getattr(chart, "series", ())) <= 7
            # Published ones besides.
            dots = [dot for dot in getattr(chart, "dots", ()) if dot.kind == "measured"]
            assert len(dots) <= 16


def sentence_of(folder) -> str:
    [answer] = [b for b in sections_of(folder)["overview"].blocks if isinstance(b, Answer)]
    return answer.sentence


def write_repeats(folder, **how):
    """Three runs with each of two batches, interleaved; that of 128 is nearly twice as fast."""
    for number, batch in enumerate((64, 128) * 3):
        how |= {"config": {"batch_size": batch, "seed": number // 2}, "pid": number}
        how["started_at"] = f"2026-03-04T05:0{number}:07+00:00"
        throughput(folder / f"{number}", batch * (1 + number / 1000), **how)


ARGUMENTS = ["--experiment=cnn10", "--mode=throughput", "--rounds=6", "--experiment.seed=3"]


def test_the_command_that_repeats_can_be_pasted(tmp_path):
    for batch in (64, 128):
        line = ["python", "-m", "jaxbench.main", *ARGUMENTS, f"--experiment.batch_size={batch}"]
        # No flags of a sweep; without readings nobody knows the load of the host.
        line += ["--resume=auto", "--telemetry_s=0"]
        how = {"command_line": [*line, f"--workdir={tmp_path}/{batch}"]}
        throughput(tmp_path / f"{batch}", batch, config={"batch_size": batch}, **how)
    [command] = re.findall("`(.*?)`", sentence_of(tmp_path))
    said = "jaxbench sweep --experiment=cnn10 --mode=throughput --rounds=6 --grid=batch_size="
    assert command in (f"{said}64,128 --repeats=3", f"{said}128,64 --repeats=3")
    [grid] = re.findall("--grid=(\\S+)", command)
    trials = make_trials("cnn10", [], repeated(parse_grid([grid]), 3))
    # A B A B A B, so that drift is no difference.
    assert [trial.config.batch_size for trial in trials[:2]] == [
        trial.config.batch_size for trial in trials[2:4]
    ]
    assert {trial.config.seed for trial in trials} == {0, 1, 2}


@pytest.mark.parametrize(
    ("arguments", "config", "environment"),
    [
        (["--experiment=my_net.py"], {}, {}),  # its name is no experiment's
        (["--experiment=cnn10", "--experiment.optimizer", "sgd"], {}, {}),
        (["notebook.py"], {}, {}),  # fields that Python set are in no command
        (["--experiment=cnn10"], {"note": "a, b"}, {}),  # three values of a grid
        (["--experiment=cnn10"], {"note": None}, {}),
        # Variables are in no command line, and a sweep does not start several processes.
        (ARGUMENTS, {}, {"variables": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}}),
        (ARGUMENTS, {}, {"num_processes": 2}),
        ([*ARGUMENTS, "--distributed=auto"], {}, {}),
    ],
)
def test_a_command_that_may_be_another_one_is_not_given(tmp_path, arguments, config, environment):
    how = {"command_line": ["python", "-m", "jaxbench.main", *arguments]}
    how["environment"] = environment
    throughput(tmp_path / "a", 1000.0, config={"note": "c"}, **how)
    own = config or {"batch_size": 64}
    throughput(tmp_path / "b", 900.0, config={"note": "c"} | own, **how)
    said = sentence_of(tmp_path)
    assert "`" not in said and said.endswith("interleaved: see docs/howto/compare.md."), said


def test_a_repeat_that_failed_leaves_no_verdict(tmp_path):
    """As `compare` has it: what failed might have been slow."""
    write_repeats(tmp_path, summary={"telemetry": {"host_busy": False}})
    assert "batch 128 is fastest" in sentence_of(tmp_path)
    failed = {"config": {"batch_size": 64, "seed": 9}, "status": "failed", "pid": 99}
    recorded_run(tmp_path / "failed", mode="throughput", **failed, data={"feed": "synthetic"})
    said = sentence_of(tmp_path)
    assert "fastest" not in said and "its status is failed" in said


@pytest.mark.parametrize(
    ("load", "advice"),
    [
        ({"host_busy": True}, "End the other work on the host, and measure again."),
        ({}, "Measure both three times, interleaved: see docs/howto/compare.md."),
    ],
)
def test_advice_where_only_the_host_is_in_doubt(tmp_path, load, advice):
    write_repeats(tmp_path, summary={"telemetry": load})
    said = sentence_of(tmp_path)
    assert "Not compared: " in said and said.endswith(advice), said


def test_a_field_without_a_value_is_one_that_is_missing(tmp_path):
    throughput(tmp_path / "a", 1000.0, config={"smoothing": None})
    throughput(tmp_path / "b", 1000.0)
    assert "the only setting" in sentence_of(tmp_path)


def test_a_lone_end_is_no_interval(tmp_path):
    for number in range(3):
        run = throughput(tmp_path / f"{number}", 1000.0, config={"seed": number})
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[0]["images_per_s_high"] = None
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "1,000 images/s (1,000 to 1,000)" in sentence_of(tmp_path)
    low = Estimate(1000.0, 0.0, 2000.0).map(lambda rate: 1 / rate)
    assert low == Estimate(1 / 1000)
