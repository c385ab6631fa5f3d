"""Sanity checks of a card, and the check of one that somebody hands in."""

import json

import pytest
from hypothesis import given
from msgspec.structs import replace

from jaxbench.cards.card import measured
from jaxbench.cards.card_file import digest_of, read_card
from jaxbench.cards.check import check_card, custom_limits, impossible
from jaxbench.cards.verdict import judge, load_thresholds
from jaxbench.reports.collect import collect
from tests.cards import made
from tests.reports.pages import sections_of
from tests.strategies import with_a_wrong_value

PEAK = made.PEAK_TFLOPS


def with_figure(part, name, **fields):
    """The part with a field of its first figure of a name changed."""
    figures = list(part.figures)
    place = next(at for at, figure in enumerate(figures) if figure.name == name)
    figures[place] = replace(figures[place], **fields)
    return replace(part, figures=tuple(figures))


def relabelled(**labels):
    """The part of one network, with other labels."""
    part = made.networks(others=False)
    figures = (replace(figure, labels={**figure.labels, **labels}) for figure in part.figures)
    return replace(part, figures=tuple(figures))


def of_sensors(**values):
    """The soak, and what sensors of a device said."""
    figures = (measured(name, value, device=0) for name, value in values.items())
    part = made.soak()
    return replace(part, figures=(*part.figures, *figures))


def ceiling(name, **fields):
    """The ceilings with another figure of a name."""
    return with_figure(made.ceilings(), name, **fields)


TOO_FAST = (90.0, 1.4 * PEAK)
IMPOSSIBLE = {
    "above the peak": (made.ceilings(1.4 * PEAK), "0 at least, 1286.22 at most"),
    "above the bandwidth": (made.ceilings(triad=3600.0), "3519.6 at most"),
    "MFU": (made.networks(mfu=1.1), "mfu, network resnet50"),
    "other operations": (
        with_figure(made.networks(), "flops_per_image", value=made.FLOPS - 1),
        "24535105535 is not the preset's network, 24535105536",
    ),
    "unknown network": (relabelled(network="resnet51"), "is not the preset's network, None"),
    "power": (with_figure(made.networks(), "energy_j_per_image", value=0.5), "0.378 at most"),
    "arithmetic": (made.networks(150_000.0), "images_per_s, network resnet50"),
    "interval": (
        with_figure(made.networks(), "images_per_s", interval=(1.0, 2.0)),
        "10000 (1 to 2) cannot be",
    ),
    "negative": (ceiling("h2d_gb_per_s", value=-1.0, interval=None), "-1 (-1 to -1) cannot be"),
    "an end above the peak": (
        with_figure(made.ceilings(100.0), "matmul_bf16_tflops", interval=TOO_FAST),
        "100 (90 to 1385.16) cannot be",
    ),
    "to the host": (ceiling("h2d_gb_per_s", value=70.0, interval=None), "66.15 at most"),
    "a pair's link": (
        with_figure(made.collectives(), "pair_gb_per_s", value=500.0),
        "472.5 at most",
    ),
    "a call": (ceiling("dispatch_latency_s", value=1e-14, interval=None), "1e-06 at least"),
    "memory": (relabelled(batch=400_000), "of 79.6 GiB of a device's memory"),
    "power of a board": (of_sensors(power_mean_w=1000.0), "945 at most"),
    "int8": (
        replace(made.ceilings(), figures=(measured("matmul_int8_tflops", 6000.0, device=0),)),
        "0 at least, 5144.88 at most",
    ),
    "a device that is not there": (
        ceiling("copy_gb_per_s", device=7),
        "no such device",
    ),
    "share": (
        ceiling("triad_gb_per_s", share_of_nominal=0.5),
        "its share of the peak is 0.5, not",
    ),
    "heat": (of_sensors(temperature_max_c=4000.0), "-20 at least, 125 at most"),
    "peak": (
        ceiling("triad_gb_per_s", nominal=6000.0, share_of_nominal=0.5),
        "its nominal is 6000.0, the published peak is 3352.0",
    ),
    "no peak": (
        ceiling("matmul_bf16_tflops", nominal=None, share_of_nominal=None),
        "its nominal is None, the published peak",
    ),
    "a peak of none": (
        ceiling("h2d_gb_per_s", nominal=64.0, share_of_nominal=50 / 64),
        "the published peak is None",
    ),
}


@pytest.mark.parametrize("part, message", IMPOSSIBLE.values(), ids=[*IMPOSSIBLE])
def test_impossible_figures(part, message):
    reasons = [*impossible(made.card(part))]
    assert any(message in line for line in reasons), reasons


