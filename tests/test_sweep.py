"""Sweeps as people start them, killed and started again; and their parts."""

import csv
import json
import math
import os
import random
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, needs_devices, run_json

from jaxbench import cells, sweepdir
from jaxbench.batch_search import Trial, largest_batch
from jaxbench.child import run_child
from jaxbench.clock import wait_until
from jaxbench.errors import BadInput
from jaxbench.spread import spread
from jaxbench.sweep_tables import seen

QUICK = ("--experiment=quickstart:tiny", "--mode=fit")


def sweep(*args):
    return [sys.executable, "-m", "jaxbench.sweep", *args]


def run_sweep(tmp_path, *args, timeout_s=300):
    return subprocess.run(
        sweep(*args), cwd=tmp_path, capture_output=True, text=True, timeout=timeout_s
    )


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


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
    assert cells.parse_axis(text) == cells.Axis(field, values)


def make(*grid, spec="quickstart:tiny", overrides=(), **more):
    return cells.make_cells(spec, overrides, grid, **more)


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
        make("batch_size=64", flags=["--mode=fit"])[0],
        make("batch_size=64", limits=["memory_limit_mb=100"])[0],
        make("batch_size=64", overrides=["--experiment.seed=1"])[0],
    ]
    assert len({on_other_devices, *(cell.key for cell in (one, *others))}) == 6
    long = make("data.dir=" + "x/" * 300, overrides=["--experiment.data.source=npz"])[0]
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


def python(code):
    return [sys.executable, "-c", code]


def test_a_child_that_takes_too_long_is_ended(tmp_path):
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    for code in ("import time; time.sleep(60)", stubborn):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("jaxbench.child._GRACE_S", 0.5)
            ending = run_child(python(code), tmp_path / "log", timeout_s=0.8)
        assert (ending.status, ending.reason) == ("timeout", "took longer than 0.8 s")
        assert ending.wall_s < 30


