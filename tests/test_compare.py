"""python -m jaxbench.compare: ratios with intervals, and no more said than they allow."""

import functools
import json
import math

import pytest

from jaxbench.analysis.rate import Estimate, are_interleaved, ratio
from jaxbench.reports.sides import judge, match_trials, read_sides
from jaxbench.results.answers import Comparison
from tests.conftest import refusal
from tests.recorded import write_repeats, write_run, write_sweep


def compared(first, second):
    [comparison] = Comparison([str(first)], [str(second)]).comparisons
    return comparison


@pytest.mark.parametrize(
    ("rates", "spread", "verdict"),
    [
        ((110.0, 110.5, 109.5), 0.001, "faster"),
        ((90.0, 90.5, 89.5), 0.001, "slower"),
        ((101.0, 100.5, 99.5), 0.001, "no significant difference"),
        ((110.0, 140.0, 90.0), 0.001, "no significant difference"),  # repeats differ as much
        ((110.0, 110.5, 109.5), 0.4, "no significant difference"),  # a run's windows do
    ],
)
def test_faster_is_said_only_where_the_interval_leaves_out_one(tmp_path, rates, spread, verdict):
    base = write_repeats(tmp_path / "a", 100.0, 100.5, 99.5, spread=spread)
    other = write_repeats(tmp_path / "b", *rates, spread=spread)
    found = compared(base, other)["stages"]["train_step"]
    assert found["verdict"] == verdict
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]
    assert found["images_per_s"] == [[100.0, 100.5, 99.5], list(rates)]


def test_a_single_run_gets_no_verdict(tmp_path):
    first, second = write_run(tmp_path / "a", 100.0), write_run(tmp_path / "b", 50.0)
    found = compared(first, second)["stages"]["train_step"]
    assert (found["verdict"], found["reasons"][0]) == ("inconclusive", "one run each")
    assert found["ratio"] == pytest.approx(0.5)
    assert found["ratio_low"] == pytest.approx(0.5 * 0.98 / 1.02)
    assert found["ratio_high"] == pytest.approx(0.5 * 1.02 / 0.98)
    # How much the other runs of B would differ, A's runs do not say.
    repeats = write_repeats(tmp_path / "c", 100.0, 101.0, 99.0, 100.0)
    found = compared(repeats, second)["stages"]["train_step"]
    assert (found["verdict"], found["reasons"][0]) == ("inconclusive", "one run of B")
    assert found["ratio_low"] == pytest.approx(0.5 * 0.98 / 1.02, rel=1e-3)


@pytest.mark.parametrize(
    ("order", "interleaved"),
    [
        ("ABAB", True),
        ("ABBA", True),
        ("ABABABAB", True),
        ("BBBABBBBBABB", True),
        ("AABB", False),
        ("AAABA", False),
        ("AAAABAB", False),
        ("AAABBBAAABBB", False),
        ("AB", False),
    ],
)
def test_runs_on_one_host_must_be_interleaved(tmp_path, order, interleaved):
    starts = [[str(at) for at, own in enumerate(order, 10) if own == side] for side in "AB"]
    assert are_interleaved(*starts) == interleaved
    for side, rate in (("A", 100.0), ("B", 50.0)):
        for at, own in enumerate(order):
            if own == side:
                began = f"2026-01-01T00:{at:02}:00+00:00"
                write_run(tmp_path / side / str(at), rate, spread=0.001, began=began)
    stage = compared(tmp_path / "A", tmp_path / "B")["stages"]["train_step"]
    verdict = ": ".join((stage["verdict"], *stage["reasons"]))
    if min(map(order.count, "AB")) > 1:
        assert verdict == ("slower" if interleaved else "inconclusive: not interleaved")


def test_different_hosts_need_not_be_interleaved_and_what_that_means_is_said(run_compare, tmp_path):
    a = write_repeats(tmp_path / "a", 100.0, 100.1, spread=0.001, host="one")
    b = write_repeats(tmp_path / "b", 50.0, 50.1, spread=0.001, hour=1, host="two")
    found = compared(a, b)
    assert found["stages"]["train_step"]["verdict"] == "slower" and not found["same_host"]
    assert "temperature of each host are part of the ratio" in unwrapped(run_compare(a, b))
    c = write_repeats(tmp_path / "c", 50.0, 50.1, spread=0.001, hour=1, host="one")
    assert compared(a, c)["stages"]["train_step"]["reasons"] == ("not interleaved",)


