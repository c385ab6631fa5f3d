"""What the launcher asks Slurm, and what it makes of the answers; Slurm itself is a fake."""

import functools
import json
import math
import pathlib
import shlex
import subprocess
import sys

import pytest

from jaxbench import clock
from jaxbench.errors import Unreachable
from jaxbench.launchers import slurm
from jaxbench.launchers.launcher import LOST, Limits, TrialJob, read_json, write_json
from jaxbench.launchers.slurm import seconds
from jaxbench.parallel.child import ProcessResult
from tests.conftest import MICRO, refusal


class FakeSlurm:
    """Answers sbatch and squeue; a pause between two questions takes 20 s, and no time.

    Attributes:
      jobs: {number: a job's columns}, those of jobs that have just been submitted by default.
      calls: all commands.
      environment: of the last command.
      refusal: what those of `refusing` say instead of an answer, until `recovers_s`.
    """

    def __init__(self):
        self.jobs, self.calls, self.refusal = {}, [], ""
        self.refusing, self.recovers_s = ["sbatch", "squeue"], math.inf
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, time_s):
        self.now_s += 20

    def __call__(self, command, env, **_):
        self.environment = env
        return subprocess.CompletedProcess(command, *self.answer(command))

    def answer(self, command):
        self.calls.append([*command])
        if self.refusal and command[0] in self.refusing and self.now_s < self.recovers_s:
            return 1, "", self.refusal
        if command[0] == "sbatch" and "--parsable" in command:
            number = str(len(self.jobs) + 11)
            [name] = [word[11:] for word in command if word.startswith("--job-name=")]
            self.jobs[number] = {"JobID": number, "Name": name}
            self.set(number, "PENDING", Reason="Priority")
            return 0, f"{number};lab\n", ""
        if command[0] == "sbatch":
            return 0, "", "sbatch: Job 10 to start at 2030-01-01T00:00:00"
        [form] = [word[9:] for word in command if word.startswith("--Format=")]
        columns = [column.removesuffix(":|") for column in form.split(",")]
        lines = ["".join(f"{job[c]}|" for c in columns) for _, job in sorted(self.jobs.items())]
        return 0, "\n".join(lines), ""

    def set(self, number, state, **columns):
        columns = {"TimeUsed": "1:05", "TimeLimit": "1:00:00", "Reason": "None", **columns}
        self.jobs[number] |= {"State": state, "NodeList": "n[1-2]", **columns}


@pytest.fixture
def fake(monkeypatch):
    fake = FakeSlurm()
    monkeypatch.setattr("subprocess.run", fake)
    monkeypatch.setattr(clock, "time", fake)
    return fake


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "50% more" / "seed=0-12345678"
    folder.mkdir(parents=True)
    return TrialJob("k", ("--experiment=a b",), folder / "run1", folder / "run1.log")


@pytest.fixture
def started(fake, job):
    """A launcher that has submitted the job, as number 11."""
    launcher, launcher.said = create()
    launcher.start(job)
    return launcher


DONE = ("k", ProcessResult("exited", None, 0, 4.0), "n1")


def create(options="", **others):
    said = []
    return slurm.SlurmLauncher(Limits(timeout_s=5.0), said.append, slurm=options, **others), said


def write_end(job, **fields):
    end = {"status": "exited", "reason": None, "exit_code": 0, "wall_s": 4.0, "host": "n1"}
    write_json(end_of(job), end | fields)


def end_of(job):
    return job.log.with_suffix(".end.json")


def test_a_job_is_submitted(fake, job):
    launcher, _ = create("--gpus=1 '--partition=big one'", slots=3)
    assert launcher.slots == 3
    assert launcher.hardware == ("launcher=slurm", "--gpus=1", "--partition=big one")
    assert fake.calls == [
        ["sbatch", "--test-only", "--gpus=1", "--partition=big one", "--wrap=true"]
    ]
    launcher.start(job)
    *command, wrapped = fake.calls[-1]
    assert {"--gpus=1", "--partition=big one"} <= {*command}
    [output] = [word for word in command if word.startswith("--output=")]
    assert output == f"--output={str(job.log.with_suffix('.slurm.out')).replace('%', '%%')}"
    program = shlex.split(wrapped.removeprefix("--wrap="))
    assert program[:4] == ["exec", sys.executable, "-m", "jaxbench.launchers.slurm"]
    written = json.loads(pathlib.Path(program[4]).read_text())
    assert written["arguments"] == ["--experiment=a b"]
    assert written["limits"]["timeout_s"] == 5.0
    assert read_json(job.note_path, dict)["number"] == "11"