def test_a_childs_memory_is_really_limited(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits the memory of a process")
    code = "import numpy; numpy.ones(200 * 2**20, 'u1'); print('had it')"
    log = tmp_path / "log"
    assert run_child(python(code), log).status == "exited" and "had it" in log.read_text()
    ending = run_child(python(code), log, memory_limit_mb=150)
    assert ending.exit_code == 1 and "Unable to allocate 200" in ending.reason
    # A program that aborts, as C++ does: what it said last tells why.
    code = (
        "import os, sys; print('terminate called after throwing an instance of std::bad_alloc'); "
        "sys.stdout.flush(); os.abort()"
    )
    assert run_child(python(code), log).status == "oom"
    ending = run_child(python("import os; os.abort()"), log)
    assert ending[:3] == ("exited", "killed by SIGABRT", 134)


def test_a_child_ends_with_its_parent(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends a process with its parent")
    code = f"import os, time; print(os.getpid(), flush=True); time.sleep({60})"
    parent = subprocess.Popen(
        python(
            "import pathlib, sys\n"
            "from jaxbench.child import run_child\n"
            f"run_child([sys.executable, '-c', {code!r}], pathlib.Path({str(tmp_path / 'log')!r}))"
        ),
        cwd=ROOT,
    )
    log = tmp_path / "log"
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    parent.kill()
    parent.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{log.read_text().strip()}"))


def test_a_sweeps_folder_takes_up_what_a_killed_one_left(tmp_path):
    with sweepdir.open_sweepdir(tmp_path / "s") as folder:
        folder.add(RESULT | {"key": "a"})
        with (
            pytest.raises(BadInput, match="another sweep is at work there"),
            sweepdir.open_sweepdir(tmp_path / "s"),
        ):
            pass
    with open(tmp_path / "s" / "results.jsonl", "a") as file:
        file.write('\n{"key": "b", "sta')
    with sweepdir.open_sweepdir(tmp_path / "s") as folder:
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
        pytest.raises(BadInput, match="line 1 is damaged"),
        sweepdir.open_sweepdir(tmp_path),
    ):
        pass


def test_a_sweep_goes_on_after_a_failure_and_after_being_killed(tmp_path):
    """One process at a time: what is done stays done, the rest is done in the end."""
    needs_devices(2)
    args = (
        *("--experiment=quickstart:tiny", "--mode=fit", "--sweepdir=s"),
        # 3 does not divide over 2 devices.
        *("--grid=batch_size=64,3", "--grid=num_devices=2,1"),
    )
    folder = tmp_path / "s"
    done = folder / "results.jsonl"

    def start_until(lines):
        process = subprocess.Popen(sweep(*args), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        wait_until(lambda: done.exists() and len(done.read_text().splitlines()) >= lines)
        return process

    killed = start_until(1)
    killed.kill()
    killed.communicate()
    interrupted = start_until(2)
    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130 and "to go on: the same command with --swee" in output
    before = {r["key"]: r for r in results(folder)}
    assert 2 <= len(before) < 4
    last = run_sweep(tmp_path, *args)
    assert last.returncode == 1, last.stderr  # one cell failed
    after = results(folder)
    assert len(after) == 4 and {r["key"]: r for r in after[: len(before)]} == before
    assert f"{len(before)} of them are done already" in last.stdout
    rows = table(folder / "sweep.csv")
    assert [(row["batch_size"], row["num_devices"]) for row in rows] == [
        (batch, devices) for batch in ("64", "3") for devices in ("2", "1")
    ]
    assert [row["status"] for row in rows] == ["ok", "ok", "failed", "ok"]
    assert "batch_size=3 does not divide over 2 devices" in rows[2]["reason"]
    assert "batch_size=3 num_devices=2: failed: batch_size=3 does not" in last.stdout
    for row in rows:
        if row["status"] == "ok":
            assert run_json(folder / row["run"])["status"] == "done"
    # A repetition does nothing, but for what --retry names.
    assert run_sweep(tmp_path, *args).returncode == 1 and results(folder) == after
    run_sweep(tmp_path, *args, "--retry=failed")
    again = results(folder)
    assert len(again) == 5 and again[-1]["status"] == "failed"


def test_a_cell_that_runs_out_of_memory_is_a_result(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits the memory of a process")
    done = run_sweep(
        tmp_path,
        *("--experiment=cnn10:tiny", "--mode=fit", "--sweepdir=s", "--memory_limit_mb=1500"),
        *("--grid=batch_size=32768,64", "--experiment.num_devices=1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = table(tmp_path / "s" / "sweep.csv")
    assert (first["status"], second["status"]) == ("oom", "ok")
    assert first["reason"] and "OOM" in done.stdout
    # The compiler had told before.
    assert int(first["planned_bytes_per_device"]) > 100 * int(second["planned_bytes_per_device"])
    [oom] = [r for r in results(tmp_path / "s") if r["status"] == "oom"]
    assert run_json(tmp_path / "s" / oom["run"])["status"] == "oom"


def test_a_cell_that_takes_too_long_is_a_result(tmp_path):
    done = run_sweep(tmp_path, *QUICK, "--grid=seed=1", "--timeout_s=0.5", "--sweepdir=s")
    assert done.returncode == 0, done.stderr
    [row] = table(tmp_path / "s" / "sweep.csv")
    assert (row["status"], row["reason"]) == ("timeout", "took longer than 0.5 s")


def test_training_cells_end_in_the_published_tables_columns(tmp_path):
    done = run_sweep(
        tmp_path,
        *("--experiment=quickstart:tiny", "--grid=experiment.epochs=2", "--sweepdir=s"),
    )
    assert done.returncode == 2 and "no field 'experiment.epochs'" in done.stderr
    done = run_sweep(tmp_path, "--experiment=quickstart:tiny", "--grid=epochs=3", "--sweepdir=s")
    assert done.returncode == 0, done.stderr
    heading = next(line for line in done.stdout.splitlines() if "median epoch" in line)
    for word in ("epochs", "status", "compile", "first epoch", "total", "images/s", "top-1"):
        assert word in heading
    [row] = table(tmp_path / "s" / "sweep.csv")
    summary = run_json(tmp_path / "s" / row["run"])["summary"]
    assert float(row["median_epoch_s"]) == summary["median_epoch_s"]
    assert float(row["eval_top1"]) == summary["eval_top1"]
    total = float(row["total_s"])
    assert summary["compile_s"] < total < summary["wall_s"]


_BAD = [
    (("--experiment=quickstart:tiny",), "give --grid=FIELD=VALUE"),
    (("--grid=batch_size=1",), "give --experiment=NAME or --grid=experiment"),
    ((*QUICK, "--grid=batch_size"), "must be FIELD=VALUE,VALUE"),
    ((*QUICK, "--grid=batch_size=1,"), "must be FIELD=VALUE,VALUE"),
    ((*QUICK, "--grid=batch_size=1,1"), "1 stands in it twice"),
    ((*QUICK, "--grid=batch_sise=1"), "did you mean 'batch_size'"),
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
    (("--experiment=quickstart:tiny", "--mode=train", "--find_max_batch"), "--mode=fit"),
    ((*QUICK, "--grid=seed=1", "--sweepdir="), "must name a folder"),
    ((*QUICK, "--grid=batch_size=64,064"), "are the same run"),
    ((*QUICK, "--grid=seed=1", "--telemetry_s=nan"), "--telemetry_s=nan"),
    ((*QUICK, "--grid=seed=1", "--compile_cache=/proc/x"), "--compile_cache=/proc/x"),
    ((*QUICK, "--grid=seed=1", "--memory_limit_mb=1e300"), "must be at most"),
    ((QUICK[0], "--mode=throughput", "--grid=seed=1", "--window_s=inf"), "--window_s=inf"),
    ((QUICK[0], "--mode=throughput", "--grid=seed=1", "--profile=9:3"), "START must be below"),
    ((QUICK[0], "--mode=scaling", "--grid=seed=1", "--device_counts=a"), "whole numbers"),
    ((QUICK[0], "--mode=scaling", "--grid=seed=1", "--link_gb_per_s=nan"), "more than 0"),
    ((QUICK[0], "--grid=seed=1", "--stop_at_top1=94"), "must be a share"),
    ((*QUICK, "--grid=seed=1", "--sweepdir=full"), "holds something that is no sweep"),
    ((*QUICK, "--grid=seed=1", "stray"), "flags begin with --"),
    ((*QUICK, "--grid=seed=1", "--retry=ok"), "retry"),
]

# Imports the program once and runs it in a fork for each list of arguments.
_FORKS = """
import json, os, sys, tempfile
from jaxbench import cli, sweep
for args in json.loads(sys.argv[1]):
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    child = os.fork()
    if not child:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        try:
            cli.run_over_experiments(sweep.main, ["sweep", *args])
        except SystemExit as exit_:
            sys.stdout.flush()
            os._exit(exit_.code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [os.pread(file.fileno(), 10**6, 0).decode() for file in (output, errors)]
    print(json.dumps([code, *texts, os.listdir()]), flush=True)
"""


def test_bad_input_is_told_in_one_line(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    arguments = json.dumps([args for args, _ in _BAD])
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    endings = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(endings) == len(_BAD), done.stderr
    for (args, told), (code, output, errors, left) in zip(_BAD, endings, strict=True):
        assert code == 2 and output == "", (args, output)
        assert told in errors and len(errors.splitlines()) == 1, (args, errors)
        assert left == ["full"], args


def test_seeds_are_summed_up_with_what_never_got_there(tmp_path):
    """One command trains several seeds to a target; the record of each is a run's own."""
    done = run_sweep(
        tmp_path,
        *("--experiment=quickstart:tiny", "--grid=seed=0,1", "--stop_at_top1=0.0001"),
        *("--experiment.num_devices=1", "--sweepdir=s"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(tmp_path / "s" / "sweep.csv")
    # Reached by the first evaluation, of which there would have been two.
    assert [(row["target_epoch"], row["epochs_done"]) for row in rows] == [("1", "1")] * 2
    target = run_json(tmp_path / "s" / rows[0]["run"])["summary"]["target"]
    assert target["reached"] and float(rows[0]["target_s"]) == target["time_s"]
    [seconds] = [r for r in table(tmp_path / "s" / "seeds.csv") if r["figure"] == "target_s"]
    times = [float(row["target_s"]) for row in rows]
    assert float(seconds["mean"]) == pytest.approx(sum(times) / 2)
    assert float(seconds["min"]) == min(times) and seconds["n"] == seconds["of_seeds"] == "2"
    assert "fewer than five seeds are no result" in done.stdout


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


@pytest.mark.slow
def test_the_largest_batch_that_fits_is_found_for_real(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits the memory of a process")
    args = (
        # Twice what JAX needs for itself, which differs from start to start by what a batch takes.
        *("--experiment=quickstart:tiny", "--find_max_batch", "--memory_limit_mb=1000"),
        *("--experiment.batch_size=512", "--batch_multiple=512", "--sweepdir=s"),
        "--experiment.num_devices=1",
    )
    done = run_sweep(tmp_path, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = table(tmp_path / "s" / "max_batch.csv")
    largest = int(row["max_batch"])
    assert largest % 512 == 0 and int(row["smallest_too_large"]) == largest + 512
    tried = {r["place"]["batch_size"]: r["status"] for r in results(tmp_path / "s")}
    assert tried[str(largest)] == "ok" and tried[str(largest + 512)] in ("oom", "failed")
    # Everything is known now.
    assert run_sweep(tmp_path, *args).returncode == 0
    assert len(results(tmp_path / "s")) == len(tried)
    # Without a limit the search would end with the machine.
    unlimited = [arg for arg in args if "limit" not in arg and "sweepdir" not in arg]
    done = run_sweep(tmp_path, *unlimited, "--sweepdir=t")
    assert done.returncode == 1 and "give --memory_limit_mb" in done.stdout
