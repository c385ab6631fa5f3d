"""The parts of a sweep, and what it refuses."""

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import random
import re

import msgspec
import pytest

from jaxbench.analysis.statistics import spread
from jaxbench.errors import BadInput
from jaxbench.parallel.child import ProcessResult
from jaxbench.records.reader import RunRecords
from jaxbench.records.schema import MaxBatchResult, TrialFigures, TrialResult
from jaxbench.records.writers.console import Console
from jaxbench.sweeps import grid, sweep_dir
from jaxbench.sweeps.max_batch import BatchFit, _find_max_batch, largest_batch
from jaxbench.sweeps.tables import (
    exit_code,
    figures_of,
    max_batch_table,
    repeated_warnings,
    seed_statistics,
    trial_table,
)
from jaxbench.sweeps.trials import TrialRunner, run_trials
from tests.conftest import run_document
from tests.launchers.fakes import FakeLauncher
from tests.records.test_validity import COMPILED

QUICK = ("--experiment=quickstart:tiny", "--mode=memory")


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("batch_size=64,128", "batch_size", ("64", "128")),
        (
            "model.channels=(1,2),(3,),(4,5,6)",
            "model.channels",
            ("(1,2)", "(3,)", "(4,5,6)"),
        ),
        ("experiment=cnn10:tiny,my/own.py", "experiment", ("cnn10:tiny", "my/own.py")),
    ],
)
def test_an_axis_is_read(text, field, values):
    assert grid.parse_grid([text]) == {field: [*values]}


def make(*axes, spec="quickstart:tiny", overrides=(), **more):
    return grid.make_trials(spec, overrides, grid.parse_grid(axes), **more)