def test_a_job_that_goes_on(fake, job, started):
    """Also one that Slurm has put back into the queue."""
    for state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "PENDING", "RUNNING"):
        fake.set("11", state, Reason="BeginTime" if state == "PENDING" else "None")
        assert started.wait() == []
        shown = f"job 11: {state.lower()}" + (" (BeginTime)" if state == "PENDING" else "")
        assert started.last_line("k") == shown
    job.log.write_text("compiling ...\n\n")
    assert started.wait() == [] and started.last_line("k") == "compiling ..."
    # One question for all jobs.
    calls = len(fake.calls)
    started.start(TrialJob("other", (), job.run_path, job.log.with_name("run2.log")))
    started.wait()
    assert len(fake.calls) == calls + 2
    started.close()
    assert started.said == ["jobs go on in Slurm; to end them:", "scancel 11 12"]


def test_commands_to_copy_fit_the_line(fake, job, started):
    for number in range(30):
        started.start(TrialJob(f"k{number}", (), job.run_path, job.log.with_name(f"l{number}.log")))
    started.close()
    assert len(started.said) > 2 and all(len(line) <= 80 for line in started.said)
    words = [line.split() for line in started.said[1:]]
    assert {one[0] for one in words} == {"scancel"}
    assert sorted(number for _, *numbers in words for number in numbers) == sorted(fake.jobs)


def test_a_trial_says_how_it_ended(fake, job, started):
    write_end(job, exit_code=3, reason="no data")
    # As long as Slurm says that it goes on, this is of an earlier start.
    fake.set("11", "RUNNING")
    assert started.wait() == []
    fake.set("11", "FAILED")
    assert started.wait() == [("k", ProcessResult("exited", "no data", 3, 4.0), "n1")]
    started.close()


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ("TIMEOUT", "timeout", "took longer than Slurm's time limit, 1:00:00"),
        ("OUT_OF_MEMORY", "oom", "used more memory than Slurm gave it"),
        ("CANCELLED", "failed", "cancelled in Slurm"),
        ("DEADLINE", "failed", "the job's deadline in Slurm has passed"),
        ("NODE_FAIL", LOST, "the node failed"),
        ("BOOT_FAIL", LOST, "the node did not start"),
        ("PREEMPTED", LOST, "preempted"),
    ],
)
def test_slurm_ends_a_job(fake, job, started, state, status, reason):
    fake.set("11", state)
    assert started.wait() == [("k", ProcessResult(status, reason, None, 65.0), "n[1-2]")]
    # One that never ran has no host.
    started.start(job)
    fake.set("12", state, NodeList="", TimeUsed="0:00")
    assert started.wait() == [("k", ProcessResult(status, reason, None, 0.0), None)]


def test_shared_storage_is_late_and_then_silent(fake, job, started):
    fake.set("11", "FAILED", Reason="NonZeroExitCode")
    while not (ended := started.wait()):
        assert fake.now_s < 200
    said = f"job 11: failed (NonZeroExitCode); its file {end_of(job)} is missing"
    assert ended == [("k", ProcessResult("failed", said, None, 65.0), "n[1-2]")]
    assert fake.now_s >= 60
    # Such as a Python that this node does not have.
    job.log.with_suffix(".slurm.out").write_text("python: not found\n")
    assert started.attach(job)
    while not (ended := started.wait()):
        assert fake.now_s < 400
    assert ended[0].process.reason == "python: not found"


def test_squeue_fails_for_a_moment(fake, job, started):
    fake.refusal = "slurm_load_jobs error: Unable to contact slurm controller\n"
    assert started.wait() == started.wait() == []
    assert started.last_line("k").startswith("squeue: slurm_load_jobs error: Unable")
    fake.refusal = ""
    fake.set("11", "COMPLETED")
    write_end(job)
    assert started.wait() == [DONE]


