"""Sanity checks of a card, and the check of one that somebody hands in."""

import dataclasses

import pytest

from jaxbench.cards.card import measured
from jaxbench.cards.card_file import read_card
from jaxbench.cards.check import check_card, own_limits
from jaxbench.cards.plausibility import implausible
from jaxbench.cards.thresholds import load_thresholds
from jaxbench.cards.verdict import judge
from jaxbench.reports.collect import collect
from jaxbench.reports.results_table import render_results
from tests.cards import made

PEAK = made.PEAK_TFLOPS


def with_figure(part, name, **fields):
    """The part with a field of its first figure of a name changed."""
    figures = list(part.figures)
    place = next(at for at, figure in enumerate(figures) if figure.name == name)
    figures[place] = dataclasses.replace(figures[place], **fields)
    return dataclasses.replace(part, figures=tuple(figures))


def test_a_healthy_card_is_plausible():
    assert implausible(made.card()) == []


FP32 = {**made.NETWORK, "precision": "fp32"}


def fp32_network(mfu):
    figures = (measured("mfu", mfu, **FP32),)
    return dataclasses.replace(made.networks(), figures=figures)


def fp32_ceilings(tflops):
    figures = (measured("matmul_fp32_tflops", tflops, device=0, nominal=66.9),)
    return dataclasses.replace(made.ceilings(), figures=figures)


IMPOSSIBLE = {
    "above the peak": (made.ceilings(1.4 * PEAK), "more than 1.3 times the published 989.4"),
    "above the bandwidth": (made.ceilings(triad=3600.0), "more than 1.05 times"),
    "MFU": (made.networks(mfu=0.9), "0.900 of the peak, matrix products reach 0.707"),
    "MFU above 1": (made.networks(mfu=1.5), "mfu, network resnet50"),
    # 1.5e5 images/s of 24.6 GFLOP are 3690 TFLOP/s; four devices reach 2828.
    "arithmetic": (made.networks(150_000.0), "3,690 TFLOP/s by its own arithmetic"),
    "interval": (
        with_figure(made.networks(), "images_per_s", interval=(1.0, 2.0)),
        "lies outside its own interval, 1 to 2",
    ),
    "reversed": (
        with_figure(made.networks(), "images_per_s", interval=(2e4, 1e3)),
        "lies outside its own interval",
    ),
    "negative": (with_figure(made.ceilings(), "h2d_gb_per_s", value=-1.0), "-1 cannot be"),
    "all throttled": (made.soak(throttled=1.5), "1.5 cannot be: at least 0, at most 1"),
    "no device": (with_figure(made.soak(), "drift_percent", device=9), "there is no such device"),
    "share": (
        with_figure(made.ceilings(), "triad_gb_per_s", share_of_nominal=0.99),
        "its share of 3352 is 0.8950, not 0.99",
    ),
    "no share": (with_figure(made.ceilings(), "triad_gb_per_s", share_of_nominal=None), "not None"),
    "mismatches": (
        made.corruption(1, [(1, "a"), (2, "a")]),
        "device 1 has 2 mismatches named, fewer counted",
    ),
    "times": (dataclasses.replace(made.soak(), time_s=400.0), "the parts took 711.0 s"),
    "count": (with_figure(made.corruption(), "rounds", value=2.5), "2.5 is no whole number"),
    "rounds": (with_figure(made.corruption(), "rounds", value=1e12), "rounds: 1e+12 in 8 min"),
    "peak": (
        with_figure(made.ceilings(), "triad_gb_per_s", nominal=6000.0, share_of_nominal=0.5),
        "nominal is 6000; the published peak of NVIDIA H100 80GB HBM3 is 3352",
    ),
    "no peak": (
        with_figure(made.ceilings(), "matmul_bf16_tflops", nominal=None, share_of_nominal=None),
        "nominal is none; the published peak",
    ),
    "a peak of none": (
        with_figure(made.ceilings(), "h2d_gb_per_s", nominal=64.0, share_of_nominal=50 / 64),
        "no published peak of",
    ),
    "a rate of nothing": (
        with_figure(made.ceilings(), "h2d_gb_per_s", value=1e9, interval=None),
        "more than any such hardware reaches",
    ),
    "bus": (
        with_figure(made.collectives(), "bus_gb_per_s", value=1e3),
        "1000 is not 1.5 times 250",
    ),
    "operations": (
        dataclasses.replace(made.networks(), figures=made.networks().figures[:1]),
        "there is no flops_per_image of it",
    ),
    "batch": (
        with_figure(made.networks(), "mfu", labels={**made.NETWORK, "batch": "x"}),
        "batch must be a whole number, 1 or more",
    ),
    "target": (
        with_figure(made.collectives(), "pair_gb_per_s", labels={"source": 0, "target": 7}),
        "target is no device",
    ),
    "compilation": (
        dataclasses.replace(
            made.networks(), figures=(measured("compile_cold_s", 1e9, **made.NETWORK),)
        ),
        "the whole card took 480.0 s",
    ),
    "no time": (dataclasses.replace(made.soak(), time_s=0.0), "soak: took 0 s for 4 figures"),
}


