"""The report's overview: the best of each machine, compared where the work was equal."""

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.reports.blocks import DotChart
from jaxbench.reports.prices import Prices
from jaxbench.reports.sections import make_sections
from jaxbench.reports.write import render_html
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
    assert not charts(sections_of(tmp_path)["overview"], DotChart)


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