@pytest.mark.parametrize("recovers_s", [100, math.inf])
def test_sbatch_refuses_for_a_moment_or_for_long(fake, job, recovers_s):
    launcher, _ = create()
    fake.refusal, fake.refusing = "sbatch: error: Socket timed out\n", ["sbatch"]
    fake.recovers_s = recovers_s
    if recovers_s == math.inf:
        with pytest.raises(Unreachable, match="^sbatch: Socket timed out$"):
            launcher.start(job)
        assert fake.now_s > 600
    else:
        launcher.start(job)
        assert read_json(job.note_path, dict)["number"] == "11" and fake.now_s == recovers_s
        assert "--dependency=singleton" in fake.calls[-1]


def test_a_job_that_was_submitted_twice_is_followed_once(fake, started):
    first = dict(fake.jobs["11"])
    fake.jobs = {"11": first, "12": first | {"JobID": "12"}}
    fake.set("11", "CANCELLED")
    assert started.wait()[0].process.reason == "cancelled in Slurm"


def test_a_job_that_was_submitted_twice_runs_once(started, job, monkeypatch):
    ran = []

    def run(command, log, **limits):
        ran.append(command)
        return ProcessResult("exited", None, 0, 4.0)

    monkeypatch.setattr(slurm, "run_child", run)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    for _ in range(2):
        slurm.main(job.log.with_suffix(".slurm.json"))
    [command] = ran
    assert command[1:] == ["-m", "jaxbench.main", "--experiment=a b", f"--workdir={job.run_path}"]
    assert read_json(job.log.with_suffix(".end.json"), dict)["exit_code"] == 0


def test_the_next_process_takes_jobs_up(fake, job):
    first, _ = create()
    first.start(job)
    second, _ = create()
    fake.refusal = "busy"
    assert second.attach(job)
    fake.refusal = ""
    assert second.wait() == []
    # The first was killed before it had the number.
    note = {"name": fake.jobs["11"]["Name"]}
    write_json(job.note_path, note)
    third, _ = create()
    assert third.attach(job)
    fake.set("11", "CANCELLED")
    assert third.wait()[0].process.reason == "cancelled in Slurm"
    # It ended long ago.
    fake.jobs.clear()
    write_end(job)
    assert third.attach(job)
    assert third.wait() == [DONE]
    assert not third.attach(TrialJob("never started", (), job.run_path, job.log.with_name("x.log")))


NOTES = [
    "",
    "[]",
    '{"name"',
    '{"number": "11"}',
    '{"name": ["NAME"]}',
    '{"name": "NAME", "number": 11}',
    '{"name": "NAME", "number": "1; touch x"}',
    '{"name": "NAME", "number": "11\\n"}',
    '{"name": "NAME", "number": "\u0661"}',
    '{"name": "another trial-12345678", "number": "11"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", NOTES)
def test_a_note_that_is_none_is_said(fake, job, started, text):
    text = text.replace("NAME", fake.jobs["11"]["Name"])
    job.note_path.write_text(text)
    launcher, said = create()
    assert not launcher.attach(job)
    assert said == [f"{job.note_path}: names no job of this trial, which starts anew"]
    launcher.close()
    assert len(said) == 1


def test_a_number_of_slurm_that_is_none_is_never_printed(fake, job, started):
    fake.jobs["1; touch x"] = fake.jobs.pop("11") | {"JobID": "1; touch x"}
    started.wait()
    fake.answer = lambda command: (0, "Submitted; touch x\n", "")
    started.start(job)
    started.close()
    assert started.said == []


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "done"},
        {"exit_code": "0"},
        {"exit_code": 10**30},
        {"wall_s": math.nan},
        {"wall_s": -1},
        {"host": None},
        {"reason": ["no"]},
        None,
        [],
    ],
)
def test_a_damaged_end_is_said(fake, job, started, fields):
    fake.set("11", "FAILED")
    if fields:
        write_end(job, **fields)
    else:
        end_of(job).write_text(json.dumps(fields) if fields is not None else '{"status": "exi')
    while not (ended := started.wait()):
        assert fake.now_s < 200
    assert ended[0].process.reason == f"job 11: failed; its file {end_of(job)} is damaged"


def test_a_job_whose_description_is_damaged_is_one_line(job):
    path = job.log.with_suffix(".slurm.json")
    for text in (
        "{",
        "{}",
        '{"arguments": [], "limits": {"x": 1}}',
        '{"arguments": 1, "limits": {}}',
    ):
        path.write_text(text)
        refusal(slurm.main, path, told=f"{path}: is missing, or describes no job of a sweep")