@pytest.mark.parametrize("part, message", IMPOSSIBLE.values(), ids=[*IMPOSSIBLE])
def test_what_cannot_be_is_named(part, message):
    found = implausible(made.card(part))
    assert found and any(message in line for line in found), found


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"load": (5000.0, 0)}, "other_cpu_percent is 5000: at least 0, at most 100"),
        ({"load": (-1.0, 0)}, "other_cpu_percent is -1"),
        ({"load": (1.0, -1)}, "other_gpu_processes is -1"),
        ({"minutes_asked": -3.0}, "minutes_asked is -3: above 0"),
        ({"minutes_taken": 1e9}, "minutes_taken is 1e+09"),
        ({"created_at": "2999-01-01T00:00:00+00:00"}, "which is yet to come"),
    ],
)
def test_a_card_that_cannot_be_is_named(fields, message):
    assert any(message in line for line in implausible(made.card(**fields)))


@pytest.mark.parametrize("devices", [[], [0, 1, 2], [0, 1, 2, 2]])
def test_devices_are_as_many_as_are_listed(devices):
    card = made.card()
    listed = [{"id": one, "kind": card.environment["device_kind"]} for one in devices]
    card.environment["devices"] = listed
    assert any("num_devices is 4" in line for line in implausible(card))


def cpu(tflops, cores):
    figures = (measured("matmul_fp32_tflops", tflops, device=0),)
    card = made.card(
        dataclasses.replace(made.ceilings(), figures=figures), kind="cpu", backend="cpu"
    )
    card.environment["cpu_cores"] = cores
    return [line for line in implausible(card) if line.startswith("matmul")]


def test_a_processor_has_a_bound_by_its_cores():
    # Two cores of 2048 operations in each of 6.5e9 cycles.
    assert not cpu(26.0, 2)
    [line] = cpu(27.0, 2)
    assert "27 is more than any such hardware reaches: 26.624" in line
    assert not cpu(1000.0, None) and cpu(1e9, None) and cpu(1e9, 10**15)


def test_margins_leave_room_for_what_can_be():
    assert implausible(made.card(made.ceilings(1.2 * PEAK, 3352 * 1.03))) == []
    assert implausible(made.card(made.networks(mfu=0.75))) == []
    # Winograd's convolutions multiply less often than is counted, in fp32 alone.
    assert implausible(made.card(fp32_ceilings(30.0), fp32_network(0.9))) == []
    assert implausible(made.card(fp32_ceilings(20.0), fp32_network(0.9)))


def test_one_device_is_held_against_one():
    networks = made.networks(40_000.0)
    assert implausible(made.card(networks)) == []
    alone = [dataclasses.replace(figure, device=0) for figure in networks.figures]
    [line] = implausible(made.card(dataclasses.replace(networks, figures=tuple(alone))))
    assert "on 1 device(s) reach 707.0" in line


def test_a_card_that_is_whole_has_no_problems(tmp_path):
    path = made.write(tmp_path)
    assert check_card(path) == check_card(tmp_path) == []


def test_files_beside_it_are_compared(tmp_path):
    path = made.write(tmp_path)
    records = tmp_path / "runs" / "resnet50"
    (records / "metrics.jsonl").write_text('{"kind": "epoch"}\n')
    assert check_card(path) == [
        "runs/resnet50/metrics.jsonl: is not the file that the card was made of"
    ]
    (records / "metrics.jsonl").unlink()
    assert check_card(path) == ["runs/resnet50/metrics.jsonl: was removed from the card's files"]
    # It may travel alone.
    (records / "run.json").unlink()
    assert check_card(path) == []


