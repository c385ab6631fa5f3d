"""The verdict: every rule passes, warns and fails where its limit says so, and says why."""

import pytest
from msgspec.structs import replace

from jaxbench.cards.figures import MEMORY
from jaxbench.cards.verdict import LIMITS, failures, judge
from jaxbench.hardware.checks import Check
from jaxbench.hardware.system import BUSY_PERCENT
from tests.cards import made

PEAK = made.PEAK_TFLOPS


def expected_and_judged(card, *fleet):
    return made.with_verdict(made.expected(card, fleet)).verdict


def finding(verdict, rule, part=None):
    [found] = [one for one in verdict.findings if one.rule == rule and part in (None, one.part)]
    return found


def test_a_healthy_card_passes():
    verdict = judge(made.card())
    assert verdict.outcome == "pass" and failures(verdict) == []
    passed = {one.part for one in verdict.findings if one.status == "pass"}
    # Nothing is claimed of what has no limit.
    assert passed == {"doctor", "ceilings", "soak", "corruption"}


CASES = {
    "matmul warns": (made.ceilings(0.6 * PEAK), "below_floor", "warn"),
    "matmul fails": (made.ceilings(0.4 * PEAK), "below_floor", "fail"),
    # Its interval's better end is the floor and more, its worse end is no failure.
    "matmul's better end": (made.ceilings(0.649 * PEAK), "below_floor", "pass"),
    "bandwidth warns": (made.ceilings(triad=2400.0), "below_floor", "warn"),
    "bandwidth fails": (made.ceilings(triad=1500.0), "below_floor", "fail"),
    "a slow network": (made.networks(6000.0), "slower_than_predicted", "warn"),
    "a very slow network": (made.networks(3000.0), "slower_than_predicted", "fail"),
    "spread passes": (made.ceilings([700, 700, 680, 700]), "device_spread", "pass"),
    "spread warns": (made.ceilings([700, 700, 630, 700]), "device_spread", "warn"),
    "spread fails": (made.ceilings([700, 700, 500, 700]), "device_spread", "fail"),
    "slower": (made.soak(drift=(-5.0, -6.0, -4.0)), "slowdown_percent", "warn"),
    "much slower": (made.soak(drift=(-15.0, -16.0, -14.0)), "slowdown_percent", "fail"),
    "perhaps slower": (made.soak(drift=(-15.0, -30.0, 0.0)), "slowdown_percent", "inconclusive"),
    "hardly slower": (made.soak(drift=(-1.0, -9.0, 7.0)), "slowdown_percent", "pass"),
    "surely slower": (made.soak(drift=(-15.0, -30.0, -3.0)), "slowdown_percent", "warn"),
    "faster": (made.soak(drift=(15.0, 14.0, 16.0)), "slowdown_percent", "pass"),
    "throttled": (made.soak(throttled=0.2, reason="hw_slowdown"), "throttled_share", "warn"),
    "much throttled": (made.soak(throttled=0.6), "throttled_share", "fail"),
    "power": (made.soak(throttled=1.0, reason="sw_power_cap"), "throttled_share", "not_judged"),
    "errors": (made.soak(errors=1), "errors", "fail"),
    "corrected": (made.soak(errors=1, counter="ecc_corrected"), "corrected_errors", "warn"),
    "replays": (made.soak(errors=2, counter="pcie_replay"), "corrected_errors", "warn"),
    "old errors": (made.soak(errors=0), "errors", "pass"),
    **{
        f"{counter}, {before} before": (
            made.soak(errors=1 - before, counter=counter, before=before),
            "board_faults",
            "fail",
        )
        for counter in ("row_remapping_failed", "row_remapping_pending", "ecc_uncorrected")
        for before in (0, 1)
    },
    "no fault": (made.soak(counter="row_remapping_failed", before=0), "board_faults", "pass"),
    "mismatches": (made.corruption(1, [(3, "kernel")]), "mismatches", "fail"),
    "a problem": (made.doctor(driver="problem"), "problems", "fail"),
    "a warning": (made.doctor(disk="warning"), "warnings", "warn"),
}


@pytest.mark.parametrize("part, rule, status", CASES.values(), ids=[*CASES])
def test_verdict_of_each_rule(part, rule, status):
    verdict = expected_and_judged(made.card(part))
    found = finding(verdict, rule, part.name)
    assert found.status == status, found
    assert verdict.outcome == ("pass" if status == "not_judged" else status)
    assert bool(failures(verdict)) == (status == "fail")


def test_every_rule_has_limits_and_a_case():
    rules = {one.rule for one in judge(made.card()).findings} - {"status"}
    assert rules | {"other_cpu_percent", "other_gpu_processes"} == {*LIMITS}
    # The doctor and a run's warning have the limit of a card.
    assert LIMITS["other_cpu_percent"] == {"inconclusive": BUSY_PERCENT}
    tried = {rule for _, rule, _ in CASES.values()}
    assert rules - tried == {"transfer_spread", "slower_than_fleet"}


def test_a_failure_names_the_device_and_the_limit():
    card = made.card(made.ceilings([700, 700, 200, 250]))
    [line] = failures(expected_and_judged(card))[:1]
    assert "matmul_bf16_tflops, device 2: 200.0, expected 643.1 or more" in line
    assert line.startswith("ceilings: below floor: 0.6859") and "most 0.3" in line
    assert "1 more of 20 beyond it" in line


def test_mismatches_say_where_and_how_many():
    def text(*how):
        return finding(judge(made.card(made.corruption(*how))), "mismatches").text

    assert text(0) == "0 (results that differ); most 0"
    assert text(1) == "1 (results that differ); most 0"
    # Results and elements are counted apart.
    assert text(60, [(11, "layer0"), (3, "layer2"), (4, "layer1")]) == (
        "60 (results that differ; first: device 1, round 3, tensor layer2, 2 elements); most 0"
    )
    long = text(1, [(1, "a" * 500)])
    assert len(long) < 200


