"""Sanity checks of a run's figures."""

import dataclasses

import pytest

from jaxbench.records.schema import EpochRecord, ThroughputRecord
from jaxbench.records.validity import (
    impossible,
    impossible_epoch,
    impossible_phases,
    impossible_total,
)

STAGE = ThroughputRecord(
    stage="train_step",
    feed="synthetic",
    precision="fp32",
    batch_size=32,
    num_devices=1,
    images_per_s=100.0,
    images_per_s_low=90.0,
    images_per_s_high=110.0,
    images_per_s_per_device=100.0,
    steps_per_call=1,
    step_s=1.0,
    windows_s=[2.0, 2.0],
    warmup_steps=5,
    warmup_settled=True,
    sync_residual_s=0.01,
    images_per_step=32,
    images_counted=32,
    latency_p50_s=1.1,
    latency_p95_s=1.2,
    latency_p99_s=1.3,
    mfu=0.9,
    peak={"kind": "TPU v4"},
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images_per_s": float("nan")}, "images_per_s is nan"),
        ({"images_per_s": 0.0}, "images_per_s is 0"),
        ({"images_per_s_low": 101.0}, "outside its own interval"),
        ({"latency_p50_s": 1.25}, "do not rise"),
        ({"latency_p50_s": 0.1}, "a step closed alone takes"),
        ({"sync_residual_s": 0.3}, "its work went on for 0.300 s after windows of 4.000 s"),
        ({"images_counted": 31}, "a step counted 31 images, its batch holds 32"),
        ({"mfu": 1.2}, "120% of what TPU v4 can do at most"),
    ],
)
def test_what_cannot_be_true_is_said(change, reason):
    assert impossible(STAGE) == impossible(dataclasses.replace(STAGE, mfu=None)) == []
    [told] = impossible(dataclasses.replace(STAGE, **change))
    assert reason in told


EPOCH = EpochRecord(
    epoch=3,
    epochs=9,
    step=15,
    complete=True,
    epoch_time_s=3.0,
    train_time_s=2.0,
    data_wait_s=0.5,
    eval_time_s=1.0,
    images=640,
    images_per_s=320.0,
    images_per_s_per_device=160.0,
    mfu=0.4,
    profiled_steps=0,
    train_loss=1.0,
    learning_rate=0.1,
    peak_memory_bytes=None,
    process_memory_bytes=None,
    elapsed_s=9.0,
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images": 600}, "600 images trained in steps of 640"),
        ({"images": 641}, "641 images trained in steps of 640"),
        ({"epoch_time_s": 2.9}, "took 2.9 s, its parts 3.0 s"),
        ({"data_wait_s": 3.1}, "more time spent waiting for data than there was"),
        ({"mfu": 1.2}, "120% of what the devices can do at most"),
    ],
)
def test_an_epoch_that_cannot_be_true_is_said(change, reason):
    assert impossible_epoch(EPOCH, 640) == []
    assert impossible_epoch(dataclasses.replace(EPOCH, images=639), 640, corrupt=1) == []
    told = impossible_epoch(dataclasses.replace(EPOCH, **change), 640)
    assert told == [f"epoch 3: {reason}"]


def test_times_that_do_not_add_up_are_said():
    assert impossible_total([3.0, 3.0], 6.0) == []
    assert impossible_total([3.0, 3.0], 5.9) == ["the epochs took 6.0 s, the whole run 5.9 s"]
    assert (
        impossible_phases({"train": 5.0, "other": 1.0}, 6.0) == impossible_phases(None, 6.0) == []
    )
    [told] = impossible_phases({"train": 5.0}, 6.0)
    assert told == "the phases take 5.000 s together, the whole run 6.000 s"