def test_a_grid_is_every_combination_the_last_field_fastest():
    made = make("batch_size=64,128", "precision=fp32,bf16", overrides=["--experiment.seed=3"])
    places = [(trial.config.batch_size, trial.config.precision) for trial in made]
    assert places == [(64, "fp32"), (64, "bf16"), (128, "fp32"), (128, "bf16")]
    assert {trial.config.seed for trial in made} == {3}
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
    assert len({on_other_devices, *(trial.key for trial in (one, *others))}) == 6
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
            return BatchFit(fits, needed, limit) if known else BatchFit(fits)  # noqa: B023

        largest = max(0, int((limit / wrong_by - constant) / per_image) // unit * unit)
        assert largest_batch(try_batch, start, unit) == (largest or None, largest + unit)
        assert len(tried) == len(set(tried)) and all(batch % unit == 0 for batch in tried)
        trials[known].append(len(tried))
    # The plan is worth something: it saves trials.
    assert sum(trials[True]) < 0.8 * sum(trials[False])


def test_a_sweeps_folder_takes_up_what_a_killed_one_left(tmp_path):
    with sweep_dir.open_sweepdir(tmp_path / "s") as folder:
        folder.add(dataclasses.replace(RESULT, key="a"))
        with (
            pytest.raises(BadInput, match="another sweep is running there"),
            sweep_dir.open_sweepdir(tmp_path / "s"),
        ):
            pass
    with open(tmp_path / "s" / "results.jsonl", "a") as file:
        file.write('\n{"key": "b", "sta')
    with sweep_dir.open_sweepdir(tmp_path / "s") as folder:
        assert set(folder.results) == {"a"}
        folder.add(dataclasses.replace(RESULT, key="b", status="oom"))
    lines = (tmp_path / "s" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines if line] == ["a", "b"]


RESULT = TrialResult(
    place={"seed": "0"},
    status="done",
    figures=TrialFigures(),
    reason=None,
    wall_s=1.0,
    num_devices=1,
    device_kind="cpu",
    run="trials/a/run1",
    log="trials/a/run1.log",
    key="a",
    experiment="cnn10",
    exit_code=0,
    finished_at="2026-03-04T05:06:07+00:00",
    backend="cpu",
    hostname="lab",
    versions={},
    commit=None,
)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "5",
        "null",
        '{"key": "a"}',
        json.dumps(RESULT.to_json() | {"status": "weird"}),
        '{"status": "done"}',
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
    ((*QUICK, "--grid=batch_size=1,1"), "1 is given twice"),
    ((*QUICK, "--grid=batch_sise=1"), "did you mean 'batch_size'"),
    ((*QUICK, "--grid=experiment.epochs=2"), "no field 'experiment.epochs'"),
    ((*QUICK, "--grid=batch_size=many"), "must be a whole number"),
    ((*QUICK, "--grid=precision=fp32,fp8"), "must be one of fp32, bf16, fp16, fp64"),
    ((*QUICK, "--grid=seed=1", "--grid=seed=2"), "is given twice"),
    ((*QUICK, "--grid=seed=1", "--experiment.seed=2"), "give one of them"),
    ((*QUICK, "--grid=experiment=cnn10:tiny"), "not both"),
    ((*QUICK, "--grid=seed=1", "--workdir=w"), "a sweep takes --sweepdir"),
    ((*QUICK, "--grid=seed=1", "--rounds=7"), "it needs --mode="),
    ((*QUICK, "--grid=seed=1", "--timeout_s=0"), "timeout_s"),
    ((*QUICK, "--grid=seed=1", "--timeout_s=nan"), "timeout_s"),
    ((*QUICK, "--grid=seed=1", "--batch_multiple=8"), "needs --find_max_batch"),
    ((*QUICK, "--find_max_batch", "--grid=batch_size=1"), "that is what it finds"),
    (("--experiment=quickstart:tiny", "--mode=describe", "--grid=seed=1"), "runs nothing"),
    (("--experiment=quickstart:tiny", "--mode=train", "--find_max_batch"), "--mode=memory"),
    ((*QUICK, "--grid=seed=1", "--sweepdir="), "must name a folder"),
    ((*QUICK, "--grid=batch_size=64,064"), "are the same run"),
    ((*QUICK, "--grid=seed=1", "--telemetry_s=nan"), "--telemetry_s=nan"),
    ((*QUICK, "--grid=seed=1", "--compile_cache=/proc/x"), "--compile_cache=/proc/x"),
    ((*QUICK, "--grid=seed=1", "--memory_limit_mb=1e300"), "memory_limit_mb"),
    ((QUICK[0], "--mode=throughput", "--grid=seed=1", "--window_s=inf"), "--window_s=inf"),
    ((QUICK[0], "--mode=throughput", "--grid=seed=1", "--profile=9:3"), "must be START:STOP"),
    ((QUICK[0], "--mode=scaling", "--grid=seed=1", "--device_counts=a"), "whole numbers"),
    ((QUICK[0], "--mode=scaling", "--grid=seed=1", "--link_gb_per_s=nan"), "more than 0"),
    ((QUICK[0], "--grid=seed=1", "--target_accuracy=94"), "must be a fraction"),
    ((*QUICK, "--grid=seed=1", "--sweepdir=full"), "is not empty and no sweep's"),
    ((*QUICK, "--grid=seed=1", "stray"), "flags begin with --"),
    ((*QUICK, "--grid=seed=1", "--retry=done"), "retry"),
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
    [(["done", "oom", "timeout"], 0), (["done", "failed"], 1), (["invalid", "done"], 1), ([], 0)],
)
def test_what_does_not_fit_is_a_result_and_what_fails_is_not(statuses, code):
    assert exit_code(statuses) == code


