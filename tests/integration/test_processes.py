"""Many processes: the numbers of one, records from the first only, one end for all."""

import contextlib
import csv
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from jaxbench.checkpoints.checkpoint import list_checkpoints
from jaxbench.clock import wait_until
from jaxbench.modes.train import run_training
from jaxbench.records.writers.console import Console
from tests.conftest import MICRO, ROOT, config_of, records, run_json
from tests.integration.conftest import program, run_program

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
# All devices of all processes.
SMALL = (f"--experiment={MICRO}", "--experiment.num_devices=0")


class Processes:
    """The same command in several processes, each in a folder of its own."""

    def __init__(
        self,
        folder,
        *args,
        count=2,
        devices=2,
        of_one=None,
        code=None,
        port=None,
        stdin=None,
    ):
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            self.port = port = port or probe.getsockname()[1]
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
            own_flags = [f"--coordinator_address=localhost:{port}", f"--num_processes={count}"]
            own_flags += [f"--process_id={index}", "--heartbeat_timeout_s=3"]
            if code:
                line = [sys.executable, "-c", code, str(port), str(index)]
            else:
                own_flags += (of_one or {}).get(index, ())
                line = program(*args, *own_flags)
            with open(folder / f"out-{index}", "w") as out, open(folder / f"err-{index}", "w") as e:
                self.running.append(
                    subprocess.Popen(
                        line, cwd=own, env=environment, stdin=stdin, stdout=out, stderr=e
                    )
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


# 300 steps, of which some are left after two checkpoints.
LONG = {"epochs": 60}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run in one process, on as many devices."""
    path = tmp_path_factory.mktemp("alone") / "run"
    return in_one_process(path, num_devices=4, **LONG)


def in_one_process(path, **more):
    named = {name.replace(".", "__"): value for name, value in (FIELDS | more).items()}
    return run_training(config_of(MICRO, **named), str(path), Console()).run_dir.path


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The streamed run in two processes, and its flags. A resident one has a split state below."""
    flags = [*SMALL, "--workdir=run", "--telemetry_s=0"]
    flags += fields(**LONG, **{"data.feed": "stream"})
    started = Processes(tmp_path_factory.mktemp("together"), *flags)
    assert started.wait() == [0, 0], started.log(0) + started.log(1)
    return started, flags


def same(run, other, rel=0.0, kinds=(("step", "loss"), ("epoch", "eval_loss"))):
    """Checks that two runs have the same losses, some of them."""
    for kind, figure in kinds:
        ours, theirs = (
            [(record["step"], record[figure]) for record in records(path, kind)]
            for path in (run, other)
        )
        assert len(ours) > 1 and [step for step, _ in ours] == [step for step, _ in theirs]
        assert [of for _, of in ours] == pytest.approx([of for _, of in theirs], rel=rel, abs=0)


def test_two_processes_train_as_one_does(together, alone):
    run = together[0].folders[0] / "run"
    same(run, alone, 1e-8)
    same(run, alone, 1e-8, [("epoch", "eval_top1")])
    counts = {(record["eval_count"], record["images"]) for record in records(run, "epoch")}
    assert counts == {(90, 320)}


def test_only_the_first_process_writes_and_speaks(together):
    started, _ = together
    first, second = started.folders
    assert list(second.iterdir()) == []
    # Nothing but gloo's announcements, whose lines run into one another.
    assert not re.search("epoch|compiling|records|done", started.output(1))
    assert "in 2 processes" in started.output(0)
    environment = run_json(first / "run")["environment"]
    assert environment["num_processes"] == 2
    assert (environment["num_devices"], environment["num_local_devices"]) == (4, 2)


def test_two_processes_of_four_devices_split_the_state(tmp_path):
    """They save it together, and resume from its whole bit for bit."""
    more = [*SMALL, *fields(parallelism="fsdp"), "--experiment.model.hidden=(16,)"]
    more += ["--workdir=run", "--checkpoint_epochs=1"]
    started = Processes(tmp_path / "runs", *more, devices=4)
    assert started.wait() == [0, 0], started.log(0) + started.log(1)
    run = started.folders[0] / "run"
    same(run, in_one_process(tmp_path / "whole", num_devices=8, model__hidden=(16,)), 1e-8)
    first, _ = list_checkpoints(run / "checkpoints")
    resume = f"--resume={run / 'checkpoints' / first}"
    resumed = Processes(tmp_path / "resumed", resume, *more, devices=4)
    assert resumed.wait() == [0, 0], resumed.log(0) + resumed.log(1)
    same(resumed.folders[0] / "run", run)


@pytest.mark.parametrize(
    ("sent", "to", "codes", "status", "reason"),
    [
        # SIGTERM, and the end of another, are in the test of a job that lost a process.
        pytest.param(
            *(signal.SIGINT, 1, [130, 130], "interrupted", "interrupted (Ctrl-C)"),
            marks=pytest.mark.slow,
        ),
        # Nobody is left to write; the report finds the process gone.
        (signal.SIGKILL, 0, [-9, -signal.SIGABRT], "running", None),
    ],
    ids=["other-ctrl-c", "first-killed"],
)
def test_one_that_ends_ends_all(tmp_path, sent, to, codes, status, reason):
    started = Processes(tmp_path, *SMALL, "--workdir=run", "--experiment.epochs=5000")
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
    assert document["status"] == status and str(document.get("reason")).startswith(str(reason))
    if status != "running":
        assert document["summary"]["epochs_done"] >= 2
        assert len(started.errors(0)) == 1 and "Traceback" not in started.log(0)


@pytest.mark.parametrize("refused", [0, 1])
def test_what_one_refuses_all_refuse(tmp_path, refused):
    """The first process its folder, another to do something else; nothing is written."""
    of_one = {}
    if refused:
        of_one = {1: ["--experiment.seed=7"]}
    else:
        (tmp_path / "process-0" / "run").mkdir(parents=True)
        (tmp_path / "process-0" / "run" / "something").touch()
    started = Processes(tmp_path, *SMALL, "--workdir=run", of_one=of_one)
    assert started.wait(90) == [2, 2], started.log(0)
    for index in range(2):
        [line] = started.errors(index)
        assert ("--experiment.seed=7, process 0 has 0" if refused else "is not empty") in line
        assert "Traceback" not in started.log(index)
    assert not (started.folders[0] / "run" / "run.json").exists()


AGREEING = """
import sys
from jaxbench import errors
from jaxbench.parallel import processes, signals
signals.raise_on_signals()
port, index = int(sys.argv[1]), int(sys.argv[2])
config = processes.CoordinatorConfig(f"localhost:{port}", 2, index, 60, 5)
def exit_status(error):
    return processes.ExitStatus("failed", "no", 7, str(error))
with processes.process_group(config, exit_status):
    print([processes.broadcast_value([index, turn]) for turn in range(3)])
    processes.barrier("here")
    processes.check_same("settings", {"a": (1, 2), "b": lambda: None})
    try:
        processes.check_same("others", {"a": index, "b": index // 2})
    except errors.BadInput as error:
        print(error)
    if index == 1:
        raise ValueError("something broke")
    processes.barrier("a place that nobody else comes to")
"""


def test_the_first_process_decides_and_an_error_is_everybodys(tmp_path):
    started = Processes(tmp_path, code=AGREEING)
    assert started.wait(60) == [7, 7]
    agreed = "[[0, 0], [0, 1], [0, 2]]\n"
    assert started.output(0) == agreed
    assert started.output(1) == agreed + "a=1, process 0 has 0: must be the same in all processes\n"
    assert started.errors(0) == ["jaxbench: process 1: no"]
    assert started.errors(1) == ["jaxbench: something broke"]


CONNECTED = """
import sys
from jaxbench.parallel import processes
from jaxbench.cli import process_flags
config = processes.CoordinatorConfig(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]), 4, 5)
with processes.process_group(config, process_flags.exit_status):
    print("connected", flush=True)
    sys.stdin.read()
    processes.barrier("once more")
"""


def test_a_second_run_on_a_port_is_one_line_each_and_the_first_goes_on(tmp_path):
    first = Processes(tmp_path / "first", code=CONNECTED, stdin=subprocess.PIPE)
    wait_until(lambda: first.output(0) == first.output(1) == "connected\n")
    second = Processes(tmp_path / "second", code=CONNECTED, port=first.port)
    assert second.wait(60) == [2, 1]
    [line] = second.log(0).splitlines()
    assert f"process 0 cannot listen at localhost:{first.port}: Address already in use" in line
    [line] = second.log(1).splitlines()
    assert "no process 0 answered" in line and "within 4 s" in line
    for process in first.running:
        process.stdin.close()
    assert first.wait(60) == [0, 0]


@pytest.mark.slow
def test_a_sweeps_trials_take_several_processes(tmp_path):
    def sweep(*args):
        return run_program(
            [sys.executable, "-m", "jaxbench.sweep", TINY, "--grid=batch_size=64,128", *args],
            cwd=tmp_path,
        )

    refused = sweep("--num_processes=2")
    assert refused.returncode == 2 and "--local_processes" in refused.stderr
    done = sweep("--local_processes=2", "--experiment.max_steps=2", "--sweepdir=sweep")
    assert done.returncode == 0, done.stdout
    with open(tmp_path / "sweep" / "sweep.csv", newline="") as file:
        assert [row["num_devices"] for row in csv.DictReader(file)] == ["16", "16"]
    folders = pathlib.Path(tmp_path, "sweep", "trials").glob("*/*/run.json")
    assert len(list(folders)) == 2


def test_a_job_that_lost_a_process_is_resumed_bit_for_bit(tmp_path, together):
    """SIGKILL to one, SIGTERM to it, the same command each time; only process 0's disk counts."""
    whole, flags = together
    args = (*flags, "--checkpoint_minutes=0.001", "--resume=auto")
    run = tmp_path / "process-0" / "run"

    def until_checkpoint(resumes):
        """Starts it, and returns once it has been resumed so often and has a new checkpoint."""
        before = set(list_checkpoints(run / "checkpoints"))
        started = Processes(tmp_path, *args)

        def there():
            assert started.running[0].poll() is None, started.log(0)
            with contextlib.suppress(FileNotFoundError):
                restarted = len(run_json(run)["attempts"]) == 1 + resumes
                return restarted and set(list_checkpoints(run / "checkpoints")) - before
            return False

        wait_until(there)
        return started

    lost = until_checkpoint(resumes=0)
    lost.running[1].kill()
    assert lost.wait()[0] == 1, lost.log(0)
    assert run_json(run)["reason"].startswith("process 1 was lost")
    assert list((tmp_path / "process-1").iterdir()) == []
    stopped = until_checkpoint(resumes=1)
    stopped.running[1].send_signal(signal.SIGTERM)
    assert stopped.wait() == [143, 143], stopped.log(0)
    assert run_json(run)["status"] == "preempted"
    done = Processes(tmp_path, *args)
    assert done.wait() == [0, 0], done.log(0)
    document = run_json(run)
    assert document["status"] == "done"
    lost_at, stopped_at = (entry["step"] for entry in document["attempts"][1:])
    assert 0 < lost_at < stopped_at < 300
    # Nothing is there twice, and the losses are those of the run that nobody stopped.
    same(run, whole.folders[0] / "run")
