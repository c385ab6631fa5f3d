"""Many processes: the numbers of one, records from the first alone, one end for all."""

import contextlib
import csv
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from conftest import ROOT, last_step, program, records, run_json, set_fields

from jaxbench import catalog, processes
from jaxbench.clock import Clock, wait_until
from jaxbench.errors import BadInput, Unreachable
from jaxbench.job import meet_before_first_step
from jaxbench.processes import check_meeting, check_single, found_by_jax
from jaxbench.train import train_and_evaluate
from jaxbench.writers.console import PlainConsole

# 90 test images: neither a batch nor the devices of both processes divide them.
FIELDS = {
    "precision": "fp64",
    "batch_norm": "sync",
    "batch_size": 64,
    "epochs": 2,
    "log_every_steps": 1,
    "data.train_examples": 320,
    "data.eval_examples": 90,
    "data.crop_padding": 1,
    "data.flip": True,
}
TINY = "--experiment=quickstart:tiny"


class Processes:
    """The same command in several processes, each in a folder of its own."""

    def __init__(self, folder, *args, count=2, devices=2, of_one=None, command=None):
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        simulated = f"--xla_force_host_platform_device_count={devices}"
        environment = os.environ | {
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {simulated}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "JAX_LOG_COMPILES": "1",
        }
        self.folders = [folder / f"process-{index}" for index in range(count)]
        self.running = []
        for index, own in enumerate(self.folders):
            own.mkdir(parents=True, exist_ok=True)
            meeting = [f"--coordinator_address=localhost:{port}", f"--num_processes={count}"]
            meeting += [f"--process_id={index}", "--heartbeat_timeout_s=3"]
            if command:
                line = [sys.executable, "-c", command, str(port), str(index)]
            else:
                line = program(*args, *meeting, *(of_one or {}).get(index, ()))
            with open(folder / f"out-{index}", "w") as out, open(folder / f"err-{index}", "w") as e:
                self.running.append(
                    subprocess.Popen(line, cwd=own, env=environment, stdout=out, stderr=e)
                )
        self._logs = folder

    def output(self, index):
        return (self._logs / f"out-{index}").read_text()

    def errors(self, index):
        """What a process said itself, without what C++ and JAX log."""
        lines = (self._logs / f"err-{index}").read_text().splitlines()
        return [line for line in lines if line.startswith("jaxbench: ")]

    def log(self, index):
        return (self._logs / f"err-{index}").read_text()

    def wait(self, timeout_s=240):
        """Returns the exit codes; none may still run after that time."""
        try:
            return [process.wait(timeout_s) for process in self.running]
        finally:
            for process in self.running:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