def test_every_file_beside_it_counts(tmp_path):
    for name in ("power_curve.csv", "runs/resnet50/telemetry.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a\n")
    path = made.write(tmp_path)
    assert {"power_curve.csv", "runs/resnet50/telemetry.csv"} < {*read_card(path).files}
    assert check_card(path) == []
    (tmp_path / "power_curve.csv").write_text("b\n")
    (tmp_path / "runs/resnet50/telemetry.csv").unlink()
    (tmp_path / "runs/more").mkdir()
    (tmp_path / "runs/more/run.json").write_text("{}")
    assert sorted(check_card(path)) == [
        "power_curve.csv: is not the file that the card was made of",
        "runs/more/run.json: was added to the card's files",
        "runs/resnet50/telemetry.csv: was removed from the card's files",
    ]
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("")
    assert len(check_card(path)) == 11 and check_card(path)[-1] == "13 more files"


def test_swapped_digests_are_noticed(tmp_path):
    def swap(content):
        first, second = content["files"]
        content["files"] = {first: content["files"][second], second: content["files"][first]}

    path = made.alter(made.write(tmp_path), swap)
    assert len(check_card(path)) == 2


def test_what_cannot_be_read_is_the_only_problem(tmp_path):
    path = made.alter(made.write(tmp_path), lambda c: c.update(preset="other"), digest=False)
    [line] = check_card(path)
    assert "was altered or damaged" in line


def test_a_verdict_must_follow_from_the_figures(tmp_path):
    failed = made.judged(made.corruption(3))
    praised = dataclasses.replace(failed.verdict, outcome="pass")
    path = made.write(tmp_path, dataclasses.replace(failed, verdict=praised))
    assert check_card(path) == ["its verdict is pass, its figures give fail"]
    made.alter(path, lambda c: c["verdict"]["thresholds"].pop("other_cpu_percent.inconclusive"))
    assert "names other limits than there are: other_cpu" in check_card(path)[0]
    made.alter(path, lambda c: c.pop("verdict"))
    assert check_card(path) == ["it has no verdict"]


def test_own_limits_belong_to_the_card(tmp_path):
    strict = made.judged()
    limits = {**strict.verdict.thresholds, "matmul_share_of_nominal.fail": 0.9}
    verdict = dataclasses.replace(strict.verdict, thresholds=limits)
    path = made.write(tmp_path, dataclasses.replace(strict, verdict=verdict))
    assert check_card(path) == [
        "its verdict is pass, its figures give fail",
        "its findings are not those that its figures give: ceilings: matmul share of nominal",
    ]


def test_findings_must_follow_from_the_figures(tmp_path):
    path = made.write(tmp_path)
    made.alter(path, lambda c: c["verdict"]["findings"][0].update(text="splendid"))
    assert check_card(path) == [
        "its findings are not those that its figures give: doctor: problems"
    ]
    made.alter(made.write(tmp_path), lambda c: c["verdict"].update(findings=[]))
    assert "ceilings: device spread" in check_card(path)[0] and "more" in check_card(path)[0]
    twice = made.alter(made.write(tmp_path), lambda c: c["verdict"]["findings"].reverse())
    assert "in another order" in check_card(twice)[0]


def test_limits_that_are_not_the_shipped_ones_are_said(run_cli, tmp_path):
    limits = {**load_thresholds(), "matmul_share_of_nominal.fail": 0.1, "mismatches.fail": None}
    card = made.card()
    path = made.write(tmp_path, dataclasses.replace(card, verdict=judge(card, limits)))
    line = (
        "judged by limits of its own: matmul share of nominal.fail 0.1 in place of 0.3, "
        "mismatches.fail none in place of 0"
    )
    assert own_limits(read_card(path)) == line and own_limits(made.judged()) is None
    done = run_cli("check", str(path), module="jaxbench.qualify")
    # They are the user's right, and no damage.
    assert done.returncode == 0 and line in " ".join(done.stdout.split())
    assert f"C1: {line}." in render_results(collect([str(tmp_path)]), "md")
