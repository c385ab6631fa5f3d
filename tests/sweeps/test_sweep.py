"""The parts of a sweep, and what it refuses."""

import contextlib
import io
import json
import math
import random
import re

import msgspec
import pytest
from msgspec.structs import replace

from jaxbench.analysis.rate import Estimate
from jaxbench.analysis.rate import spread as spread_of
from jaxbench.errors import BadInput
from jaxbench.parallel.child import ProcessResult
from jaxbench.records.reader import load_run
from jaxbench.records.writers.console import Console
from jaxbench.schema import (
    MaxBatchResult,
    TrialFigures,
    TrialResult,
)
from jaxbench.sweeps import grid, sweep_dir
from jaxbench.sweeps.max_batch import BatchFit, _find_max_batch, largest_batch
from jaxbench.sweeps.tables import (
    figures_of,
    max_batch_table,
    repeated_warnings,
    seed_statistics,
    trial_table,
)
from jaxbench.sweeps.trials import TrialRunner, run_trials
from tests.launchers.fakes import FakeLauncher, make
from tests.recorded import epochs, filled, recorded_run

QUICK = ("--experiment=quickstart:tiny", "--mode=memory")


def test_a_grid_is_every_combination_the_last_field_fastest():
    made = make("batch_size=64,128", "precision=fp32,bf16", overrides=["--experiment.seed=3"])
    places = [(trial.config.batch_size, trial.config.precision) for trial in made]
    assert places == [(64, "fp32"), (64, "bf16"), (128, "fp32"), (128, "bf16")]
    assert {trial.config.seed for trial in made} == {3}
    tuples = {"model.channels": ["(1,2)", "(3,)", "(4,5,6)"]}
    assert grid.parse_grid(["model.channels=(1,2),(3,),(4,5,6)"]) == tuples
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
        one.on(["memory_limit_mb=100"]),
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
        folder.add(replace(RESULT, key="a"))
        with (
            pytest.raises(BadInput, match="another sweep is running there"),
            sweep_dir.open_sweepdir(tmp_path / "s"),
        ):
            pass
    with open(tmp_path / "s" / "results.jsonl", "a") as file:
        file.write('\n{"key": "b", "sta')
    with sweep_dir.open_sweepdir(tmp_path / "s") as folder:
        assert set(folder.results) == {"a"}
        folder.add(replace(RESULT, key="b", status="oom"))
    lines = (tmp_path / "s" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines if line] == ["a", "b"]


RESULT = filled(
    TrialResult,
    place={"seed": "0"},
    wall_s=1.0,
    num_devices=1,
    device_kind="cpu",
    key="a",
    experiment="cnn10",
    exit_code=0,
)


_BAD = [
    ((QUICK[0],), "give --grid=FIELD=VALUE"),
    (("--grid=batch_size=1",), "give --experiment=NAME or --grid=experiment"),
    ((*QUICK, "--grid=batch_size"), "must be FIELD=VALUE,VALUE"),
    ((*QUICK, "--grid=batch_size=1,"), "must be FIELD=VALUE,VALUE"),
    ((*QUICK, "--grid=batch_size=1,1"), "1 is given twice"),
    ((*QUICK, "--grid=batch_sise=1"), "did you mean 'batch_size'"),
    ((*QUICK, "--grid=experiment.epochs=2"), "no field 'experiment.epochs'"),
    ((*QUICK, "--grid=batch_size=many"), "must be a whole number"),
    ((*QUICK, "--grid=seed=1", "--grid=seed=2"), "is given twice"),
    ((*QUICK, "--grid=experiment=cnn10:tiny"), "not both"),
    ((*QUICK, "--find_max_batch", "--grid=batch_size=1"), "that is what it finds"),
    ((QUICK[0], "--mode=describe", "--grid=seed=1"), "runs nothing"),
    ((QUICK[0], "--mode=train", "--find_max_batch"), "--mode=memory"),
    ((*QUICK, "--grid=batch_size=64,064"), "are the same run"),
    ((*QUICK, "--repeats=2", "--grid=seed=1,2"), "the repeats have the seeds 0, 1, ..."),
    ((*QUICK, "--repeats=2", "--experiment.seed=3"), "--repeats with --experiment.seed=3"),
    ((*QUICK, "--repeats=2", "--find_max_batch"), "the largest batch is the same"),
    ((*QUICK, "--repeats=1"), "repeats"),
    # Flags of the trials are checked before one is started.
    ((QUICK[0], "--mode=train", "--grid=seed=1", "--profile=9:3"), "must be START:STOP"),
    *(
        ((*QUICK, "--grid=seed=1", flag), told)
        for flag, told in (
            ("--experiment.seed=2", "give one of them"),
            ("--workdir=w", "a sweep takes --sweepdir"),
            ("--rounds=7", "it needs --mode="),
            ("--timeout_s=0", "timeout_s"),
            ("--timeout_s=nan", "timeout_s"),
            ("--batch_multiple=8", "needs --find_max_batch"),
            ("--sweepdir=", "must name a folder"),
            ("--compile_cache=/proc/x", "--compile_cache=/proc/x"),
            ("--memory_limit_mb=1e300", "memory_limit_mb"),
            ("--sweepdir=full", "is not empty and no sweep's"),
            ("--retry=done", "retry"),
        )
    ),
]


