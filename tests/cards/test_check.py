"""Sanity checks of a card, and the check of one that somebody hands in."""

import msgspec
import pytest
from msgspec.structs import replace

from jaxbench.cards.card import measured
from jaxbench.cards.card_file import read_card, write_card
from jaxbench.cards.check import check_card, own_limits
from jaxbench.cards.plausibility import implausible
from jaxbench.cards.thresholds import load_thresholds
from jaxbench.cards.verdict import judge
from tests.cards import made
from tests.reports.pages import sections_of

PEAK = made.PEAK_TFLOPS


def with_figure(part, name, **fields):
    """The part with a field of its first figure of a name changed."""
    figures = list(part.figures)
    place = next(at for at, figure in enumerate(figures) if figure.name == name)
    figures[place] = replace(figures[place], **fields)
    return replace(part, figures=tuple(figures))


def without(part, name):
    """The part without its first figure of a name."""
    figures = list(part.figures)
    figures.remove(next(part.named(name)))
    return replace(part, figures=tuple(figures))


def relabelled(**labels):
    """The part of one network, with other labels."""
    part = made.networks(others=False)
    figures = (replace(figure, labels={**figure.labels, **labels}) for figure in part.figures)
    return replace(part, figures=tuple(figures))


def test_a_healthy_card_is_plausible():
    assert implausible(made.card()) == []


def of_sensors(**values):
    """The soak, and what sensors of a device said."""
    figures = (measured(name, value, device=0) for name, value in values.items())
    part = made.soak()
    return replace(part, figures=(*part.figures, *figures))


IMPOSSIBLE = {
    "above the peak": (made.ceilings(1.4 * PEAK), "more than 1.3 times the published 989.4"),
    "above the bandwidth": (made.ceilings(triad=3600.0), "more than 1.05 times"),
    "MFU": (made.networks(mfu=0.9), "0.9 does not follow from the others: 0.0619949"),
    "no MFU": (without(made.networks(), "mfu"), "its mfu is None, it must be 0.06"),
    "share of measured": (made.networks(matmul=600.0), "measured_peak_share, network resnet50"),
    "fewer operations": (
        with_figure(made.networks(), "flops_per_image", value=made.FLOPS - 1),
        "24535105535 is not the network's, 24535105536",
    ),
    "power": (
        with_figure(made.networks(), "energy_j_per_image", value=2.0),
        "20,000 W of 4 device(s) cannot be",
    ),
    "unknown network": (relabelled(network="resnet51"), "network resnet51, precision bf16"),
    "unknown precision": (relabelled(precision="fp16"), "is not in standard-1"),
    "odd batch": (relabelled(batch=260), "batch 260: is not in standard-1 on 4 device(s)"),
    "of one device": (
        with_figure(made.networks(), "images_per_s", device=0),
        "device 0: is not in standard-1",
    ),
    "arithmetic": (made.networks(150_000.0), "3,680 TFLOP/s by its own arithmetic"),
    "interval": (
        with_figure(made.networks(), "images_per_s", interval=(1.0, 2.0)),
        "lies outside its own interval, 1 to 2",
    ),
    "negative": (
        with_figure(made.ceilings(), "h2d_gb_per_s", value=-1.0, interval=None),
        "-1 cannot be",
    ),
    "an end above the peak": (
        with_figure(made.ceilings(100.0), "matmul_bf16_tflops", interval=(90.0, 1.4 * PEAK)),
        "1385.16 is more than 1.3 times the published 989.4",
    ),
    "to the host": (
        with_figure(made.ceilings(), "h2d_gb_per_s", value=70.0, interval=None),
        "70 is more than any such hardware reaches: 66.15",
    ),
    "a pair's link": (
        with_figure(made.collectives(), "pair_gb_per_s", value=500.0),
        "500 is more than any such hardware reaches: 472.5",
    ),
    "a call": (
        with_figure(made.ceilings(), "dispatch_latency_s", value=1e-14, interval=None),
        "1e-14 cannot be: at least 2e-07",
    ),
    "heat": (of_sensors(temperature_max_c=4000.0), "4000 cannot be: at least -50, at most 150"),
    "an odd collective": (
        with_figure(
            made.collectives(), "bus_gb_per_s", labels={"collective": "all_to_none", "bytes": 1}
        ),
        "there is no such collective",
    ),
    "an end of the bus": (
        with_figure(made.collectives(), "bus_gb_per_s", interval=(1.0, 400.0)),
        "375 is not 1.5 times 250",
    ),
    "an end of a pair": (
        with_figure(made.collectives(), "pair_gb_per_s", interval=(1.0, 200.0)),
        "is not that of the way back",
    ),
    "no device": (with_figure(made.soak(), "drift_percent", device=9), "there is no such device"),
    "share": (
        with_figure(made.ceilings(), "triad_gb_per_s", share_of_nominal=0.99),
        "its share of 3352 is 0.8950, not 0.99",
    ),
    "mismatches": (
        made.corruption(1, [(1, "a"), (2, "a")]),
        "device 1 has 2 mismatches named, fewer counted",
    ),
    "not counted": (without(made.corruption(), "mismatches"), "of 3 device(s), not of each"),
    "times": (replace(made.soak(), time_s=400.0), "the parts took 711.0 s"),
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
    "bus": (
        with_figure(made.collectives(), "bus_gb_per_s", value=1e3),
        "1000 is not 1.5 times 250",
    ),
    "pair": (
        with_figure(made.collectives(), "pair_gb_per_s", value=50.0),
        "source 1, peer 0: is not that of the way back",
    ),
    "operations": (
        replace(made.networks(), figures=made.networks().figures[:1]),
        "there is no flops_per_image of it",
    ),
    "batch": (
        with_figure(made.networks(), "mfu", labels={**made.NETWORK, "batch": "x"}),
        "batch must be a whole number, 1 or more",
    ),
    "peer": (
        with_figure(made.collectives(), "pair_gb_per_s", labels={"source": 0, "peer": 7}),
        "peer is no device",
    ),
    "compilation": (
        replace(made.networks(), figures=(measured("compile_cold_s", 250.0, **made.NETWORK),)),
        "networks: took 200.0 s, by its figures 250 s",
    ),
    "no time": (replace(made.soak(), time_s=0.0), "soak: took 0 s for 4 figures"),
}