def test_slurm_has_forgotten_a_job(fake, job, started):
    fake.jobs.clear()
    assert started.attach(job)
    [(_, result, _)] = started.wait()
    assert (result.status, result.reason) == (LOST, "Slurm does not know job 11")
    write_end(job)
    assert started.attach(job)
    assert started.wait() == [DONE]


def test_times():
    assert seconds("0:07") == 7 and seconds("59:59") == 3599 and seconds("2:00:01") == 7201
    assert seconds("1-02:03:04") == 93784
    assert seconds("INVALID") == 0  # a negative one


def test_options_that_a_sweep_sets_are_refused(fake):
    """Also under the beginning of a name, which sbatch takes for the name."""
    texts = ["--output=x", "--array=1-3", "--wait", "-p a", "-N1", "--arr=0-3", "--out=", "--wra="]
    texts += ["--array 0-3", "--", "--gpus=1 --job=x", "-a0-3", "--er x"]
    for text in texts:
        line = refusal(create, text, told=": give --NAME=VALUE, for")
        assert line.startswith(f"--slurm={text}: {text[:1]}")
    assert not fake.calls
    for text in ("--wait-all-nodes=1", "--verbose", "--exclude=n1", "--output-is-no-option=1"):
        create(text)
    # What does not change a result is no part of a key, nor is the order.
    launcher, _ = create("--partition=a --comm=x --tim=1 --gpus=2 --account=lab --exclusive")
    assert launcher.hardware == ("launcher=slurm", "--exclusive", "--gpus=2", "--partition=a")


def test_variables_that_a_sweep_sets_are_said_and_dropped(fake, job, monkeypatch):
    dropped = ("SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_OPEN_MODE", "SBATCH_WAIT")
    for name in (*dropped, "SBATCH_ACCOUNT", "SQUEUE_PARTITION", "SLURM_NTASKS", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    launcher, said = create()
    told = "=1 is not used: a sweep sets this option of sbatch itself"
    assert said == [f"{name}{told}" for name in dropped]
    launcher.start(job)
    names = {name for name in fake.environment if name.startswith(("SBATCH", "SQUEUE", "SLURM"))}
    assert names == {"SBATCH_ACCOUNT", "SLURM_CONF"}


def test_bad_options_are_refused(fake, refused):
    quick = (f"--experiment={MICRO}", "--grid=seed=0", "--sweepdir=s")
    refuse = functools.partial(refused, *quick, module="jaxbench.sweep")
    refuse(
        "--launcher=slurm", "--slurm=--gpus='a", told="--slurm=--gpus='a: No closing quotation\n"
    )
    refuse("--slots=2", told="--slots with --launcher=local: it needs --launcher=slurm\n")
    fake.refusal = 'sbatch: error: invalid partition: a\nsbatch: unknown\nTry "sbatch --help"\n'
    told = "--slurm=--partition=a: sbatch: invalid partition: a; unknown\n"
    refuse("--launcher=slurm", "--slurm=--partition=a", told=told)


def test_no_slurm_here(monkeypatch):
    def run(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr("subprocess.run", run)
    said = "--launcher=slurm: sbatch: is not here; sweep where Slurm takes jobs"
    assert refusal(create) == said


def test_a_job_of_several_tasks_is_one_run(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    srun = ["/bin/srun", "--kill-on-bad-exit=0", "--gpu-bind=none"]
    assert slurm.srun_prefix({"SLURM_JOB_NUM_NODES": "1"}) == []
    assert slurm.srun_prefix({"SLURM_JOB_NUM_NODES": "2"}) == srun
    tasks = {"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "8"}
    assert slurm.srun_prefix(tasks) == [*srun, "--cpus-per-task=8"]


def test_a_requeued_trial_goes_on_or_begins_anew(job):
    assert slurm.take_up(job.run_path, job.log, "1") == []
    job.run_path.mkdir()
    job.log.write_text("before")
    write_json(job.run_path / "run.json", {"mode": "train"})
    assert slurm.take_up(job.run_path, job.log, "1") == ["--resume=auto"]
    assert job.run_path.exists()
    assert job.log.with_name("run1.before-1.log").read_text() == "before"
    write_json(job.run_path / "run.json", {"mode": "memory"})
    assert slurm.take_up(job.run_path, job.log, "2") == []
    assert not job.run_path.exists() and job.run_path.with_name("run1.before-2").is_dir()