def test_intervals_that_are_judged_together_hold_together(tmp_path):
    def interval(*batches):
        pairs = [(batch, seed) for batch in batches for seed in (0, 1, 2)]
        sweeps = []
        for name, rate in (("a", 100.0), ("b", 101.0)):
            rates = {pair: rate + pair[1] / 2 for pair in pairs}
            folder = tmp_path / f"{name}{len(batches)}"
            sweeps.append(read_sides(write_sweep(folder, rates, spread=0.0001)))
        comparisons = judge(match_trials(*sweeps))
        assert {one["num_verdicts"] for one in comparisons} == {len(batches)}
        return comparisons[0]["stages"]["train_step"]

    alone, together = interval(64), interval(64, 128, 256)
    assert alone["ratio"] == together["ratio"]
    # Student's t of 2 degrees of freedom at 95 % and at 98.3 %.
    widths = [math.log(one["ratio_high"] / one["ratio_low"]) for one in (alone, together)]
    assert widths[1] / widths[0] == pytest.approx(7.649 / 4.303, rel=1e-3)


def test_the_runs_own_intervals_are_a_least_width():
    side = [Estimate(100.0, 99.0, 101.0)] * 4
    found = ratio(side, side)
    assert math.log(found.high / found.low) / 2 == pytest.approx(0.01 * math.sqrt(2 / 4), rel=1e-3)


def test_epochs_but_the_first_are_a_training_runs_rate(tmp_path):
    for name, rates in (("a", (1.0, 50, 51, 52)), ("b", (900.0, 25, 25, 26))):
        write_run(tmp_path / name, epoch_rates=rates)
    stages = compared(tmp_path / "a", tmp_path / "b")["stages"]
    assert stages["training"]["ratio"] == pytest.approx(25 / 51)


def test_equal_trainings_have_equal_losses_or_differ_from_an_epoch_on(run_compare, tmp_path):
    rates = (1.0, 50, 51, 52)
    base = write_run(tmp_path / "a", epoch_rates=rates, seed=3)
    again = write_run(tmp_path / "b", epoch_rates=rates, seed=3)
    other = write_run(tmp_path / "other", epoch_rates=rates, seed=4)
    said = run_compare(base, again, other).stdout
    assert said.count("losses") == 1
    assert "losses equal, digit for digit, in all 4 epochs" in " ".join(said.split())
    metrics = tmp_path / "b" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("0.6666666666666666", "0.6666666666666667"))
    said = run_compare(base, again).stdout
    assert "losses differ from epoch 3 on" in " ".join(said.split())
    # Repeats have pairs of equal seeds.
    write_run(tmp_path / "seeds" / "3", epoch_rates=rates, seed=3)
    write_run(tmp_path / "seeds" / "5", epoch_rates=rates, seed=5)
    assert compared(tmp_path / "seeds", base)["losses"] == {"epochs": 4, "differ_from_epoch": None}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"status": "oom"}, "its status is oom (out of luck)"),
        ({"status": "running"}, "its status is killed"),
        ({"feed": "stream"}, "two different figures"),
    ],
)
def test_figures_that_are_no_pair_are_refused(tmp_path, how, told):
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b", **how)
    refusal(compared, first, second, told=told)


def test_runs_of_one_folder_must_be_repeats(tmp_path):
    base = write_run(tmp_path / "a")
    write_run(tmp_path / "b" / "1")
    write_run(tmp_path / "b" / "2", batch_size=256)
    refusal(compared, base, tmp_path / "b", told="no repeats, they differ in batch_size")


def test_a_run_whose_records_are_doubled_is_refused(tmp_path):
    base, other = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    metrics = tmp_path / "b" / "metrics.jsonl"
    metrics.write_text(2 * metrics.read_text())
    told = "status is corrupt (metrics.jsonl has 2 summaries: records are doubled)"
    refusal(compared, base, other, told=told)


