"""Trials that run several at once, are lost, or are taken up."""

import io
import re
import types

import pytest
import rich.console

from jaxbench import clock
from jaxbench.launchers import local
from jaxbench.launchers.launcher import LOST
from jaxbench.parallel.child import ProcessResult
from jaxbench.records.writers.console import Console
from jaxbench.sweeps.live_table import LiveTable
from jaxbench.sweeps.sweep_dir import open_sweepdir
from jaxbench.sweeps.trials import TrialRunner, run_trials, running_sweep
from tests.launchers.fakes import FakeLauncher, make


@pytest.fixture
def sweep(tmp_path):
    """Runs trials by a launcher; returns the results in the order of the grid, and all lines."""

    def run(launcher, trials, retry=()):
        said = io.StringIO()
        with open_sweepdir(tmp_path / "s") as folder:
            run_trials(TrialRunner(folder, Console(said), launcher, retry), trials)
            return [folder.results[trial.key] for trial in trials], said.getvalue()

    return run


def done(job):
    job.log.write_text("")
    return ProcessResult("timeout", "so", 143, 2.0)


def test_as_many_trials_run_at_once_as_there_are_slots(sweep, tmp_path):
    launcher = FakeLauncher(done, slots=3, hardware=["lab"])
    results, said = sweep(launcher, make("seed=0,1,2,3,4"))
    # Each begins and ends; the fake ends the trial that began last.
    order = "".join(re.findall(r"^\[(\d)/5\] seed=\d(?: \.\.\.|: timeout)", said, re.MULTILINE))
    assert order == "1233445521" and [result.place["seed"] for result in results] == [*"01234"]
    assert "seed=2: timeout (so) after 2.0 s on lab; about 2.7 s left" in said
    # The last trial has one slot.
    assert "seed=1: timeout (so) after 2.0 s on lab; about 2.0 s left" in said
    lines = (tmp_path / "s" / "sweep.csv").read_text().splitlines()
    assert [line[0] for line in lines[1:]] == [*"01234"]
    assert {result.hostname for result in results} == {"lab"}


def test_sweeps_of_the_same_second_have_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moment = clock.now()
    monkeypatch.setattr("jaxbench.sweeps.trials.now", lambda: moment)
    sweeps = [
        running_sweep(make("seed=0"), None, Console(io.StringIO()), FakeLauncher(done), ())
        for _ in range(2)
    ]
    with sweeps[0] as one, sweeps[1] as other:
        assert one.folder.path != other.folder.path


def test_a_trial_that_never_had_a_host(sweep):
    results, said = sweep(FakeLauncher(done, hardware=["queue"], host=None), make("seed=0"))
    assert "timeout (so) after 2.0 s\n" in said and results[0].hostname is None


def test_a_trial_that_loses_its_machine_again_and_again_is_lost(sweep):
    lost = ProcessResult(LOST, "no answer", None, 0.0)
    launcher = FakeLauncher(lambda job: lost if "seed=0" in job.log.parent.name else done(job))
    results, said = sweep(launcher, make("seed=0,1"))
    assert [result.status for result in results] == ["lost", "timeout"]
    first = results[0]
    assert (first.reason, first.exit_code, first.run) == ("no answer", None, None)
    assert first.log.endswith("/run3.log") and said.count("lost with lab (no answer)") == 2
    assert len({job.log for job in launcher.jobs}) == 4


def test_what_an_earlier_sweep_has_started_comes_first(sweep, tmp_path):
    trials = make("seed=0,1,2")

    def stop(job):
        raise KeyboardInterrupt

    earlier = FakeLauncher(stop, slots=2)
    with pytest.raises(KeyboardInterrupt):
        sweep(earlier, trials)
    # One slot: whatever runs there already takes it.
    launcher = FakeLauncher(done)
    launcher.attachable.add(trials[1].key)
    sweep(launcher, trials)
    started = [(job.log.parent.name[:6], job.run_path.name) for job in launcher.jobs]
    assert started == [("seed=1", "run1"), ("seed=0", "run2"), ("seed=2", "run1")]
    # What is recorded is not taken up, though it is asked for once more.
    again = FakeLauncher(done)
    again.attachable |= {trial.key for trial in trials}
    sweep(again, trials, retry=["timeout"])
    assert [job.run_path.name for job in again.jobs] == ["run3", "run2", "run2"]


def test_the_end_of_a_sweep_ends_its_trials(run_cli, monkeypatch):
    def stop(job):
        raise KeyboardInterrupt

    launcher = FakeLauncher(stop, slots=2)
    monkeypatch.setattr(local, "LocalLauncher", lambda limits, say: launcher)
    args = ("--experiment=quickstart:tiny", "--mode=memory", "--grid=seed=1,2,3")
    assert run_cli(*args, module="jaxbench.sweep").returncode == 130
    # The other one ended with an exception before.
    assert [job.arguments[1] for job in launcher.closed] == ["--experiment.seed=1"]


def test_the_table_has_a_line_for_each_running_trial():
    trials, running = {trial.key: trial for trial in make("seed=0,1,2")}, {}
    first, _, third = trials
    table = LiveTable(trials, running, {}.get)

    def drawn():
        console = rich.console.Console(file=io.StringIO(), width=80)
        console.print(table)
        return console.file.getvalue()

    running[first] = types.SimpleNamespace(watch=clock.Stopwatch(), line="epoch 3")
    assert drawn().count("running") == 1 and drawn().splitlines()[-1].strip() == "epoch 3"
    running[third] = types.SimpleNamespace(watch=clock.Stopwatch(), line="compiling")
    assert drawn().count("running") == 2
    assert drawn().splitlines()[-2:] == ["seed=0: epoch 3", "seed=2: compiling"]
