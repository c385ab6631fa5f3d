"""Which processes a run has, and that the one that compiles longest is waited for."""

import pytest

from jaxbench.clock import Clock
from jaxbench.modes.train import run_training
from jaxbench.parallel import child, processes
from jaxbench.parallel.processes import barrier_before_first_step, check_single_host, detect_cluster
from jaxbench.records.writers.console import Console
from tests.conftest import MICRO, config_of, records, refusal


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--mode=scaling", "--local_processes=2"), "it needs --mode=train or"),
        (("--local_processes=2", "--process_id=1"), "starts the others itself"),
        (("--distributed=auto",), "JAX finds no Cloud TPU slice"),
        (("--distributed=auto", "--process_id=1"), "give either"),
        (("--num_processes=2",), "--coordinator_address and --process_id missing"),
        (("host:1", "--num_processes=2", "--process_id=2"), "must be 0 to 1"),
        (("host:1", "--num_processes=2", "--process_id=-1"), "must be 0 to 1"),
        (("host", "--num_processes=2", "--process_id=1"), "must be HOST:PORT"),
        (("host:70000", "--num_processes=2", "--process_id=1"), "must be HOST:PORT"),
    ],
)
def test_flags_of_processes_that_cannot_be_are_refused(refused, args, told):
    args = [arg if arg.startswith("-") else f"--coordinator_address={arg}" for arg in args]
    refused(f"--experiment={MICRO}", *args, told=told)


def test_slurm_is_detected_if_it_is_described_and_a_single_task_needs_no_others(monkeypatch):
    step = {"JOB_ID": "7", "STEP_NODELIST": "node[1-2]", "NTASKS": "2", "PROCID": "1"}
    for name, value in (step | {"LOCALID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    config = detect_cluster(60, 30)
    # Of two steps of a job the variable gives each a port.
    assert (config.address, config.count, config.index) == ("node1:61447", 2, 1)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "1234")
    assert detect_cluster(60, 30).address == "node1:1234"
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert detect_cluster(60, 30) is None
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "one")
    refusal(detect_cluster, 60, 30, told="--distributed=auto: ValueError: invalid literal")


def test_one_host_of_a_slice_does_not_start_without_the_others(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    check_single_host()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    check_single_host()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b,c,d")
    refusal(check_single_host, told="one of 4 hosts")
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,1,1")
    check_single_host()


def test_one_of_several_processes_that_something_starts_is_no_run_of_its_own(refused, monkeypatch):
    """In place of N runs of the same, each in a folder of its own or one that only one gets."""
    for starter, (count, index) in child.STARTERS.items():
        with monkeypatch.context() as patch:
            patch.setenv(count, "1")
            patch.setenv(index, "0")
            processes.check_started_once()
            patch.setenv(count, "4")
            told = f"one of 4 processes of {starter}: give each --distributed=auto, or"
            line = refused(f"--experiment={MICRO}", told=told).stderr
            assert f"--num_processes=${count} --process_id=${index}" in line
            if starter not in ("srun", "a TPU multislice"):
                told = f"HOST:PORT --num_processes=${count} --process_id=${index}; leave out"
                refusal(detect_cluster, 60, 30, told=told)
            patch.delenv(index)  # a variable of another program
            processes.check_started_once()


def test_processes_that_compile_longer_are_waited_for(tmp_path, monkeypatch):
    """gloo's first collective fails if a process comes 30 s late."""
    names, clock = [], Clock()
    monkeypatch.setattr(processes, "barrier", names.append)
    barrier_before_first_step(clock)
    assert names == [] and "barrier" not in clock.totals_s()
    monkeypatch.setattr(processes, "count", lambda: 2)
    barrier_before_first_step(clock)
    assert names == ["the first step"] and "barrier" in clock.totals_s()
    monkeypatch.undo()

    def note(clock):
        before.append((clock.totals_s(), [r["kind"] for r in records(tmp_path / "run")]))

    before = []
    monkeypatch.setattr("jaxbench.modes.train.barrier_before_first_step", note)
    config = config_of(MICRO, max_steps=1, num_devices=1)
    run_training(config, str(tmp_path / "run"), Console())
    [(totals_s, kinds)] = before
    assert kinds == ["compile", "compile"] and "train" not in totals_s