@pytest.mark.parametrize("rates", [(100.0, 101.0, 102.0), (9.0, 98.0, 102.0)])
def test_a_rate_that_cannot_be_is_refused(tmp_path, rates):
    base, other = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    rate, low, high = rates
    interval = {"images_per_s": rate, "images_per_s_low": low, "images_per_s_high": high}
    lines = (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | interval)
    (tmp_path / "b" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    refusal(compared, base, other, told="its rate of 'train_step' is impossible")


def test_sweeps_are_compared_trial_by_trial(tmp_path):
    slow = {(64, 0): 50.0, (64, 1): 50.1, (128, 0): 90.0, (128, 1): 90.5, (256, 0): 95.0}
    fast = {(64, 0): 70.0, (64, 1): 70.1, (128, 0): 90.1, (128, 1): 90.6, (256, 0): None}
    base = write_sweep(tmp_path / "a", slow, spread=0.001)
    other = write_sweep(tmp_path / "b", fast | {(512, 0): 99.0}, spread=0.001)
    *matches, lost, alone = match_trials(read_sides(base), read_sides(other))
    first, second = judge(matches)
    assert first["other"] == f"{other}: batch_size=64"
    assert first["stages"]["train_step"]["verdict"] == "faster" and first["runs"] == [2, 2]
    assert second["stages"]["train_step"]["verdict"] == "no significant difference"
    assert lost.startswith("batch_size=256: ") and "its status is oom (out of memory)" in lost
    assert alone == "batch_size=512: only one of the sweeps has it"
    refusal(compared, base, write_run(tmp_path / "c"), told="a sweep is compared with a sweep")


@pytest.fixture
def run_compare(run_cli):
    return functools.partial(run_cli, module="jaxbench.compare")


def test_the_settings_of_one_sweep_are_compared(run_compare, refused, tmp_path):
    rates = {(32, 0): None, (64, 0): 50.0, (128, 0): 90.0, (64, 1): 50.1, (128, 1): 90.1}
    sweep = write_sweep(tmp_path / "a", rates, spread=0.001)
    answer = json.loads(run_compare(sweep, "--json").stdout)
    [found], [left_out] = answer["comparisons"], answer["not_compared"]
    assert "its status is oom (out of memory)" in left_out
    assert found["differences"] == {"batch_size": [64, 128]} and found["runs"] == [2, 2]
    assert found["stages"]["train_step"]["ratio"] == pytest.approx(1.8, rel=0.01)
    for single in (write_run(tmp_path / "b"), write_sweep(tmp_path / "c", {(64, 0): 50.0})):
        refused(single, told="give what to compare it with", module="jaxbench.compare")


def test_a_trial_that_is_lost_is_no_pass_of_a_baseline(run_compare, tmp_path):
    rates = {(64, 0): 100.0, (64, 1): 100.1, (128, 0): 200.0, (128, 1): 200.2}
    write_sweep(tmp_path / "a", rates, spread=0.001)
    write_sweep(tmp_path / "b", rates | {(128, 0): None, (128, 1): None}, spread=0.001)
    sweeps = [str(tmp_path / name) for name in "ab"]
    assert run_compare(sweeps[0], sweeps[0], "--baseline", "--tolerance=0.1").returncode == 0
    assert run_compare(*sweeps).returncode == 0
    assert run_compare(*sweeps, "--baseline").returncode == 1


def unwrapped(done):
    return " ".join(done.stdout.split())


def test_the_command(run_compare, tmp_path):
    a = write_repeats(tmp_path / "a", 100.0, 100.1, 99.9, spread=0.001)
    b = write_repeats(tmp_path / "b", 90.0, 90.1, 89.9, spread=0.001)
    c = write_repeats(tmp_path / "c", 110.0, 110.1, 109.9, spread=0.001)
    done = run_compare(a, b, c)
    assert done.returncode == 0, done.stderr
    _, slower, faster = unwrapped(done).split("train_step A ")
    assert ": slower A " in slower and ": faster" in faster
    # A path is longer, on a line of its own.
    assert all(len(line) <= 80 or "/" in line for line in done.stdout.splitlines())
    assert "3 runs; other processes" in unwrapped(done)
    done = run_compare(a, b, "--baseline")
    assert done.returncode == 1 and "slower than the baseline by more than 2%" in unwrapped(done)
    assert run_compare(a, b, "--baseline", "--tolerance=0.2").returncode == 0
    assert run_compare(b, a, "--baseline").returncode == 0
    failed = write_run(tmp_path / "failed", 90.0, status="failed")
    done = run_compare(a, failed, write_sweep(tmp_path / "sweep", {(64, 0): 50.0}), b)
    assert done.returncode == 0 and ": slower" in unwrapped(done)
    assert f"{failed}: its status is failed" in unwrapped(done)
    assert "a sweep is compared with a sweep" in unwrapped(done)
    assert run_compare(a, failed, b, "--baseline").returncode == 1
    [found] = json.loads(run_compare(a, b, "--json").stdout)["comparisons"]
    assert found["stages"]["train_step"]["ratio"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "give two or more runs, sweeps or cards"),
        (["a"], "is one setting; give what to compare it with"),
        (["a", "none"], "no such folder"),
        (["a", "b", "--tolerance=0.1"], "needs --baseline"),
        (["a", "b", "--baseline", "--tolerance=nan"], "--tolerance=nan: must be a fraction"),
        (["a", "b", "--basline"], "basline"),
    ],
)
def test_what_cannot_be_compared_is_refused(refused, tmp_path, args, told):
    for name in "ab":
        write_repeats(tmp_path / name, 100.0, 100.1)
    refused(*args, told=told, module="jaxbench.compare")