def test_a_row_has_the_grids_fields_and_every_figure():
    result = dataclasses.replace(RESULT, place={"seed": "0", "num_devices": "2"})
    row = dataclasses.replace(result, figures=TrialFigures(images_per_s=7.0)).row()
    assert list(row)[:2] == ["seed", "num_devices"]
    assert {"status", "reason", "warnings", "wall_s", "device_kind", "run"} < set(row)
    # What the grid asked for, not what the environment says of it.
    assert (row["num_devices"], row["images_per_s"], row["eval_top1"]) == ("2", 7.0, None)
    assert {field.name for field in dataclasses.fields(TrialFigures)} < set(row)
    found = MaxBatchResult(
        place={"num_devices": "2"}, status="oom", memory_limit_mb=None, trials=3, reason="8: oom"
    )
    assert list(found.row())[0] == "num_devices" and found.row()["status"] == "oom"
    assert max_batch_table([found])[1].split() == ["2", "OOM", "–", "–", "3"]


def test_the_rate_of_a_training_is_that_of_its_steady_epochs():
    trials = make("seed=0,1")
    six_epochs = TrialFigures(
        images_per_s=30.0,
        images_per_s_low=20.0,
        images_per_s_high=40.0,
        steady_epochs=6,
        images_per_s_whole_run=9.0,
    )
    one_epoch = TrialFigures(images_per_s_whole_run=8.0, steady_epochs=0)
    results = [
        dataclasses.replace(RESULT, place=trial.place, figures=figures)
        for trial, figures in zip(trials, (six_epochs, one_epoch), strict=True)
    ]
    heading, *rows = (re.split(r"  +", line.strip()) for line in trial_table(trials, results))
    assert heading == ["seed", "status", "images/s", "95 % interval", "whole run images/s"]
    assert rows == [
        ["0", "done", "30.00", "20.00 to 40.00", "–"],
        ["1", "done", "–", "–", "8.000"],
    ]


@pytest.mark.parametrize(
    ("outcomes", "told"), [(("hit",), "hit"), (("hit", "miss"), "miss"), ((), None)]
)
def test_programs_out_of_the_cache_are_marked(outcomes, told):
    compiled = [dataclasses.replace(COMPILED, compile_cache=outcome) for outcome in outcomes]
    summary = {"status": "done", "compile_s": 0.5}
    document = run_document(status="done", mode="throughput", summary=summary)
    figures = figures_of(RunRecords(pathlib.Path(), document, compiled))
    assert figures.compile_cache == told
    lines = trial_table(make("seed=0"), [dataclasses.replace(RESULT, figures=figures)])
    assert ("0.5000 (cached)" in lines[1]) == (told == "hit")


