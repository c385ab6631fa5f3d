"""The parts of a sweep, and what it refuses."""

import json
import math
import os
import random

import pytest

from jaxbench.analysis.statistics import spread
from jaxbench.errors import BadInput
from jaxbench.sweeps import grid, sweep_dir
from jaxbench.sweeps.max_batch import Trial, largest_batch
from jaxbench.sweeps.tables import exit_code, seen

QUICK = ("--experiment=quickstart:tiny", "--mode=memory")


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("batch_size=64,128", "batch_size", ("64", "128")),
        (
            "optimizer.decay_epochs=(1,2),(3,),(4,5,6)",
            "optimizer.decay_epochs",
            ("(1,2)", "(3,)", "(4,5,6)"),
        ),
        ("experiment=cnn10:tiny,my/own.py", "experiment", ("cnn10:tiny", "my/own.py")),
    ],
)
def test_an_axis_is_read(text, field, values):
    assert grid.parse_axis(text) == grid.Axis(field, values)


def make(*axes, spec="quickstart:tiny", overrides=(), **more):
    return grid.make_cells(spec, overrides, axes, **more)


def test_a_grid_is_every_combination_the_last_field_fastest():
    made = make("batch_size=64,128", "precision=fp32,bf16", overrides=["--experiment.seed=3"])
    places = [(cell.config.batch_size, cell.config.precision) for cell in made]
    assert places == [(64, "fp32"), (64, "bf16"), (128, "fp32"), (128, "bf16")]
    assert {cell.config.seed for cell in made} == {3}
    assert made[1].arguments == [
        "--experiment=quickstart:tiny",
        "--experiment.seed=3",
        "--experiment.batch_size=64",
        "--experiment.precision=bf16",
    ]
    assert [c.config.name for c in make("experiment=cnn10:tiny,mnist_cnn:tiny", spec=None)] == [
        "cnn10:tiny",
        "mnist_cnn:tiny",
    ]


def test_a_key_is_the_same_for_the_same_run_only():
    [one] = make("batch_size=64")
    [same] = make("precision=fp32", overrides=["--experiment.batch_size=64"])
    assert one.key == same.key
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
        on_other_devices = make("batch_size=64")[0].key
    others = [
        make("batch_size=128")[0],
        make("batch_size=64", flags=["--mode=memory"])[0],
        make("batch_size=64", limits=["memory_limit_mb=100"])[0],
        make("batch_size=64", overrides=["--experiment.seed=1"])[0],
    ]
    assert len({on_other_devices, *(cell.key for cell in (one, *others))}) == 6
    long = make("data.path=" + "x/" * 300, overrides=["--experiment.data.source=npz"])[0]
    assert len(long.folder) < 130 and "/" not in long.folder


def test_the_largest_batch_is_found_whatever_the_plan_is_worth():
    draw = random.Random(0)
    trials = {True: [], False: []}
    for number in range(600):
        known = number % 2 == 0
        unit = draw.choice([1, 2, 8, 32])
        start = unit * draw.randint(1, 64)
        limit, per_image = draw.uniform(1e3, 1e5), draw.uniform(0.5, 20)
        constant, wrong_by = draw.uniform(0, 500), draw.uniform(0.9, 1.3)
        tried = []

        def try_batch(batch):
            tried.append(batch)  # noqa: B023
            needed = constant + per_image * batch  # noqa: B023
            fits = needed * wrong_by <= limit  # noqa: B023
            return Trial(fits, needed, limit) if known else Trial(fits)  # noqa: B023

        largest = max(0, int((limit / wrong_by - constant) / per_image) // unit * unit)
        assert largest_batch(try_batch, start, unit) == (largest or None, largest + unit)
        assert len(tried) == len(set(tried)) and all(batch % unit == 0 for batch in tried)
        trials[known].append(len(tried))
    # The plan is worth something: it saves trials.
    assert sum(trials[True]) < 0.8 * sum(trials[False])


def test_a_sweeps_folder_takes_up_what_a_killed_one_left(tmp_path):
    with sweep_dir.open_sweepdir(tmp_path / "s") as folder:
        folder.add(RESULT | {"key": "a"})
        with (
            pytest.raises(BadInput, match="another sweep is at work there"),
            sweep_dir.open_sweepdir(tmp_path / "s"),
        ):
            pass
    with open(tmp_path / "s" / "results.jsonl", "a") as file:
        file.write('\n{"key": "b", "sta')
    with sweep_dir.open_sweepdir(tmp_path / "s") as folder:
        assert set(folder.results) == {"a"}
        folder.add(RESULT | {"key": "b", "status": "oom"})
    lines = (tmp_path / "s" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines if line] == ["a", "b"]


RESULT = {"key": "a", "status": "ok", "figures": {}, "wall_s": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "5",
        "null",
        '{"key": "a"}',
        json.dumps(RESULT | {"status": "weird"}),
        '{"status": "ok"}',
    ],
)
def test_damaged_results_are_told(tmp_path, line):
    (tmp_path / "lock").write_text("")
    (tmp_path / "results.jsonl").write_text(f"{line}\n")
    with (
        pytest.raises(BadInput, match="line 1 is corrupt"),
        sweep_dir.open_sweepdir(tmp_path),
    ):
        pass