@pytest.mark.parametrize(("args", "told"), _BAD)
def test_bad_input_is_refused(refused, tmp_path, args, told):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    refused(*args, told=told, module="jaxbench.sweep")


def test_a_row_has_the_grids_fields_and_every_figure():
    result = replace(RESULT, place={"seed": "0", "num_devices": "2"})
    row = replace(result, figures=TrialFigures(images_per_s=7.0)).row()
    assert list(row)[:2] == ["seed", "num_devices"]
    assert {"status", "reason", "warnings", "wall_s", "device_kind", "run"} < set(row)
    # What the grid asked for, not what the environment says of it.
    assert (row["num_devices"], row["images_per_s"], row["eval_top1"]) == ("2", 7.0, None)
    assert {*TrialFigures.__struct_fields__} < set(row)
    place = {"num_devices": "2"}
    found = filled(MaxBatchResult, place=place, status="oom", trials=3, reason="8: oom")
    assert list(found.row())[0] == "num_devices" and found.row()["status"] == "oom"
    assert max_batch_table([found])[1].split() == ["2", "OOM", "–", "–", "3"]


def of_figures(*of_each):
    """A sweep's trials over seeds, and the results: (status, reason, figures) of each."""
    trials = make("seed=" + ",".join(str(number) for number, _ in enumerate(of_each)))
    return trials, [
        replace(RESULT, place=trial.place, status=status, reason=why, figures=figures)
        for trial, (status, why, figures) in zip(trials, of_each, strict=True)
    ]


def test_the_rate_of_a_training_is_that_of_its_steady_epochs(snapshot):
    rate = {"images_per_s": 30.0, "images_per_s_low": 20.0, "images_per_s_high": 40.0}
    six_epochs = TrialFigures(**rate, steady_epochs=6, images_per_s_whole_run=9.0)
    one_epoch = TrialFigures(images_per_s_whole_run=8.0, steady_epochs=0)
    trials = of_figures(("done", None, six_epochs), ("done", None, one_epoch))
    assert "\n".join(trial_table(*trials)) == snapshot


def test_a_table_shows_what_the_trials_have(monkeypatch, snapshot):
    """What did not end well has no figures; on a narrow console the rate is the last to go."""
    rate = {"images_per_s": 1234.5, "images_per_s_low": 1000.0, "images_per_s_high": 2000.0}
    done = TrialFigures(compile_s=1.5, compile_cache="hit", mfu=0.5, **rate)
    done = replace(done, target_value=0.9, target_reached=False)
    ends = (("done", None), ("oom", "too large"), ("invalid", "odd"))
    trials, results = of_figures(*((*end, done) for end in ends))
    shown = []
    for columns in (120, 72):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = trial_table(trials, results)
        assert max(map(len, lines)) <= columns
        shown += [*lines, ""]
    # Seeds together: the rates of those that are done, and none got there.
    rows, lines = seed_statistics([*results, replace(results[0], place={"seed": "3"})])
    assert "\n".join([*shown, *lines]) == snapshot
    by_figure = {row["figure"]: row for row in rows}
    assert by_figure["images_per_s"]["n"] == 2 and by_figure["target_s"]["median"] == math.inf
    assert (by_figure["images_per_s"]["not_done"], by_figure["target_s"]["n"]) == (2, 4)
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
    assert "timeout (so) after 2.0 s" in runner.said.getvalue()
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
            return replace(RESULT, key=trial.key, place=trial.place, status=status, **fields)

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


