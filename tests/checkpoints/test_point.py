"""Forged checkpoints, whose seal fits: values that no training run writes are one line."""

import pathlib

import pytest

from jaxbench.checkpoints.point import check_point
from jaxbench.errors import BadInput

METRICS, MODELS, STEPS = ("loss", "count"), 2, 11
SUMS = {"loss": [1.5, float("nan")], "count": [3, 3.0]}
BEGUN = {
    **{"epoch": 2, "total": SUMS, "interval": SUMS, "steps": 4, "interval_steps": 4},
    **{"interval_time_s": 0.1, "images": 512, "time_s": 0.1, "data_wait_s": 0.0},
    "profiled_steps": 0,
}
POINT = {
    **{"step": 26, "epochs_done": 2, "epoch_metrics": BEGUN, "learning_rate": 0.1},
    **{"compile_s": 1.5, "compile_cache": ["hit"], "first_step_s": None, "invalid": []},
    **{"corrupt": {"a.jpg": "empty"}, "traced": [1, 2], "records": {"metrics.jsonl": [1, "00"]}},
    "totals_s": {"other": 0.5, "train": 2},
}


def check(**changes):
    point = {name: value for name, value in (POINT | changes).items() if value is not KeyError}
    check_point(pathlib.Path("run/checkpoint"), point, METRICS, MODELS, STEPS)


def test_what_a_run_writes_is_taken():
    check()
    check(epoch_metrics=None, learning_rate=None)
    rows = [[1.5, 3.0], [0.5, 3.0]]
    old = {"total_RxM": rows, "interval_RxM": rows}
    old |= {name: value for name, value in BEGUN.items() if name not in ("total", "interval")}
    check(epoch_metrics=KeyError, progress=old)  # as earlier versions wrote it


@pytest.mark.parametrize(
    "name", ["step", "epochs_done", "records", "totals_s", "compile_s", "corrupt", "invalid"]
)
def test_values_of_another_form_are_told(name):
    wrong = [None, -1, True, 1e999, "x", [None], {"a": None}, {"a": {}}, [[]], 2**70]
    wrong += [KeyError] if name in ("step", "epochs_done", "records", "totals_s") else []
    if name == "records":  # what is in it is read with care
        wrong = [value for value in wrong if not isinstance(value, dict)]
    for value in wrong:
        with pytest.raises(BadInput, match="does not hold a training run's progress"):
            check(**{name: value})


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 3},
        {"steps": STEPS + 1},
        {"steps": "x"},
        {"total": {}},
        {"total": {"loss": [0.0] * MODELS}},
        {"total": {**SUMS, "count": [0.0]}},
        {"total": {**SUMS, "count": 0.0}},
        {"interval": [SUMS]},
        {"interval_RxM": [[0.0]]},
        {"time_s": float("nan")},
        {"unknown": 1},
    ],
)
def test_an_epoch_of_another_form_is_told(change):
    with pytest.raises(BadInput, match="run/checkpoint: its manifest.json"):
        check(epoch_metrics=BEGUN | change)
    for value in ({"a": 1}, {"steps": 0}, [1], 1.5, "x"):
        with pytest.raises(BadInput, match="run/checkpoint: its manifest.json"):
            check(epoch_metrics=value)