def test_a_card_of_tomorrow_or_of_an_unknown_preset_is_named():
    card = made.card(created_at="2999-01-01T00:00:00+00:00", preset="standard-9")
    lines = [*impossible(card)]
    assert any("which is in the future" in line for line in lines)
    assert "preset 'standard-9': this jaxbench has standard-1, cpu-1" in lines


def other_findings(card):
    findings = [replace(one, status="pass") for one in card.verdict.findings]
    return replace(card, verdict=replace(card.verdict, findings=(*findings,)))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: replace(c, created_at="yesterday"), "created_at is 'yesterday'"),
        (lambda c: replace(c, minutes_taken=1.0), "its parts took 381 s of 60 s"),
        (lambda c: replace(c, environment=c.environment | {"num_devices": 8}), "has 4 x NVIDIA"),
        (lambda c: replace(c, environment=c.environment | {"device_kind": "cpu"}), "4 x cpu: its"),
        (lambda c: replace(c, environment=c.environment | {"backend": "cpu"}), "its environment"),
        (lambda c: replace(c, parts=(*c.parts, made.doctor())), "doctor: is on the card 2 times"),
        (other_findings, "verdict does not follow from its figures: "),
    ],
)
def test_a_card_that_contradicts_itself(change, message, tmp_path):
    lines = check_card(made.write(tmp_path, change(made.judged(made.soak(errors=1)))))
    assert any(message in line for line in lines), lines


def test_a_figure_is_on_a_card_once():
    part = made.ceilings()
    double = replace(part.figures[0], value=1e9)
    [line, *_] = impossible(made.card(replace(part, figures=(double, *part.figures))))
    assert line == "matmul_bf16_tflops, device 0: is on the card 2 times"


def cpu(tflops, cores):
    figures = (measured("matmul_fp32_tflops", tflops, device=0),)
    card = made.card(replace(made.ceilings(), figures=figures), kind="cpu", backend="cpu")
    card.environment["cpu_cores"] = cores
    return [line for line in impossible(card) if line.startswith("matmul")]


def test_a_processor_has_a_bound_by_its_cores():
    # Two cores of 2048 operations in each of 6.5e9 cycles.
    assert not cpu(26.0, 2)
    [line] = cpu(27.0, 2)
    assert "26.624 at most" in line
    assert not cpu(1000.0, None)


def test_margins_leave_room_for_what_can_be():
    fast = made.ceilings(1.2 * PEAK, 3352 * 1.03)
    assert [*impossible(made.card(fast, made.networks(matmul=1.2 * PEAK)))] == []
    # Winograd's convolutions multiply less often than is counted, only in fp32.
    assert [*impossible(made.card(made.ceilings(200.0), fp32_networks(70_000.0)))] == []
    assert [*impossible(made.card(made.ceilings(150.0), fp32_networks(70_000.0)))]


def fp32_networks(rate):
    labels = {**made.NETWORK, "precision": "fp32"}
    figures = (
        made.around("images_per_s", rate, **labels),
        measured("flops_per_image", made.FLOPS, **labels),
        measured("mfu", rate * made.FLOPS / 4 / 494.7e12, **labels),
    )
    return replace(made.networks(), figures=figures)


def test_memory_has_a_peak_whatever_the_device_computes_in():
    """V100s have no bf16."""

    def found(nominal):
        figures = (measured("triad_gb_per_s", 800.0, device=0, nominal=nominal),)
        part = replace(made.ceilings(), figures=figures)
        lines = impossible(made.card(part, kind="Tesla V100-SXM2-16GB"))
        return [line for line in lines if line.startswith("triad")]

    assert found(900.0) == [] and "the published peak is 900" in found(None)[0]


@pytest.mark.parametrize(
    "kind, to_host, pair",
    [
        ("NVIDIA GB200", 450, 900),
        ("NVIDIA A40", 31.5, 56.25),  # with a bridge
        ("TPU v5 lite", 63, 200),
        ("NVIDIA H400", 450, 900),  # unknown: the fastest link of any GPU
    ],
)
def test_links_bound_by_device(kind, to_host, pair):
    def found(faster):
        links = with_figure(made.collectives(), "pair_gb_per_s", value=faster * pair)
        host = with_figure(made.ceilings(), "h2d_gb_per_s", value=faster * to_host, interval=None)
        reasons = impossible(made.card(links, host, kind=kind))
        names = ("pair_gb_per_s, source 0, peer 1:", "h2d_gb_per_s, device 0:")
        return sum(line.startswith(names) and "cannot be" in line for line in reasons)

    assert (found(1.04), found(1.06)) == (0, 2)


def test_storage_has_bounds():
    figures = (
        measured("read_cold_gb_per_s", 1e5),
        measured("checkpoint_write_gb_per_s", 12.0),
        measured("decode_images_per_s", 1e9),
    )
    part = made.Part(name="storage", status="measured", time_s=9.0, figures=figures)
    found = [line for line in impossible(made.card(part)) if "cannot be" in line]
    assert len(found) == 2