def test_a_table_shows_what_the_trials_have(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    trials = make("seed=0,1,2")
    done = TrialFigures(
        compile_s=1.5, compile_cache="hit", images_per_s=1234.5, images_per_s_low=1000.0
    )
    done = dataclasses.replace(done, images_per_s_high=2000.0, mfu=0.5)
    done = dataclasses.replace(done, target_value=0.9, target_reached=False)
    results = [
        dataclasses.replace(RESULT, place=trial.place, figures=done, status=status, reason=reason)
        for trial, status, reason in zip(
            trials, ("done", "oom", "invalid"), (None, "too large", "odd"), strict=True
        )
    ]
    heading, *rows, first, second = trial_table(trials, results)
    columns = ("seed", "status", "compile [s]", "images/s", "95 % interval", "MFU [%]")
    columns += ("to target [s]",)
    assert re.split(r"  +", heading.strip()) == list(columns)
    shown = ["1.500 (cached)", "1,234", "1,000 to 2,000", "50.00", "∞"]
    assert [re.split(r"  +", row.strip()) for row in rows] == [
        ["0", "done", *shown],
        # What did not end well has no figures.
        ["1", "OOM", *["–"] * 5],
        ["2", "invalid", *shown],
    ]
    assert len({len(line) for line in (heading, *rows)}) == 1
    assert (first, second) == ("seed=1: oom: too large", "seed=2: invalid: odd")
    # On a narrow console the columns before the rate are the first to go.
    monkeypatch.setenv("COLUMNS", "72")
    narrow = trial_table(trials, results)
    assert "compile" not in narrow[0] and "images/s" in narrow[0] and len(narrow[0]) <= 72
    assert "(left out to fit the width: compile" in narrow[4]
    # Seeds together: the rates of those that are done, and none got there.
    rows, lines = seed_statistics([*results, dataclasses.replace(results[0], place={"seed": "3"})])
    by_figure = {row["figure"]: row for row in rows}
    assert by_figure["images_per_s"]["n"] == 2 and by_figure["target_s"]["median"] == math.inf
    assert (by_figure["images_per_s"]["not_done"], by_figure["target_s"]["n"]) == (2, 4)
    told = "\n".join(lines)
    assert "images/s: median 1,234" in told and "n = 2 of 4 (1 oom, 1 invalid)" in told
    assert "to target [s]: median ∞, mean ∞, std –" in told
    assert seed_statistics(results[:1]) == ([], [])


@pytest.fixture
def runner(tmp_path):
    """Makes a runner whose trials end as told, without a process; it has `said` its lines."""
    said = io.StringIO()

    @contextlib.contextmanager
    def open_runner(launch, retry=()):
        with sweep_dir.open_sweepdir(tmp_path / "s") as folder:
            yield TrialRunner(folder, Console(said), FakeLauncher(launch), retry)

    open_runner.said = said
    return open_runner


def test_trials_run_once_and_again_where_asked(runner, tmp_path):
    trials = make("seed=0,1,2")
    launched = []

    def launch(job):
        launched.append(job.command[-1].removeprefix("--workdir="))
        job.log.write_text("")
        assert job.command[1:4] == ["-m", "jaxbench.main", "--experiment=quickstart:tiny"]
        return ProcessResult("timeout" if "seed=1" in launched[-1] else "exited", "so", 1, 2.0)

    with runner(launch) as first:
        assert run_trials(first, trials[:2]) == 1
        assert [r.status for r in first.folder.results.values()] == ["failed", "timeout"]
    assert all("/trials/seed=" in path and path.endswith("/run1") for path in launched)
    with runner(launch) as again:
        assert run_trials(again, trials) == 1 and len(launched) == 3
    assert "2 of them are done already" in runner.said.getvalue()
    assert "timeout (so) after 2.00 s" in runner.said.getvalue()
    # Once more each, though they end alike.
    with runner(launch, ("timeout", "failed")) as retried:
        run_trials(retried, trials)
    assert len(launched) == 6 and launched[-1].endswith("/run2")
    assert (tmp_path / "s" / "sweep.csv").read_text().count("\n") == 4


def test_the_largest_batch_is_found_by_trials(runner):
    def found(limit, *overrides, **fields):
        trials = make(flags=["--mode=memory"], overrides=overrides)

        def launch(job):
            batch = int(re.findall(r"batch_size=(\d+)", " ".join(job.arguments))[0])
            return ProcessResult("exited" if batch <= limit else "oom", "", 0, 1.0)

        def result(self, attempt, ended):
            trial, status = attempt.trial, "done" if ended.process.status == "exited" else "oom"
            return dataclasses.replace(
                RESULT, key=trial.key, place=trial.place, status=status, **fields
            )

        with runner(launch) as own, pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrialRunner, "_result", result)
            return _find_max_batch(own, trials[0], "[1/1]", 32, 1000.0), own

    result, own = found(limit=700, backend="gpu", num_devices=2)
    assert (result.status, result.max_batch, result.smallest_too_large) == ("done", 672, 704)
    assert result.max_batch_per_device == 336 and result.reason.startswith("704: oom")
    assert result.trials == len(own.folder.results)
    # Where each device has a model of its own, it has a whole batch too.
    independent = "--experiment.replicas=independent"
    result, _ = found(700, independent, backend="gpu", num_devices=2)
    assert (result.max_batch, result.max_batch_per_device) == (672, 672)


def seeds(*of_each):
    """A sweep's results over seeds: (status, figures) of each."""
    return [
        dataclasses.replace(RESULT, place={"seed": str(n)}, status=status, figures=figures)
        for n, (status, figures) in enumerate(of_each)
    ]