@pytest.mark.parametrize("part, message", IMPOSSIBLE.values(), ids=[*IMPOSSIBLE])
def test_what_cannot_be_is_named(part, message):
    found = implausible(made.card(part))
    assert found and any(message in line for line in found), found


def test_a_card_of_tomorrow_is_named():
    card = made.card(created_at="2999-01-01T00:00:00+00:00")
    assert any("which is yet to come" in line for line in implausible(card))


@pytest.mark.parametrize("devices", [[0, 1, 2], [0, 1, 2, 2]])
def test_devices_are_as_many_as_are_listed(devices):
    card = made.card()
    listed = [{"id": one, "kind": card.environment["device_kind"]} for one in devices]
    card.environment["devices"] = listed
    assert any("num_devices is 4" in line for line in implausible(card))


def cpu(tflops, cores):
    figures = (measured("matmul_fp32_tflops", tflops, device=0),)
    card = made.card(replace(made.ceilings(), figures=figures), kind="cpu", backend="cpu")
    card.environment["cpu_cores"] = cores
    return [line for line in implausible(card) if line.startswith("matmul")]


def test_a_processor_has_a_bound_by_its_cores():
    # Two cores of 2048 operations in each of 6.5e9 cycles.
    assert not cpu(26.0, 2)
    [line] = cpu(27.0, 2)
    assert "27 is more than any such hardware reaches: 26.624" in line
    assert not cpu(1000.0, None) and cpu(1e9, None) and cpu(1e9, 10**15)


def test_margins_leave_room_for_what_can_be():
    fast = made.ceilings(1.2 * PEAK, 3352 * 1.03)
    assert implausible(made.card(fast, made.networks(matmul=1.2 * PEAK))) == []
    assert implausible(made.card(relabelled(batch=2080))) == []
    # Winograd's convolutions multiply less often than is counted, in fp32 alone.
    assert implausible(made.card(made.ceilings(200.0), fp32_networks(70_000.0))) == []
    assert implausible(made.card(made.ceilings(150.0), fp32_networks(70_000.0)))


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
        lines = implausible(made.card(part, kind="Tesla V100-SXM2-16GB"))
        return [line for line in lines if line.startswith("triad")]

    assert found(900.0) == [] and "the published peak of Tesla V100" in found(None)[0]


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
        reasons = implausible(made.card(links, host, kind=kind))
        names = ("pair_gb_per_s, source 0, peer 1:", "h2d_gb_per_s, device 0:")
        return sum(line.startswith(names) and "than any such" in line for line in reasons)

    assert (found(1.04), found(1.06)) == (0, 2)


