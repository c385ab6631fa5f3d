"""Many processes: how they meet, and what they refuse."""

import os
import socket
import threading

import pytest

from jaxbench.cli import registry
from jaxbench.clock import Clock
from jaxbench.distributed import coordination
from jaxbench.distributed.coordination import (
    barrier_before_first_step,
    check_coordinator,
    check_single,
    coordinator_of_jax,
)
from jaxbench.errors import BadInput, Unreachable
from jaxbench.jobs.train import train_and_evaluate
from jaxbench.records.writers.console import PlainConsole
from tests.conftest import MICRO, records, set_fields

SMALL = f"--experiment={MICRO}"


def test_processes_that_compile_longer_are_waited_for(tmp_path, monkeypatch):
    """With gloo the first collective meets within 30 s, or fails."""
    places = []
    monkeypatch.setattr(coordination, "barrier", places.append)
    clock = Clock()
    barrier_before_first_step(clock)
    assert places == [] and "meet" not in clock.totals_s()
    monkeypatch.setattr(coordination, "count", lambda: 2)
    barrier_before_first_step(clock)
    assert places == ["the first step"] and "meet" in clock.totals_s()
    monkeypatch.undo()

    def meet(clock):
        import_s.append(clock.totals_s())
        kinds.extend(record["kind"] for record in records(tmp_path / "run"))

    import_s, kinds = [], []
    monkeypatch.setattr("jaxbench.training.loop.barrier_before_first_step", meet)
    config = registry.load(MICRO)
    set_fields(config, max_steps=1, num_devices=1)
    with open(os.devnull, "w") as quiet:
        train_and_evaluate(config, str(tmp_path / "run"), PlainConsole(quiet))
    assert kinds == ["compile", "compile"] and "train" not in import_s[0]


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
        crew = object.__new__(coordination._ProcessGroup)
        crew.index, crew.count, crew._store = index, 64, Store(keys)
        crews.append(crew)
    threads = [threading.Thread(target=crew.barrier, args=("here",)) for crew in crews]
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
    check_coordinator(None, None, None, None)
    check_coordinator("auto", None, None, None)
    check_coordinator(None, "10.0.0.1:8476", 2, 1)
    with pytest.raises(BadInput, match=told):
        check_coordinator(*given)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            (f"--experiment={MICRO}", "--mode=scaling", "--local_processes=2"),
            "it goes with --mode=train or",
        ),
        (
            (f"--experiment={MICRO}", "--local_processes=2", "--process_id=1"),
            "starts the others itself",
        ),
        ((SMALL, "--distributed=auto"), "JAX finds no Cloud TPU slice"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(run_cli, tmp_path, args, told):
    done = run_cli(*args)
    assert done.returncode == 2 and told in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_nobody_to_meet_is_told_in_bounded_time():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="cannot listen on port"):
            coordination._listening_address(address)
    with pytest.raises(Unreachable, match="no process 0 there within 0 s"):
        coordination._await_listener(address, 0)


def test_process_0_listens_where_it_was_told_to():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for own in ("localhost", "127.0.0.1"):
        assert coordination._listening_address(f"{own}:{port}") == f"{own}:{port}"
    # A name, and an address (for documentation) that this host does not have.
    for other in ("a.b.invalid", "203.0.113.7"):
        assert coordination._listening_address(f"{other}:{port}") == f"[::]:{port}"


def test_slurm_is_found_and_a_single_task_is_alone(monkeypatch):
    with pytest.raises(BadInput, match="JAX finds no"):
        coordinator_of_jax(1, 1)
    step = {"JOB_ID": "7", "STEP_NODELIST": "node[1-2]", "NTASKS": "2", "PROCID": "1"}
    for name, value in (step | {"LOCALID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    meeting = coordinator_of_jax(60, 30)
    assert (meeting.address, meeting.count, meeting.index) == (None, 2, 1)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert coordinator_of_jax(60, 30) is None


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