def test_seeds_that_failed_never_reach_the_target():
    reached = [
        ("done", TrialFigures(target_value=0.9, target_reached=True, target_s=s, eval_top1=0.9))
        for s in (90.0, 110.0)
    ]
    diverged = TrialFigures(target_value=0.9, target_reached=False, eval_top1=0.1)
    cut_off = TrialFigures(target_value=0.9)
    results = seeds(*reached, ("failed", diverged), ("failed", diverged), ("oom", TrialFigures()))
    rows, lines = seed_statistics(results)
    time_s, top1 = (next(r for r in rows if r["figure"] == f) for f in ("target_s", "eval_top1"))
    assert (time_s["n"], time_s["median"], time_s["mean"]) == (5, math.inf, math.inf)
    # What they scored before their end is counted as missing, not as a score.
    assert (top1["n"], top1["of_seeds"], top1["not_done"], top1["median"]) == (2, 5, 3, 0.9)
    assert any("top-1" in line and "n = 2 of 5 (2 failed, 1 oom)" in line for line in lines)
    # Whether one that was broken off would have got there, nobody knows.
    rows, _ = seed_statistics(seeds(*reached, ("failed", cut_off)))
    assert [r["n"] for r in rows if r["figure"] == "target_s"] == [2]
    _, [line] = seed_statistics(seeds(("failed", TrialFigures()), ("oom", TrialFigures())))
    assert "no seed of 2 is done (1 failed, 1 oom)" in line


def test_a_target_never_reached_takes_without_end():
    def value(name, **figures):
        return TrialFigures(target_value=0.9, **figures).value(name)

    assert value("target_s", target_reached=False) == math.inf
    assert value("target_s", target_reached=None) is value("target_s") is None
    assert value("target_usd", target_reached=False) is None
    assert value("target_usd", target_reached=False, usd=1.0) == math.inf
    assert value("target_s", target_reached=True, target_s=3.0) == 3.0
    assert value("target_flops", target_reached=False) is None
    assert value("target_flops", target_reached=False, training_flops=7) == math.inf


def test_spread_has_an_interval_above_0():
    found = spread([1.0, math.inf, 3.0])
    assert (found["median"], found["mean"], found["std"]) == (3.0, math.inf, None)
    found = spread([1.0, 2.0, 6.0])
    extremes = {name: found[name] for name in ("n", "median", "mean", "min", "max")}
    assert extremes == {"n": 3, "median": 2, "mean": 3, "min": 1, "max": 6}
    assert found["std"] == pytest.approx(7**0.5)
    # Student's, of logarithms: his factor of two degrees of freedom.
    logs = [0.0, math.log(2), math.log(6)]
    mean = sum(logs) / 3
    error = (sum((x - mean) ** 2 for x in logs) / 2 / 3) ** 0.5
    ends = [found[f"geometric_mean_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx([math.exp(mean + sign * 4.302653 * error) for sign in (-1, 1)])
    # Seconds that spread widely do not reach below 0.
    assert spread([4.0, 9.0, 26.0])["geometric_mean_low"] > 0
    for without in ([1.0], [1.0, math.inf], [0.0, 1.0]):
        assert spread(without)["geometric_mean_high"] is None


def test_warnings_of_trials_are_told_once():
    told = [("others took 59 % of 2 processors",), ("others took 61 % of 2 processors", "odd"), ()]
    results = [dataclasses.replace(RESULT, key=str(n), warnings=own) for n, own in enumerate(told)]
    assert repeated_warnings(results) == [
        "warning (2 of 3 trials, for one): others took 59 % of 2 processors",
        "warning (1 of 3 trials): odd",
    ]
    line = json.loads(json.dumps(results[1].to_json()))
    assert msgspec.convert(line, TrialResult).row()["warnings"] == "; ".join(told[1])
