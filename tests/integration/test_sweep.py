"""Sweeps as people start them, killed and started again; and the processes they are made of."""

import json
import os
import signal
import subprocess
import sys

import pytest

from jaxbench.clock import wait_until
from jaxbench.parallel.child import run_child
from tests.conftest import MICRO, ROOT, run_json, table
from tests.integration.conftest import run_program, wait_for


def sweep(*args):
    return [sys.executable, "-m", "jaxbench.sweep", *args]


def run_sweep(tmp_path, *args):
    return run_program(sweep(*args), cwd=tmp_path)


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def write_experiments(folder, **fields):
    """Writes an experiment for each field and value that is set; returns their names."""
    for name, field in fields.items():
        lines = ("from tests import micro", "def get_config():", "    config = micro.get_config()")
        lines += (f"    config.num_devices = 1; config.{field}", "    return config")
        (folder / f"{name}.py").write_text("\n".join(lines))
    return ",".join(f"{name}.py" for name in fields)


def python(code):
    return [sys.executable, "-c", code]


def test_a_child_that_takes_too_long_has_its_grace_period_to_end(tmp_path):
    slow = """
import signal, sys, time
def end(*_):
    time.sleep(3)
    sys.exit(print("saved"))
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""
    for grace_s, saved in ((0, False), (5, True)):
        command = [*python(slow), f"--grace_period_s={grace_s}"]
        ending = run_child(command, tmp_path / "log", timeout_s=1.5)
        assert (ending.status, ending.reason) == ("timeout", "took longer than 1.5 s")
        assert ("saved" in (tmp_path / "log").read_text()) == saved and ending.wall_s < 10


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
    said = "F1123 07:25:00.901337   26813 shape.cc:234] Check failed: rank > 0"
    code = (
        f"import os; print({said!r}, '*** Check failure stack trace: ***', sep='\\n', flush=True); "
    )
    ending = run_child(python(code + "os.abort()"), log)
    assert ending.reason == "killed by SIGABRT: Check failed: rank > 0"
    assert run_child(python(code + "os._exit(1)"), log).reason == "Check failed: rank > 0"
    # Of tasks that Slurm has killed; srun itself exits with 1 or with 137.
    said = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."
    for code in (1, 137):
        ending = run_child(python(f"import os; print({said!r}, flush=True); os._exit({code})"), log)
        assert ending[:2] == ("oom", said)


def test_a_child_ends_with_its_parent(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends a process with its parent")
    code = f"import os, time; print(os.getpid(), flush=True); time.sleep({60})"
    parent = subprocess.Popen(
        python(
            "import pathlib, sys\n"
            "from jaxbench.parallel.child import run_child\n"
            f"run_child([sys.executable, '-c', {code!r}], pathlib.Path({str(tmp_path / 'log')!r}))"
        ),
        cwd=ROOT,
    )
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), parent)
    parent.kill()
    parent.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{log.read_text().strip()}"))


def test_a_sweep_is_resumed_after_a_failure_and_after_being_killed(tmp_path):
    """One process at a time: what is done stays done, the rest is done in the end."""
    args = (
        *(f"--experiment={MICRO}", "--mode=memory", "--sweepdir=s"),
        # 3 does not divide over 2 devices.
        *("--grid=batch_size=64,3", "--grid=num_devices=2,1"),
    )
    folder = tmp_path / "s"
    done = folder / "results.jsonl"

    def start_until(lines):
        process = subprocess.Popen(sweep(*args), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        wait_for(lambda: done.exists() and len(done.read_text().splitlines()) >= lines, process)
        return process

    killed = start_until(1)
    killed.kill()
    killed.communicate()
    interrupted = start_until(2)
    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130 and "resume: " in output and "--sweepdir=" in output
    before = {r["key"]: r for r in results(folder)}
    assert 2 <= len(before) < 4
    last = run_sweep(tmp_path, *args)
    assert last.returncode == 1, last.stderr  # one trial failed
    after = results(folder)
    assert len(after) == 4 and {r["key"]: r for r in after[: len(before)]} == before
    assert f"{len(before)} of them are done already" in last.stdout
    rows = table(folder / "sweep.csv")
    assert [(row["batch_size"], row["num_devices"]) for row in rows] == [
        (batch, devices) for batch in ("64", "3") for devices in ("2", "1")
    ]
    assert [row["status"] for row in rows] == ["done", "done", "failed", "done"]
    assert "batch_size=3 does not divide over 2 devices" in rows[2]["reason"]
    assert "batch_size=3 num_devices=2: failed: batch_size=3 does not" in last.stdout
    for row in rows:
        if row["status"] == "done":
            assert run_json(folder / row["run"])["status"] == "done"
    # A repetition does nothing, but for what --retry names.
    assert run_sweep(tmp_path, *args).returncode == 1 and results(folder) == after
    run_sweep(tmp_path, *args, "--retry=failed")
    again = results(folder)
    assert len(again) == 5 and again[-1]["status"] == "failed"


def test_a_trial_that_runs_out_of_memory_is_a_result(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits the memory of a process")
    done = run_sweep(
        tmp_path,
        *("--experiment=cnn10:tiny", "--mode=memory", "--sweepdir=s", "--memory_limit_mb=1500"),
        *("--grid=batch_size=32768,64", "--experiment.num_devices=1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = table(tmp_path / "s" / "sweep.csv")
    assert (first["status"], second["status"]) == ("oom", "done")
    assert first["reason"] and "OOM" in done.stdout
    # The compiler had told before.
    assert int(first["planned_bytes_per_device"]) > 100 * int(second["planned_bytes_per_device"])
    [oom] = [r for r in results(tmp_path / "s") if r["status"] == "oom"]
    assert run_json(tmp_path / "s" / oom["run"])["status"] == "oom"


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
    assert tried[str(largest)] == "done" and tried[str(largest + 512)] in ("oom", "failed")
    # Everything is known now.
    assert run_sweep(tmp_path, *args).returncode == 0
    assert len(results(tmp_path / "s")) == len(tried)
    # Without a limit the search would end with the machine.
    unlimited = [arg for arg in args if "limit" not in arg and "sweepdir" not in arg]
    done = run_sweep(tmp_path, *unlimited, "--sweepdir=t")
    assert done.returncode == 1 and "give --memory_limit_mb" in done.stdout