def test_storage_has_bounds():
    figures = (
        measured("read_cold_gb_per_s", 1e5),
        measured("checkpoint_write_gb_per_s", 12.0),
        measured("decode_images_per_s", 1e9),
    )
    part = made.Part(name="storage", status="measured", time_s=9.0, figures=figures)
    found = [line for line in implausible(made.card(part)) if "cannot be" in line]
    assert len(found) == 2


def test_a_network_that_beats_the_matrices_has_no_share():
    """In fp32 Winograd's convolutions may; the card says no fraction, and is none the worse."""
    rate = 70_000.0
    part = fp32_networks(rate)
    share = rate * made.FLOPS / 4 / 200e12
    labels = {**made.NETWORK, "precision": "fp32"}
    ceilings = made.ceilings()
    figures = [*ceilings.figures]
    figures += [made.around("matmul_tf32_tflops", 200.0, device=0, nominal=made.PEAK_TF32_TFLOPS)]
    ceilings = replace(ceilings, figures=tuple(figures))
    assert implausible(made.card(ceilings, part)) == []
    figure = measured("measured_peak_share", share, **labels)
    part = replace(part, figures=(*part.figures, figure))
    assert any("at most 1" in line for line in implausible(made.card(ceilings, part)))


def test_a_card_is_of_its_preset():
    for fields in ({"preset": "standard-9"}, {"preset": "cpu-1"}, {"backend": "cpu"}):
        [line] = [one for one in implausible(made.card(**fields)) if "preset" in one]
        assert "none of these devices: standard-1, cpu-1" in line


def test_a_card_that_is_whole_has_no_problems(tmp_path):
    path = made.write(tmp_path)
    assert check_card(path) == check_card(tmp_path) == []


def of_one_run():
    """A card of which one run is behind all figures that need one."""
    soak = replace(made.soak(), figures=made.soak().figures[1:])
    return made.judged(made.networks(others=False), soak)


def test_files_beside_it_are_compared(tmp_path):
    path = made.write(tmp_path, of_one_run(), beside=True)
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
    path = made.write(tmp_path, beside=True)
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


def test_runs_are_behind_the_figures(tmp_path):
    path = made.alter(made.write(tmp_path, of_one_run(), beside=True), lambda c: c.update(files={}))
    assert check_card(path) == [
        "its files lack those of the runs: runs/resnet50/run.json, runs/resnet50/metrics.jsonl"
    ]
    nameless = [made.networks(others=False), made.soak()]
    for at, part in enumerate(nameless):
        figures = (replace(figure, run=None) for figure in part.figures)
        nameless[at] = replace(part, figures=tuple(figures))
    assert check_card(made.write(tmp_path, made.judged(*nameless))) == [
        "images_per_s, network resnet50, precision bf16, batch 256: names no run",
        "drift_percent: names no run",
    ]


@pytest.mark.parametrize(
    "name, changes, told",
    [
        ("images_per_s", {"value": 10_100.0}, "10100 (9900 to 10100) is not what its run has, 1"),
        ("images_per_s", {"interval": (9e3, 10_100.0)}, "is not what its run has, 10000 (9900"),
        ("drift_percent", {"value": -0.1, "interval": (-0.2, 0.0)}, "has, -15 (-16 to -14)"),
        ("energy_j_per_image", {"value": 0.19}, "0.19 is not what its run has, 0.2"),
        ("compile_cold_s", {"value": 2.0}, "2 is not what its run has, 20"),
        ("mfu", {"run": made.SOAK}, "is not what its run has, none"),
    ],
)
def test_a_figure_is_that_of_its_run(tmp_path, name, changes, told):
    part = made.networks()
    compiled = measured("compile_cold_s", 20.0, run=made.RUN, **made.NETWORK)
    part = replace(part, figures=(*part.figures, compiled))
    parts = (part, made.soak(drift=(-15.0, -16.0, -14.0)))
    assert check_card(made.write(tmp_path, made.judged(*parts), beside=True)) == []
    altered = [with_figure(one, name, **changes) if any(one.named(name)) else one for one in parts]
    found = check_card(write_card(tmp_path, made.judged(*altered)))
    assert any(line.startswith(name) and told in line for line in found), found