def test_seeds_that_failed_never_reach_the_target():
    reached = [
        (
            "done",
            None,
            TrialFigures(target_value=0.9, target_reached=True, target_s=s, eval_top1=0.9),
        )
        for s in (90.0, 110.0)
    ]
    failed = ("failed", None, TrialFigures(target_value=0.9, target_reached=False, eval_top1=0.1))
    out_of_memory = ("oom", None, TrialFigures())
    rows, lines = seed_statistics(of_figures(*reached, failed, failed, out_of_memory)[1])
    time_s, top1 = (next(r for r in rows if r["figure"] == f) for f in ("target_s", "eval_top1"))
    assert (time_s["n"], time_s["median"], time_s["mean"]) == (5, math.inf, math.inf)
    # What they scored before their end is counted as missing, not as a score.
    assert (top1["n"], top1["of_seeds"], top1["not_done"], top1["median"]) == (2, 5, 3, 0.9)
    assert "2 failed, 1 oom of 5 seeds" in lines
    # Whether one that was broken off would have got there, nobody knows.
    cut_off = ("failed", None, TrialFigures(target_value=0.9))
    rows, _ = seed_statistics(of_figures(*reached, cut_off)[1])
    assert [r["n"] for r in rows if r["figure"] == "target_s"] == [2]
    _, [line] = seed_statistics(of_figures(("failed", None, TrialFigures()), out_of_memory)[1])
    assert line == "1 failed, 1 oom of 2 seeds"


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
    spread = lambda values: spread_of([*map(Estimate, values)])  # noqa: E731
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
    results = [replace(RESULT, key=str(n), warnings=own) for n, own in enumerate(told)]
    assert repeated_warnings(results) == [
        "warning (2 of 3 trials, for example): others took 59 % of 2 processors",
        "warning (1 of 3 trials): odd",
    ]
    many = [replace(RESULT, warnings=tuple("abcde"))]
    assert repeated_warnings(many)[2:] == [
        "warning (1 of 1 trials): c",
        "2 more warning(s) in the report",
    ]
    line = json.loads(json.dumps(results[1].to_json()))
    assert msgspec.convert(line, TrialResult).row()["warnings"] == "; ".join(told[1])


def test_the_best_trial_is_marked_and_simulated_devices_come_first():
    rates = [TrialFigures(images_per_s=rate) for rate in (10.0, 30.0, 20.0)]
    trials, results = of_figures(*(("done", None, one) for one in rates))
    assert not any("*" in line for line in trial_table(trials, results)), "a seed is luck"
    results = [
        replace(one, place={"batch_size": f"{n}"}, backend="cpu", num_devices=4)
        for n, one in enumerate(results)
    ]
    first, _, *rows, note = trial_table(trials, results)
    assert first.startswith("warning: simulated devices (4)") and note.startswith("* the highest")
    assert ["*" in row for row in rows] == [False, True, False]
    alone = [replace(one, num_devices=1) for one in results]
    assert "simulated" not in "".join(trial_table(trials, alone))


@pytest.mark.parametrize(
    ("status", "reached"), [("done", False), ("diverged", False), ("preempted", None)]
)
def test_never_reached_is_told_from_not_known(tmp_path, status, reached):
    never = {"score": "top1", "value": 0.99, "reached": False, "energy_j": None}
    run = recorded_run(tmp_path / "run", status=status, summary={"target_accuracy": never})
    figures = figures_of(load_run(str(run)))
    assert (figures.target_value, figures.target_reached) == (0.99, reached)
    assert figures.target_s is None


def test_what_a_target_took_is_that_of_the_epoch_that_reached_it(tmp_path):
    target = {"score": "top1", "value": 0.4, "reached": True, "energy_j": 7200.0, "usd": 0.5}
    run = recorded_run(
        tmp_path / "run",
        epochs([100.0] * 4, images=[50_000] * 4),
        summary={"target_accuracy": target, "compile_s": 7.0},
        training_flops_per_image=10,
    )
    figures = figures_of(load_run(str(run)))
    assert (figures.target_s, figures.target_epoch, figures.target_images) == (31.5, 2, 99_840)
    assert (figures.target_flops, figures.training_flops) == (998_400, 2_000_000)
    assert (figures.target_energy_j, figures.target_usd, figures.total_s) == (7200.0, 0.5, 2007.0)