@pytest.mark.parametrize(
    ("rates", "how", "code", "why"),
    [
        ((100.0, 100.1, 99.9), {}, 0, None),
        ((50.0, 50.1, 49.9), {}, 1, "slower than the baseline by more than 2%"),
        ((50.0, 50.1, 49.9), {"busy": True}, 3, "the host was busy"),
        ((50.0, 50.1, 49.9), {"distorters": ["JIT=0 (slow)"]}, 3, "distorted by JIT=0 (slow)"),
        ((50.0, 50.1, 49.9), {"busy": None}, 3, "the load of the host is not known"),
        ((50.0, 50.1, 49.9), {"hour": 1}, 3, "not interleaved"),
        ((50.0, 50.1, 49.9), {"hour": 1, "busy": True}, 3, "not interleaved; the host was busy"),
        ((50.0,), {}, 3, "one run of B"),
        # A difference of 2 % could not have been seen.
        ((100.0, 140.0, 70.0), {}, 3, "the interval contains 0.98"),
    ],
)
def test_a_gate_passes_fails_or_is_undecided(run_compare, tmp_path, rates, how, code, why):
    a = write_repeats(tmp_path / "a", 100.0, 100.1, 99.9, spread=0.001)
    b = write_repeats(tmp_path / "b", *rates, spread=0.001, **how)
    done = run_compare(a, b, "--baseline")
    assert done.returncode == code, done.stdout + done.stderr
    assert why is None or why in unwrapped(done)
    assert ("undecided: " in unwrapped(done)) == (code == 3)
    assert run_compare(a, b).returncode == 0
    done = run_compare(a, b, "--baseline", "--json")
    assert done.returncode == code and len(json.loads(done.stdout)["comparisons"]) == 1


@pytest.mark.parametrize(
    ("how", "field", "verdict"),
    [
        ({"data": {"source": "tfds", "image_shape": [16, 16, 1]}}, "data.image_shape", None),
        ({"data": {"source": "cifar10"}}, "data.source", None),
        ({"model": {"depth": 16}}, "model.depth", None),
        # A setting may be faster, and is no baseline.
        ({"precision": "bf16"}, "precision", "faster"),
        ({"batch_size": 256}, "batch_size", "faster"),
        # How data are read is no work.
        ({"data": {"source": "tfds", "num_threads": 2}}, None, "faster"),
    ],
)
def test_different_work_gets_no_verdict(run_compare, tmp_path, how, field, verdict):
    a = write_repeats(tmp_path / "a", 100.0, 100.1, spread=0.001)
    b = write_repeats(tmp_path / "b", 229.0, 229.1, spread=0.001, **how)
    [found] = compared(a, b)["stages"].values()
    assert found["verdict"] == (verdict or "inconclusive")
    assert verdict or found["reasons"] == (f"they differ in {field}",)
    done = run_compare(a, b, "--baseline")
    assert done.returncode == (2 if field else 0)
    assert field is None or f"these differ in {field}" in done.stderr
