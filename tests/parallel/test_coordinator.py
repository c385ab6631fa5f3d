"""Which processes a run has: flags that contradict each other, clusters that JAX detects."""

import pytest

from jaxbench.errors import BadInput
from jaxbench.parallel.coordinator import (
    check_coordinator,
    check_single_host,
    detect_cluster,
)
from tests.conftest import MICRO


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, None, 2, None), "--coordinator_address and --process_id missing"),
        ((None, "host:1", 2, 2), "must be 0 to 1"),
        ((None, "host:1", 2, -1), "must be 0 to 1"),
        ((None, "host", 2, 1), "must be HOST:PORT"),
        ((None, "host:70000", 2, 1), "must be HOST:PORT"),
        (("auto", "host:1", 2, 1), "give one of them"),
    ],
)
def test_flags_that_are_incomplete_or_contradict_each_other(given, said):
    check_coordinator(None, None, None, None)
    check_coordinator("auto", None, None, None)
    check_coordinator(None, "10.0.0.1:8476", 2, 1)
    with pytest.raises(BadInput, match=said):
        check_coordinator(*given)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            (f"--experiment={MICRO}", "--mode=scaling", "--local_processes=2"),
            "it goes with --mode=train or",
        ),
        (
            (f"--experiment={MICRO}", "--local_processes=2", "--process_id=1"),
            "starts the others itself",
        ),
        ((f"--experiment={MICRO}", "--distributed=auto"), "JAX finds no Cloud TPU slice"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(run_cli, tmp_path, args, said):
    done = run_cli(*args)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_slurm_is_detected_and_a_single_task_is_alone(monkeypatch):
    with pytest.raises(BadInput, match="JAX finds no"):
        detect_cluster(1, 1)
    step = {"JOB_ID": "7", "STEP_NODELIST": "node[1-2]", "NTASKS": "2", "PROCID": "1"}
    for name, value in (step | {"LOCALID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    config = detect_cluster(60, 30)
    assert (config.address, config.count, config.index) == (None, 2, 1)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert detect_cluster(60, 30) is None


def test_one_host_of_a_slice_does_not_start_alone(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    check_single_host()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    check_single_host()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b,c,d")
    with pytest.raises(BadInput, match="one of 4 hosts"):
        check_single_host()
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,1,1")
    check_single_host()