def test_a_busy_host_decides_nothing_that_it_disturbs():
    slow = made.ceilings(0.25 * PEAK)
    verdict = expected_and_judged(made.card(slow, load=(60.0, 0)))
    assert verdict.outcome == "inconclusive" and not failures(verdict)
    assert "busy: 60, limit 10" in finding(verdict, "other_cpu_percent").text
    assert finding(verdict, "below_floor", "ceilings").status == "inconclusive"
    # What passes passes, whoever else was there.
    assert finding(verdict, "device_spread").status == "pass"
    assert judge(made.card(load=(60.0, 0))).outcome == "inconclusive"
    assert judge(made.card(load=(1.0, 2))).outcome == "inconclusive"
    assert judge(made.card(load=(1.0, None))).outcome == "pass"
    # Beside GPUs a few busy cores of many disturb nothing.
    assert judge(made.card(load=(13.0, 0), busy=20.0)).outcome == "pass"
    assert judge(made.card(load=(13.0, 0), busy=95.0)).outcome == "inconclusive"
    unknown = judge(made.card(load=(None, None)))
    assert unknown.outcome == "inconclusive"
    assert "not known" in finding(unknown, "other_cpu_percent").text


def test_settings_for_debugging_decide_nothing_that_they_disturb():
    card = made.card(made.ceilings(0.25 * PEAK))
    card.environment["distorters"] = ["CUDA_LAUNCH_BLOCKING=1 (slow)"]
    verdict = expected_and_judged(card)
    assert verdict.outcome == "inconclusive" and not failures(verdict)
    assert "CUDA_LAUNCH_BLOCKING=1" in finding(verdict, "distorters").text
    assert finding(verdict, "below_floor", "ceilings").text.endswith("; rates are distorted")


def test_no_load_explains_wrong_results():
    verdict = judge(made.card(made.corruption(2), load=(60.0, 3)))
    assert verdict.outcome == "fail" and failures(verdict)[0].startswith("corruption: mismatches")


def test_a_cpu_has_no_peak_and_its_devices_are_one():
    ceilings = made.ceilings()
    figures = [one for one in ceilings.figures if one.device == 0]
    ceilings = replace(ceilings, figures=tuple(figures))
    verdict = judge(made.card(ceilings, backend="cpu", kind="cpu"))
    assert verdict.outcome == "pass"
    assert {one.status for one in verdict.findings if one.part == "ceilings"} == {"not_judged"}
    assert "nothing is published" in finding(verdict, "below_floor", "ceilings").text


def test_a_part_that_failed_fails_and_one_that_was_skipped_says_why():
    failed = judge(made.card(made.skipped("soak", "failed", "out of memory")))
    assert failures(failed) == ["soak: status: failed: out of memory"]
    left_out = judge(made.card(made.skipped("soak")))
    assert left_out.outcome == "incomplete" and not failures(left_out)
    assert finding(left_out, "status", "soak").text == "skipped: there is no time"


def of_networks(detail, name="no time for stated batches"):
    check = Check(name=name, status="warning", detail=detail)
    return replace(made.networks(), checks=(check,))


def without(part, *names, every=False):
    """The part without the first figure of each name, or without every one."""
    gone = [figure for name in names for figure in [*part.named(name)][: None if every else 1]]
    kept = tuple(figure for figure in part.figures if figure not in gone)
    return replace(part, figures=kept)


@pytest.mark.parametrize(
    "parts, text",
    [
        ([made.skipped("ceilings", reason="interrupted")], "skipped: interrupted"),
        ([made.skipped("doctor")], "skipped: there is no time"),
        ([made.skipped("collectives")], "skipped: there is no time"),
        ([of_networks("cnn10 bf16 64")], "no time for stated batches: cnn10 bf16 64"),
        ([of_networks("does not fit", "cnn10 bf16 64")], "cnn10 bf16 64: does not fit"),
        ([replace(made.soak(), figures=())], "nothing was measured"),
        ([without(made.soak(), "drift_percent")], "not measured: drift_percent"),
        ([without(made.corruption(), "rounds")], "not measured: rounds"),
        ([without(made.ceilings(), "triad_gb_per_s")], "not measured: triad_gb_per_s, device 0"),
        (
            [without(made.ceilings(), *MEMORY, "dispatch_latency_s", every=True)],
            "not measured: copy_gb_per_s, scale_gb_per_s, triad_gb_per_s, dispatch_latency_s",
        ),
    ],
)
def test_verdict_is_incomplete_where_a_part_is_missing(parts, text):
    verdict = judge(made.card(*parts))
    assert verdict.outcome == "incomplete"
    [found] = [one for one in verdict.findings if one.status == "incomplete"]
    assert (found.part, found.text) == (parts[0].name, text)
    # It is graver than a warning, and neither a failure nor an excuse for one.
    assert judge(made.card(*parts, load=(60.0, 0))).outcome == "inconclusive"
    assert judge(made.card(*parts, made.soak(errors=1))).outcome == "fail"
    if parts[0].name != "doctor":
        assert judge(made.card(*parts, made.doctor(disk="warning"))).outcome == "incomplete"


def test_a_part_that_a_card_cannot_have_is_not_left_out():
    # A part that is newer than the card.
    assert judge(made.card(parts=made.card().parts[:-1])).outcome == "pass"
    # One device has no links.
    one = made.card(made.skipped("collectives", reason="there is one device"))
    alone = replace(one, environment=one.environment | {"num_devices": 1})
    assert judge(alone).outcome == "pass" and judge(one).outcome == "incomplete"
