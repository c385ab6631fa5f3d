"""Sanity checks of a card, and the check of one that somebody hands in."""

import dataclasses

import pytest

from jaxbench.cards.card import measured
from jaxbench.cards.check import check_card
from jaxbench.cards.plausibility import implausible
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
    "no time": (dataclasses.replace(made.soak(), time_s=0.0), "soak: took 0 s for 4 figures"),
}


@pytest.mark.parametrize("part, message", IMPOSSIBLE.values(), ids=[*IMPOSSIBLE])
def test_what_cannot_be_is_named(part, message):
    found = implausible(made.card(part))
    assert found and any(message in line for line in found), found


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
    # It may travel alone.
    (records / "metrics.jsonl").unlink()
    assert check_card(path) == []


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
    assert "names no limit" in check_card(path)[0]
    made.alter(path, lambda c: c.pop("verdict"))
    assert check_card(path) == ["it has no verdict"]


def test_own_limits_belong_to_the_card(tmp_path):
    strict = made.judged()
    limits = {**strict.verdict.thresholds, "matmul_share_of_nominal.fail": 0.9}
    verdict = dataclasses.replace(strict.verdict, thresholds=limits)
    path = made.write(tmp_path, dataclasses.replace(strict, verdict=verdict))
    assert check_card(path) == ["its verdict is pass, its figures give fail"]