_BAD = [
    (("--experiment=quickstart:tiny",), "give --grid=FIELD=VALUE"),
    (("--grid=batch_size=1",), "give --experiment=NAME or --grid=experiment"),
    ((*QUICK, "--grid=batch_size"), "must be FIELD=VALUE,VALUE"),
    ((*QUICK, "--grid=batch_size=1,"), "must be FIELD=VALUE,VALUE"),
    ((*QUICK, "--grid=batch_size=1,1"), "1 stands in it twice"),
    ((*QUICK, "--grid=batch_sise=1"), "did you mean 'batch_size'"),
    ((*QUICK, "--grid=experiment.epochs=2"), "no field 'experiment.epochs'"),
    ((*QUICK, "--grid=batch_size=many"), "must be a whole number"),
    ((*QUICK, "--grid=precision=fp32,fp8"), "must be one of fp32, bf16, fp16, fp64"),
    ((*QUICK, "--grid=seed=1", "--grid=seed=2"), "is given 2 times"),
    ((*QUICK, "--grid=seed=1", "--experiment.seed=2"), "give one of them"),
    ((*QUICK, "--grid=experiment=cnn10:tiny"), "not both"),
    ((*QUICK, "--grid=seed=1", "--workdir=w"), "a sweep has --sweepdir"),
    ((*QUICK, "--grid=seed=1", "--rounds=7"), "it goes with --mode="),
    ((*QUICK, "--grid=seed=1", "--timeout_s=0"), "timeout_s"),
    ((*QUICK, "--grid=seed=1", "--timeout_s=nan"), "timeout_s"),
    ((*QUICK, "--grid=seed=1", "--batch_multiple=8"), "goes with --find_max_batch"),
    ((*QUICK, "--find_max_batch", "--grid=batch_size=1"), "that is what it finds"),
    (("--experiment=quickstart:tiny", "--mode=describe", "--grid=seed=1"), "runs nothing"),
    (("--experiment=quickstart:tiny", "--mode=train", "--find_max_batch"), "--mode=memory"),
    ((*QUICK, "--grid=seed=1", "--sweepdir="), "must name a folder"),
    ((*QUICK, "--grid=batch_size=64,064"), "are the same run"),
    ((*QUICK, "--grid=seed=1", "--telemetry_s=nan"), "--telemetry_s=nan"),
    ((*QUICK, "--grid=seed=1", "--compile_cache=/proc/x"), "--compile_cache=/proc/x"),
    ((*QUICK, "--grid=seed=1", "--memory_limit_mb=1e300"), "must be at most"),
    ((QUICK[0], "--mode=throughput", "--grid=seed=1", "--window_s=inf"), "--window_s=inf"),
    ((QUICK[0], "--mode=throughput", "--grid=seed=1", "--profile=9:3"), "START must be below"),
    ((QUICK[0], "--mode=scaling", "--grid=seed=1", "--device_counts=a"), "whole numbers"),
    ((QUICK[0], "--mode=scaling", "--grid=seed=1", "--link_gb_per_s=nan"), "more than 0"),
    ((QUICK[0], "--grid=seed=1", "--target_accuracy=94"), "must be a share"),
    ((*QUICK, "--grid=seed=1", "--sweepdir=full"), "holds something that is no sweep"),
    ((*QUICK, "--grid=seed=1", "stray"), "flags begin with --"),
    ((*QUICK, "--grid=seed=1", "--retry=ok"), "retry"),
]


@pytest.mark.parametrize(("args", "told"), _BAD)
def test_bad_input_is_told_in_one_line(run_cli, tmp_path, args, told):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    done = run_cli(*args, module="jaxbench.sweep")
    assert done.returncode == 2 and done.stdout == ""
    assert told in done.stderr and len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == ["full"]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(["ok", "oom", "timeout"], 0), (["ok", "failed"], 1), (["invalid", "ok"], 1), ([], 0)],
)
def test_what_does_not_fit_is_a_result_and_what_fails_is_not(statuses, code):
    assert exit_code(statuses) == code


def test_a_target_never_reached_takes_without_end():
    assert seen({"target_value": 0.9}, "target_s") == math.inf
    assert seen({"target_value": 0.9, "target_s": 3.0}, "target_s") == 3.0
    assert seen({}, "target_s") is None
    found = spread([1.0, math.inf, 3.0])
    assert (found["median"], found["mean"], found["std"]) == (3.0, math.inf, None)
    found = spread([1.0, 2.0, 6.0])
    extremes = {name: found[name] for name in ("n", "median", "mean", "min", "max")}
    assert extremes == {"n": 3, "median": 2, "mean": 3, "min": 1, "max": 6}
    assert found["std"] == pytest.approx(7**0.5)