def fields(**more):
    return [f"--experiment.{name}={value}" for name, value in (FIELDS | more).items()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run in one process, on as many devices."""
    config = catalog.load("quickstart:tiny")
    set_fields(config, **{name.replace(".", "__"): value for name, value in FIELDS.items()})
    config.num_devices = 4
    with open(os.devnull, "w") as quiet:
        path = tmp_path_factory.mktemp("alone") / "run"
        return train_and_evaluate(config, str(path), PlainConsole(quiet))


@pytest.fixture(
    scope="module",
    params=[
        ("pmap", "resident"),
        ("shard_map", "stream"),
        pytest.param(("pmap", "stream"), marks=pytest.mark.slow),
        pytest.param(("shard_map", "resident"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def together(request, tmp_path_factory):
    parallelism, feed = request.param
    more = fields(parallelism=parallelism, **{"data.feed": feed})
    started = Processes(tmp_path_factory.mktemp("together"), TINY, "--workdir=run", *more)
    assert started.wait() == [0, 0], started.log(0) + started.log(1)
    return started


def test_two_processes_train_as_one_does(together, alone):
    run = together.folders[0] / "run"
    for kind, figure in (("step", "loss"), ("epoch", "eval_loss"), ("epoch", "eval_top1")):
        of_one = [record[figure] for record in records(alone.run_dir.path, kind)]
        of_two = [record[figure] for record in records(run, kind)]
        assert of_two == pytest.approx(of_one, rel=1e-8) and len(of_one) > 1
    assert [record["eval_count"] for record in records(run, "epoch")] == [90, 90]
    assert [record["images"] for record in records(run, "epoch")] == [320, 320]


def test_only_the_first_process_writes_and_speaks(together):
    first, second = together.folders
    assert list(second.iterdir()) == []
    # Nothing but gloo's announcements, whose lines run into one another.
    assert not re.search("epoch|compiling|records|done", together.output(1))
    assert "in 2 processes" in together.output(0)
    environment = run_json(first / "run")["environment"]
    assert environment["num_processes"] == 2
    assert (environment["num_devices"], environment["num_local_devices"]) == (4, 2)


def test_processes_that_compile_longer_are_waited_for(tmp_path, monkeypatch):
    """With gloo the first collective meets within 30 s, or fails."""
    places = []
    monkeypatch.setattr(processes, "wait_for_all", places.append)
    clock = Clock()
    meet_before_first_step(clock)
    assert places == [] and "meet" not in clock.totals_s()
    monkeypatch.setattr(processes, "count", lambda: 2)
    meet_before_first_step(clock)
    assert places == ["the first step"] and "meet" in clock.totals_s()
    monkeypatch.undo()

    def meet(clock):
        before_s.append(clock.totals_s())
        kinds.extend(record["kind"] for record in records(tmp_path / "run"))

    before_s, kinds = [], []
    monkeypatch.setattr("jaxbench.trainer.meet_before_first_step", meet)
    config = catalog.load("quickstart:tiny")
    set_fields(config, max_steps=1, num_devices=1)
    with open(os.devnull, "w") as quiet:
        train_and_evaluate(config, str(tmp_path / "run"), PlainConsole(quiet))
    assert kinds == ["compile", "compile"] and "train" not in before_s[0]


@pytest.mark.slow
def test_four_processes_and_fp32(tmp_path, alone):
    more = fields(precision="fp32", **{"optimizer.learning_rate": 0.005})
    losses = []
    for count, devices in ((4, 2), (2, 4)):
        started = Processes(
            tmp_path / str(count), TINY, "--workdir=run", *more, count=count, devices=devices
        )
        assert started.wait() == [0] * count, started.log(0)
        epochs = records(started.folders[0] / "run", "epoch")
        losses.append([record["eval_loss"] for record in epochs])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    ("sent", "to", "codes", "status", "reason"),
    [
        # The first two are in test_a_job_that_lost_a_process_goes_on_bit_for_bit too.
        pytest.param(
            *(signal.SIGKILL, 1, [1, -9]),
            *("failed", "process 1 was lost: it has not been heard of"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(signal.SIGTERM, 1, [143, 143], "preempted", "terminated (SIGTERM)"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(signal.SIGINT, 0, [130, 130], "failed", "interrupted (Ctrl-C)"),
            marks=pytest.mark.slow,
        ),
        # Nobody is left to write; the report finds the process gone.
        (signal.SIGKILL, 0, [-9, 1], "running", None),
    ],
    ids=["killed", "terminated", "ctrl-c", "first-killed"],
)
def test_one_that_ends_ends_all(tmp_path, sent, to, codes, status, reason):
    parallelism = "shard_map" if sent == signal.SIGTERM else "pmap"
    more = ["--experiment.epochs=5000", f"--experiment.parallelism={parallelism}"]
    started = Processes(tmp_path, TINY, "--workdir=run", *more)
    table = started.folders[0] / "run" / "epochs.csv"

    def trained():
        assert started.running[0].poll() is None, started.log(0)
        return table.exists() and len(table.read_text().splitlines()) >= 3

    wait_until(trained)
    started.running[to].send_signal(sent)
    assert started.wait(60) == codes
    # Two steps, compiled once each, before and after their first results came back as arguments.
    compiled = r"Finished XLA compilation of jit\((?:_fun|train_step|eval_step)\)"
    assert [len(re.findall(compiled, started.log(index))) for index in range(2)] == [2, 2]
    document = run_json(started.folders[0] / "run")
    assert document["status"] == status and str(document["reason"]).startswith(str(reason))
    if status != "running":
        assert document["summary"]["epochs_done"] >= 2
        assert len(started.errors(0)) == 1 and "Traceback" not in started.log(0)
    else:
        assert started.errors(1)[0].startswith("jaxbench: process 0 was lost")


@pytest.mark.parametrize("refused", [0, 1])
def test_what_one_refuses_all_refuse(tmp_path, refused):
    """The first process its folder, another to do something else; nothing is written."""
    of_one = {}
    if refused:
        of_one = {1: ["--experiment.seed=7"]}
    else:
        (tmp_path / "process-0" / "run").mkdir(parents=True)
        (tmp_path / "process-0" / "run" / "something").touch()
    started = Processes(tmp_path, TINY, "--workdir=run", of_one=of_one)
    assert started.wait(90) == [2, 2], started.log(0)
    for index in range(2):
        [line] = started.errors(index)
        assert ("--experiment.seed=7, process 0 has 0" if refused else "is not empty") in line
        assert "Traceback" not in started.log(index)
    assert not (started.folders[0] / "run" / "run.json").exists()


def test_throughput_over_two_processes(tmp_path):
    """Windows are as long in all of them, or they would wait for one another for ever."""
    done = subprocess.run(
        program(
            TINY,
            "--mode=throughput",
            "--local_processes=2",
            "--workdir=run",
            "--window_s=0.05",
            "--rounds=6",
        ),
        cwd=tmp_path,
        env=os.environ
        | {
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    assert document["environment"]["num_processes"] == 2
    [step, forward] = records(tmp_path / "run", "throughput")
    assert step["num_devices"] == 4
    assert step["images_counted"] == step["images_per_step"] == 128
    assert forward["images_per_s"] > step["images_per_s"]


AGREEING = """
import sys
from jaxbench import errors, processes, signals
signals.raise_on_signals()
port, index = int(sys.argv[1]), int(sys.argv[2])
meeting = processes.Meeting(f"localhost:{port}", 2, index, 60, 5)
with processes.joined(meeting, lambda e: processes.Ending("failed", "no", 7, str(e))):
    print([processes.agreed([index, turn]) for turn in range(3)])
    processes.wait_for_all("here")
    processes.check_same("facts", {"a": (1, 2), "b": lambda: None})
    try:
        processes.check_same("others", {"a": index, "b": index // 2})
    except errors.BadInput as error:
        print(error)
    if index == 1:
        raise ValueError("something broke")
    processes.wait_for_all("a place that nobody else comes to")
"""


def test_the_first_process_decides_and_an_error_is_everybodys(tmp_path):
    started = Processes(tmp_path, command=AGREEING)
    assert started.wait(60) == [7, 7]
    agreed = "[[0, 0], [0, 1], [0, 2]]\n"
    assert started.output(0) == agreed
    assert started.output(1) == agreed + "a=1, process 0 has 0: must be the same in all processes\n"
    assert started.errors(0) == ["jaxbench: process 1: no"]
    assert started.errors(1) == ["jaxbench: something broke"]


class Store:
    """One process's sight of the keys that all have in common."""

    def __init__(self, keys):
        self.keys, self.fetched = keys, 0

    def key_value_set(self, key, value):
        self.keys[key] = value

    def key_value_dir_get(self, folder):
        found = [(key, value) for key, value in list(self.keys.items()) if key.startswith(folder)]
        self.fetched += len(found)
        return found


def test_what_a_meeting_costs_grows_with_the_processes_not_with_their_square():
    keys, crews = {}, []
    for index in range(64):
        crew = object.__new__(processes._Crew)
        crew.index, crew.count, crew._store = index, 64, Store(keys)
        crews.append(crew)
    threads = [threading.Thread(target=crew.wait_for_all, args=("here",)) for crew in crews]
    for thread in threads[1:]:
        thread.start()
    assert all(thread.is_alive() for thread in threads[1:])
    threads[0].start()
    for thread in threads:
        thread.join(60)
    assert [crew._store.fetched for crew in crews[1:]] == [1] * 63


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((None, None, 2, None), "--coordinator_address and --process_id missing"),
        ((None, "host:1", 2, 2), "must be 0 to 1"),
        ((None, "host:1", 2, -1), "must be 0 to 1"),
        ((None, "host", 2, 1), "must be HOST:PORT"),
        ((None, "host:70000", 2, 1), "must be HOST:PORT"),
        (("auto", "host:1", 2, 1), "give one of them"),
    ],
)
def test_flags_that_do_not_say_how_to_meet(given, told):
    check_meeting(None, None, None, None)
    check_meeting("auto", None, None, None)
    check_meeting(None, "10.0.0.1:8476", 2, 1)
    with pytest.raises(BadInput, match=told):
        check_meeting(*given)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((TINY, "--mode=scaling", "--local_processes=2"), "it goes with --mode=train or"),
        ((TINY, "--local_processes=2", "--process_id=1"), "starts the others itself"),
        ((TINY, "--distributed=auto"), "JAX finds no Cloud TPU slice"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(run_main, tmp_path, args, told):
    done = run_main(*args)
    assert done.returncode == 2 and told in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_nobody_to_meet_is_told_in_bounded_time():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="cannot listen on port"):
            processes._listening_address(address)
    with pytest.raises(Unreachable, match="no process 0 there within 0 s"):
        processes._await_listener(address, 0)


def test_process_0_listens_where_it_was_told_to():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for own in ("localhost", "127.0.0.1"):
        assert processes._listening_address(f"{own}:{port}") == f"{own}:{port}"
    # A name, and an address (for documentation) that this host does not have.
    for other in ("a.b.invalid", "203.0.113.7"):
        assert processes._listening_address(f"{other}:{port}") == f"[::]:{port}"


def test_slurm_is_found_and_a_single_task_is_alone(monkeypatch):
    with pytest.raises(BadInput, match="JAX finds no"):
        found_by_jax(1, 1)
    step = {"JOB_ID": "7", "STEP_NODELIST": "node[1-2]", "NTASKS": "2", "PROCID": "1"}
    for name, value in (step | {"LOCALID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    meeting = found_by_jax(60, 30)
    assert (meeting.address, meeting.count, meeting.index) == (None, 2, 1)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert found_by_jax(60, 30) is None


def test_one_host_of_a_slice_does_not_start_alone(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    check_single()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    check_single()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b,c,d")
    with pytest.raises(BadInput, match="one of 4 hosts"):
        check_single()
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,1,1")
    check_single()


@pytest.mark.slow
def test_a_sweeps_cells_take_several_processes(tmp_path):
    def sweep(*args):
        return subprocess.run(
            [sys.executable, "-m", "jaxbench.sweep", TINY, "--grid=batch_size=64,128", *args],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    refused = sweep("--num_processes=2")
    assert refused.returncode == 2 and "--local_processes" in refused.stderr
    done = sweep("--local_processes=2", "--experiment.max_steps=2", "--sweepdir=sweep")
    assert done.returncode == 0, done.stdout
    with open(tmp_path / "sweep" / "sweep.csv", newline="") as file:
        assert [row["num_devices"] for row in csv.DictReader(file)] == ["16", "16"]
    folders = pathlib.Path(tmp_path, "sweep", "cells").glob("*/*/run.json")
    assert len(list(folders)) == 2


def test_a_job_that_lost_a_process_goes_on_bit_for_bit(tmp_path):
    """SIGKILL to one, SIGTERM to it, the same command each time; only process 0's disk counts."""
    more = fields(precision="fp32", epochs=10)
    whole = Processes(tmp_path / "whole", TINY, *more, "--workdir=run")
    assert whole.wait() == [0, 0], whole.log(0)
    args = (TINY, *more, "--workdir=run", "--checkpoint_minutes=0.005", "--resume=auto")
    run = tmp_path / "process-0" / "run"

    def until(step, resumes):
        """Starts it, and returns once it has been taken up so often and come so far."""
        started = Processes(tmp_path, *args)

        def there():
            assert started.running[0].poll() is None, started.log(0)
            with contextlib.suppress(FileNotFoundError):
                taken_up = len(run_json(run).get("resumes", ())) == resumes
                return taken_up and last_step(run) >= step
            return False

        wait_until(there)
        return started

    lost = until(12, resumes=0)
    lost.running[1].kill()
    assert lost.wait()[0] == 1, lost.log(0)
    assert run_json(run)["reason"].startswith("process 1 was lost")
    assert list((tmp_path / "process-1").iterdir()) == []
    stopped = until(16, resumes=1)
    stopped.running[1].send_signal(signal.SIGTERM)
    assert stopped.wait() == [143, 143], stopped.log(0)
    assert run_json(run)["status"] == "preempted"
    done = Processes(tmp_path, *args)
    assert done.wait() == [0, 0], done.log(0)
    document = run_json(run)
    assert document["status"] == "done"
    lost_at, stopped_at = (entry["step"] for entry in document["resumes"])
    assert 0 < lost_at < 16 <= stopped_at < 50
    # Nothing is there twice, and the losses are those of the run that nobody stopped.
    for kind, figure in (("step", "loss"), ("epoch", "eval_loss")):
        ours, theirs = (
            [(record["step"], record[figure]) for record in records(path, kind)]
            for path in (run, whole.folders[0] / "run")
        )
        assert ours == theirs and len(ours) >= 10