def test_a_run_without_its_records_is_behind_nothing(tmp_path):
    card = of_one_run()
    made.write(tmp_path, card, beside=True)
    (tmp_path / made.RUN / "metrics.jsonl").write_text('{"kind": "summary"}\n')
    found = check_card(write_card(tmp_path, card))
    assert len(found) == 4 and all(line.endswith("its run has, none") for line in found)


def test_swapped_digests_are_noticed(tmp_path):
    def swap(content):
        first, second = content["files"]
        content["files"] = {first: content["files"][second], second: content["files"][first]}

    path = made.alter(made.write(tmp_path, of_one_run(), beside=True), swap)
    assert len(check_card(path)) == 2


def test_what_cannot_be_read_is_the_only_problem(tmp_path):
    path = made.alter(made.write(tmp_path), lambda c: c.update(preset="other"), digest=False)
    [line] = check_card(path)
    assert "was altered or damaged" in line


def test_a_verdict_must_follow_from_the_figures(tmp_path):
    failed = made.judged(made.corruption(3))
    praised = replace(failed.verdict, outcome="pass")
    path = made.write(tmp_path, replace(failed, verdict=praised))
    assert check_card(path) == ["its verdict is pass, its figures give fail"]
    made.alter(path, lambda c: c["verdict"]["thresholds"].update({"mood.warn": 1.0}))
    assert check_card(path) == ["its verdict names limits that there are not: mood.warn"]
    made.alter(path, lambda c: c.pop("verdict"))
    assert check_card(path) == ["it has no verdict"]


def test_own_limits_belong_to_the_card(tmp_path):
    strict = made.judged()
    limits = {**strict.verdict.thresholds, "matmul_share_of_nominal.fail": 0.9}
    verdict = replace(strict.verdict, thresholds=limits)
    path = made.write(tmp_path, replace(strict, verdict=verdict))
    assert check_card(path) == [
        "its verdict is pass, its figures give fail",
        "its findings are not those that its figures give: ceilings: matmul share of nominal",
    ]


def test_a_card_from_before_a_rule_is_not_judged_by_it(tmp_path):
    path = made.write(tmp_path)

    def forget_rule(content):
        verdict = content["verdict"]
        for level in ("warn", "fail"):
            del verdict["thresholds"][f"device_spread.{level}"]
        verdict["findings"] = [f for f in verdict["findings"] if f["rule"] != "device_spread"]

    made.alter(path, forget_rule)
    assert check_card(path) == []
    assert "device_spread.fail none in place of 0.15" in own_limits(read_card(path))


def test_findings_must_follow_from_the_figures(tmp_path):
    path = made.write(tmp_path)
    # Other versions have other words.
    made.alter(path, lambda c: c["verdict"]["findings"][0].update(text="splendid"))
    assert check_card(path) == []
    made.alter(path, lambda c: c["verdict"]["findings"][0].update(status="not_judged"))
    assert check_card(path) == [
        "its findings are not those that its figures give: doctor: problems"
    ]
    made.alter(made.write(tmp_path), lambda c: c["verdict"].update(findings=[]))
    assert "ceilings: device spread" in check_card(path)[0] and "more" in check_card(path)[0]
    finding = msgspec.to_builtins(made.judged().verdict.findings[0])
    made.alter(made.write(tmp_path), lambda c: c["verdict"]["findings"].append(finding))
    assert check_card(path)[0].endswith("figures give: doctor: problems")


def test_limits_that_are_not_the_shipped_ones_are_said(run_cli, tmp_path):
    limits = {**load_thresholds(), "matmul_share_of_nominal.fail": 0.1, "mismatches.fail": None}
    card = made.card()
    path = made.write(tmp_path, replace(card, verdict=judge(card, limits)))
    line = (
        "judged by limits of its own: matmul_share_of_nominal.fail 0.1 in place of 0.3, "
        "mismatches.fail none in place of 0"
    )
    assert own_limits(read_card(path)) == line and own_limits(made.judged()) is None
    done = run_cli("check", str(path), module="jaxbench.qualify")
    # They are the user's right, and no damage.
    assert done.returncode == 0 and line in " ".join(done.stdout.split())
    assert f"C1: {line}." in sections_of(tmp_path)["cards"].blocks
