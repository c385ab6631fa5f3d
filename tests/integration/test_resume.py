"""Runs that are killed again and again, and a disk that is full."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from jaxbench.checkpoints.checkpoint import Checkpoints, Policy, list_checkpoints, read_checkpoint
from jaxbench.checkpoints.resume import CHECKPOINTS
from jaxbench.cli import registry
from jaxbench.clock import Stopwatch, pause, wait_until
from jaxbench.modes.runner import prepare_run
from jaxbench.records.writers.console import Console
from tests.checkpoints.runs import assert_same_run
from tests.conftest import MICRO, ROOT, assert_same_state, last_step, records, run_json
from tests.integration.conftest import wait_for


@pytest.fixture
def disk(tmp_path):
    """Mounts a file system of so many KiB at `tmp_path / "disk"`."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(size_kib):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(path)]
        try:
            mounted = subprocess.run(command, capture_output=True).returncode == 0
        except OSError:
            mounted = False
        if not mounted:
            pytest.skip("a small file system cannot be mounted here (only root can)")
        return path

    yield mount
    while path.is_mount():
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("arrays", [1, 200])
def test_a_disk_that_is_really_full(disk, capfd, arrays):
    """What is saved there stays, what has no room is told in a line and leaves nothing."""
    folder = disk(3072) / "checkpoints"
    said = []
    writer = Checkpoints(folder, Policy(epochs=1, keep=9), said.append)
    draw = np.random.default_rng(0)
    sizes = (50_000, 400_000, 50_000)
    saved = [{f"a{i}": draw.random(n // arrays) for i in range(arrays)} for n in sizes]
    for epoch, state in enumerate(saved, 1):
        writer.save(state, {"step": epoch, "epochs_done": epoch}, 0.1 * epoch)
        writer.wait()
    names = list_checkpoints(folder)
    assert [name[-1] for name in names] == ["1", "3"]
    assert sorted(path.name for path in folder.iterdir()) == names
    [warning] = writer.warnings
    assert warning.endswith("step-000000002.epoch-00002: No space left on device")
    assert capfd.readouterr().err == ""
    target = {f"a{i}": np.zeros(50_000 // arrays) for i in range(arrays)}
    for name, state in zip(names, saved[::2], strict=True):
        found = read_checkpoint(folder, name, target).state
        for key in state:
            np.testing.assert_array_equal(found[key], state[key])


def test_a_used_up_quota_is_a_line_for_each_thing_that_is_not_kept(tmp_path):
    """`ulimit -f`, whose error is EFBIG, stands for a quota."""
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)); "
    limited += "runpy.run_module('jaxbench.main', run_name='__main__', alter_sys=True)"
    args = ("--experiment=quickstart:tiny", "--checkpoint_epochs=1", "--workdir=run")
    done = subprocess.run(
        [sys.executable, "-c", limited, *args, "--compile_cache=cache", "--telemetry_s=0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and run_json(tmp_path / "run")["status"] == "done", done
    assert done.stderr.count("\n") == done.stderr.count("File too large") == 1, done.stderr
    assert " ".join(done.stdout.split()).count("File too large") == 1, done.stdout


def test_runs_on_disks_of_several_sizes(disk, forks, tmp_path):
    """However full it becomes: run.json is whole, and the run is resumed when there is room."""
    args = (
        *(f"--experiment={MICRO}", "--experiment.num_devices=1", "--experiment.epochs=40"),
        *("--experiment.log_every_steps=1", "--checkpoint_epochs=3", "--telemetry_s=0"),
        *("--workdir=disk/run", "--resume=auto"),
    )
    codes = []
    for size_kib in (8, 60, 240, 4096):
        folder = disk(size_kib)
        (tmp_path / "log").write_text("")
        forks.start(*args)
        codes.append(forks.wait())
        log = (tmp_path / "log").read_text()
        assert "Event loop" not in log
        if codes[-1] == 2:  # run.json itself had no room
            assert "No space left" in log and len(log.splitlines()) == 1, log
        else:
            document = run_json(folder / "run")
            assert document["status"] == ("failed" if codes[-1] else "done")
            assert not codes[-1] or "No space left" in document["reason"]
            assert not [path for path in folder.rglob("*") if path.suffix in (".partial", ".part")]
        # Space is freed.
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        forks.start(*args)
        assert forks.wait() == 0, (tmp_path / "log").read_text()
        assert run_json(folder / "run")["status"] == "done"
        subprocess.run(["umount", str(folder)], check=True)
    assert codes == [2, 1, 1, 0]


# Runs the entry point in forks of a process that has imported everything: each is a process of its
# own that begins in a second.
_FORKS = """
import json, os, sys
import jax, numpy, sklearn.datasets, tensorboardX
import jaxbench.modes.train
from jaxbench import main
from jaxbench.cli import entry_point
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        entry_point.run_with_experiment(main.main, ["jaxbench.main", *json.loads(line)])
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    """Runs of the entry point, one after another."""

    def __init__(self, folder):
        self._log = open(folder / "log", "a")  # noqa: SIM115
        self._process = subprocess.Popen(
            # The threads of libraries wait for work when it forks.
            [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", _FORKS],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Runs write to standard output too: what this reads comes from another place.
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )

    def start(self, *args):
        self._process.stdin.write(json.dumps(args) + "\n")
        self._process.stdin.flush()
        self._pid = self._number()
        return self._pid

    def poll(self):
        """None while the run that was started last goes on."""
        return None if psutil.pid_exists(self._pid) else "a code for wait()"

    def wait(self):
        return self._number()

    def _number(self):
        while True:
            line = self._process.stdout.readline()
            assert line, "the forking process has ended"
            if re.fullmatch(r"-?\d+\n", line):
                return int(line)

    def close(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()


@pytest.fixture
def forks(tmp_path):
    made = Forks(tmp_path)
    yield made
    made.close()


def test_the_goodput_is_that_of_a_clock_outside(forks, tmp_path):
    """Two kills, with a pause after each: the record agrees with when processes were seen."""
    run, clock, lives = tmp_path / "run", Stopwatch(), []
    args = (
        *(f"--experiment={MICRO}", "--experiment.num_devices=1", "--experiment.epochs=300"),
        *("--experiment.log_every_steps=1", "--telemetry_s=0.1", "--checkpoint_minutes=0.005"),
        *("--workdir=run", "--resume=auto"),
    )
    for _ in range(2):
        before, pid = last_step(run), forks.start(*args)
        launched_s = clock.elapsed_s()
        wait_for(lambda before=before: last_step(run) > before + 200, forks)
        os.kill(pid, signal.SIGKILL)
        assert forks.wait() == -signal.SIGKILL
        lives.append((launched_s, clock.elapsed_s()))
        pause(1.0)
    forks.start(*args)
    launched_s = clock.elapsed_s()
    assert forks.wait() == 0, (tmp_path / "log").read_text()
    lives.append((launched_s, clock.elapsed_s()))
    summary = run_json(run)["summary"]
    badput_s, wall_s = summary["badput_s"], lives[-1][1] - lives[0][0]
    down_s = sum(after[0] - one[1] for one, after in itertools.pairwise(lives))
    assert summary["num_resumes"] == 2
    # The last process ends after its summary.
    assert 0.9 * wall_s < summary["total_wall_s"] < 1.02 * wall_s
    steps_s = summary["goodput"] * summary["total_wall_s"]
    assert steps_s + sum(badput_s.values()) == pytest.approx(summary["total_wall_s"])
    # The last moments of a process that was killed are in it.
    assert 0.95 * down_s < badput_s["down"] < down_s + 0.1 * wall_s
    epochs_s = sum(r["train_time_s"] - r["data_wait_s"] for r in records(run, "epoch"))
    # An epoch's time holds the records and checkpoints that were written in it.
    assert steps_s <= epochs_s <= steps_s + badput_s["other"] + badput_s["checkpoint"]
    # As much as came after the checkpoints, and no start-up of it.
    lost_s = sum(entry["lost_s"] for entry in run_json(run)["attempts"][1:])
    assert 0 < badput_s["lost_work"] <= lost_s * 1.01


@pytest.mark.parametrize(
    ("kills", "epochs"), [(4, 200), pytest.param(22, 800, marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_again_and_again(forks, tmp_path, kills, epochs):
    """SIGKILL at random moments: the records at the end are those of a run that nobody killed."""
    args = (
        *(f"--experiment={MICRO}", "--experiment.num_devices=1"),
        f"--experiment.epochs={epochs}",
        *("--experiment.log_every_steps=3", "--telemetry_s=0.2"),
        # Every 0.12 s, so that many are killed while they write one.
        *("--checkpoint_minutes=0.002", "--checkpoint_epochs=50"),
    )
    forks.start(*args, "--workdir=whole")
    assert forks.wait() == 0, (tmp_path / "log").read_text()
    draw, run = random.Random(1), tmp_path / "run"
    killed, steps = 0, []
    while killed < kills:
        pid = forks.start(*args, "--workdir=run", "--resume=auto")
        before = last_step(run)
        watch, patience_s = Stopwatch(), draw.uniform(0, 2)
        # Some before they have done anything, most a moment after they have.
        eager = draw.random() < 0.2
        wait_until(
            lambda watch=watch, patience_s=patience_s, eager=eager, before=before: (
                watch.elapsed_s() > (patience_s if eager else 60)
                or last_step(run) > before + (0 if before else 3)
            )
        )
        pause(draw.uniform(0, 0.4))
        os.kill(pid, signal.SIGKILL)
        if forks.wait() == 0:
            break
        killed += 1
        steps.append(last_step(run))
    if killed == kills:
        forks.start(*args, "--workdir=run", "--resume=auto")
        assert forks.wait() == 0, (tmp_path / "log").read_text()
    assert killed >= kills - 2, f"the run was done after {killed} kills at steps {steps}"
    assert_same_run(tmp_path / "whole", run)
    document = run_json(run)
    assert document["status"] == "done" and len(document["attempts"]) - 1 >= killed * 3 / 4
    # The last states are the same, bit for bit.
    found = [
        {path.name: path for path in (tmp_path / name / CHECKPOINTS).iterdir()}
        for name in ("whole", "run")
    ]
    [newest] = {list_checkpoints(tmp_path / name / CHECKPOINTS)[-1] for name in ("whole", "run")}
    config = registry.load(MICRO)
    with prepare_run(config, None, Console()) as job:
        target = job.program.abstract_placed_state()
    ours, theirs = (read_checkpoint(f[newest].parent, newest, target).state for f in found)
    assert_same_state(ours, theirs)