def test_a_healthy_card_has_no_problems(tmp_path):
    assert [*impossible(made.card())] == []
    path = made.write(tmp_path)
    assert check_card(path) == check_card(tmp_path) == []


def test_files_beside_it_are_compared(recorded):
    run = recorded / "runs/cnn10-tiny-fp32-16"
    (run / "run.json").write_text((run / "run.json").read_text() + " ")
    (run / "metrics.jsonl").unlink()
    (recorded / "runs/more").mkdir()
    (recorded / "runs/more/run.json").write_text("{}")
    assert check_card(recorded)[:3] == [
        "runs/cnn10-tiny-fp32-16/metrics.jsonl: was removed from the card's files",
        "runs/cnn10-tiny-fp32-16/run.json: is not the file that the card was made of",
        "runs/more/run.json: was added to the card's files",
    ]


def test_swapped_digests_are_noticed(recorded):
    def swap(content):
        first, second, *_ = names = [*content["files"]]
        content["files"] |= {first: content["files"][second], second: content["files"][first]}
        assert len(names) == 6

    assert len(check_card(made.alter(recorded / "card.json", swap))) == 2


def test_what_cannot_be_read_is_the_only_problem(tmp_path):
    path = made.alter(made.write(tmp_path), lambda c: c.update(preset="other"), digest=False)
    [line] = check_card(path)
    assert "was altered or damaged" in line


def test_any_wrong_value_of_a_card_is_a_line(tmp_path):
    """Whatever stands in a card, it is a line and no traceback."""
    path = made.write(tmp_path, made.judged(made.corruption(1, [(1, "a")])))

    @given(with_a_wrong_value(json.loads(path.read_text())))
    def check(content):
        path.write_text(json.dumps(content | {"digest": digest_of(content)}))
        assert all("\n" not in line for line in check_card(path))

    check()


@pytest.mark.parametrize("devices", [5, [{"id": [1]}], [{"id": 0, "kind": None}], None, "a"])
def test_one_bad_card_is_a_note_of_the_folder(devices, tmp_path):
    made.write(tmp_path / "a")
    bad = made.alter(made.write(tmp_path / "b"), lambda c: c["environment"].update(devices=devices))
    found = collect([str(tmp_path)])
    assert [card.name for card in found.cards] == ["a"]
    assert len(found.card_notes) == 1 and "environment.devices" in found.card_notes[0]
    assert "b is left out" in sections_of(tmp_path)["cards"].blocks[0]
    [line] = check_card(bad)
    assert "environment.devices" in line


def test_a_verdict_must_follow_from_the_figures(tmp_path):
    failed = made.judged(made.corruption(3))
    praised = replace(failed.verdict, outcome="pass")
    path = made.write(tmp_path, replace(failed, verdict=praised))
    assert check_card(path) == ["its verdict is pass, its figures give fail"]
    made.alter(path, lambda c: c.pop("verdict"))
    assert check_card(path) == ["it has no verdict"]


def test_custom_limits_belong_to_the_card(tmp_path):
    strict = made.judged(made.soak(drift=(-1.5, -1.9, -1.1)))
    limits = {**strict.verdict.thresholds, "slowdown_percent.fail": 1.0}
    verdict = replace(strict.verdict, thresholds=limits)
    path = made.write(tmp_path, replace(strict, verdict=verdict))
    assert check_card(path) == ["its verdict is pass, its figures give fail"]


def test_a_card_from_before_a_rule_is_not_judged_by_it(tmp_path):
    path = made.write(tmp_path)

    def forget_rule(content):
        verdict = content["verdict"]
        for level in ("warn", "fail"):
            del verdict["thresholds"][f"device_spread.{level}"]
        verdict["findings"] = [f for f in verdict["findings"] if f["rule"] != "device_spread"]

    made.alter(path, forget_rule)
    assert check_card(path) == []
    assert custom_limits(read_card(path)) == "judged without the newer rules device_spread"


def test_limits_that_are_not_the_shipped_ones_are_said(run_cli, tmp_path):
    limits = {**load_thresholds(), "device_spread.fail": 0.3, "mismatches.fail": None}
    card = made.card()
    path = made.write(tmp_path, replace(card, verdict=judge(card, limits)))
    line = (
        "judged by custom limits: device_spread.fail 0.3 in place of 0.15, "
        "mismatches.fail none in place of 0"
    )
    assert custom_limits(read_card(path)) == line and custom_limits(made.judged()) is None
    done = run_cli("check", str(path), module="jaxbench.qualify")
    # They are the user's right, and no damage.
    assert done.returncode == 0 and line in " ".join(done.stdout.split())
    assert f"C1: {line}." in sections_of(tmp_path)["cards"].blocks
