"""Sanity checks of a run's figures."""

import pytest
from msgspec.structs import replace

from jaxbench.records.validity import (
    clock_disagreements,
    impossible,
    impossible_epoch,
    missing_arithmetic,
)
from jaxbench.schema import CompileRecord, EpochRecord, ThroughputRecord
from tests.recorded import filled

STAGE = filled(
    ThroughputRecord,
    **{"images_per_s": 100.0, "images_per_s_low": 90.0, "images_per_s_high": 110.0},
    **{"step_s": 1.0, "windows_s": [2.0, 2.0], "sync_residual_s": 0.01, "latency_p50_s": 1.1},
    **{"images_per_step": 32, "images_counted": 32, "mfu": 0.9, "peak": {"kind": "TPU v4"}},
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images_per_s": float("nan")}, "images_per_s is nan"),
        ({"images_per_s": 0.0}, "images_per_s is 0"),
        ({"latency_p50_s": 0.1}, "a step closed alone takes"),
        ({"sync_residual_s": 0.3}, "its work went on for 0.300 s after windows of 4.000 s"),
        ({"images_counted": 31}, "a step counted 31 images, its batch holds 32"),
        ({"mfu": 1.2}, "120% of what TPU v4 can do at most"),
    ],
)
def test_impossible_throughput(change, reason):
    assert impossible(STAGE) == impossible(replace(STAGE, mfu=None)) == []
    [told] = impossible(replace(STAGE, **change))
    assert reason in told


def test_a_step_alone_may_be_as_quick_as_the_quickest_steps_in_a_row():
    # A busy host: windows from 0.5 to 2 s a step, the steps closed alone 0.6 s.
    fields = {"latency_p50_s": 0.6, "images_per_s_low": 50.0}
    assert impossible(replace(STAGE, **fields, images_per_s_high=200.0)) == []
    [told] = impossible(replace(STAGE, **fields, images_per_s_high=110.0))
    assert "a step closed alone takes" in told


EPOCH = filled(EpochRecord, epoch=3, images=640, mfu=0.4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images": 600}, "600 images trained in steps of 640"),
        ({"images": 641}, "641 images trained in steps of 640"),
        ({"mfu": 1.2}, "120% of what the devices can do at most"),
    ],
)
def test_impossible_epoch(change, reason):
    assert impossible_epoch(EPOCH, 640) == []
    told = impossible_epoch(replace(EPOCH, **change), 640)
    assert told == [f"epoch 3: {reason}"]


def test_impossible_flops():
    """460 TFLOP/s on two cores: a network that ignores its images."""
    stage = replace(STAGE, mfu=None, flops_per_s_per_device=460e12)
    assert impossible(stage) == impossible(stage, limit=460e12) == []
    [told] = impossible(stage, limit=1.66e12)
    assert told.startswith("460.00 TFLOP/s on a device by the network's own arithmetic, no such ")
    assert "more than 1.66" in told


COMPILED = filled(CompileRecord, function="eval_step")


@pytest.mark.parametrize(
    ("compiled", "told"),
    [(1e9, 0), (0.4e9, 0), (0.3e9, 1), (7.0, 1), (None, 0), (0.0, 0), (-1.0, 0)],
)
def test_a_step_without_its_networks_arithmetic_is_said(compiled, told):
    record = replace(COMPILED, xla_flops_per_device=compiled)
    warnings = missing_arithmetic(record, 1e9)
    assert len(warnings) == told and all("the compiled eval_step does" in w for w in warnings)
    assert missing_arithmetic(record, 0.0) == []


SUSPENDED, SET = "the machine was suspended or a clock is wrong", "the date was set meanwhile"


@pytest.mark.parametrize(
    ("date_s", "uptime_s", "told"),
    [
        (100.5, 99.5, None),
        (101.9, 101.9, None),  # within 2 %
        (400.0, 400.0, SUSPENDED),  # the run's clock is four times too slow
        (25.0, 25.0, SUSPENDED),
        (100.0, 108.0, SUSPENDED),
        (3700.0, 100.0, SET),
        (-3500.0, 100.0, SET),
        (108.0, None, SUSPENDED),
    ],
)
def test_clocks_that_disagree_are_said(date_s, uptime_s, told):
    elapsed_s = {"run": 100.0, "date": date_s}
    warnings = clock_disagreements(elapsed_s | ({} if uptime_s is None else {"uptime": uptime_s}))
    assert len(warnings) == bool(told)
    if told:
        assert warnings[0].startswith("the run's clock counted 100.0 s, ") and told in warnings[0]
    # Of a short run, a second is not much.
    assert clock_disagreements({"run": 0.5, "date": 1.4, "uptime": 0.5}) == []
