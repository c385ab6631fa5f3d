"""Processes that wait for one another."""

import os
import threading

from jaxbench.cli import registry
from jaxbench.clock import Clock
from jaxbench.modes.train import train_and_evaluate
from jaxbench.parallel import processes
from jaxbench.parallel.processes import barrier_before_first_step
from jaxbench.parallel.watch import Store
from jaxbench.records.writers.console import PlainConsole
from tests.conftest import MICRO, records, set_fields


def test_processes_that_compile_longer_are_waited_for(tmp_path, monkeypatch):
    """gloo's first collective fails where a process comes 30 s late."""
    places = []
    monkeypatch.setattr(processes, "barrier", places.append)
    clock = Clock()
    barrier_before_first_step(clock)
    assert places == [] and "barrier" not in clock.totals_s()
    monkeypatch.setattr(processes, "count", lambda: 2)
    barrier_before_first_step(clock)
    assert places == ["the first step"] and "barrier" in clock.totals_s()
    monkeypatch.undo()

    def note(clock):
        import_s.append(clock.totals_s())
        kinds.extend(record["kind"] for record in records(tmp_path / "run"))

    import_s, kinds = [], []
    monkeypatch.setattr("jaxbench.modes.train.barrier_before_first_step", note)
    config = registry.load(MICRO)
    set_fields(config, max_steps=1, num_devices=1)
    with open(os.devnull, "w") as quiet:
        train_and_evaluate(config, str(tmp_path / "run"), PlainConsole(quiet))
    assert kinds == ["compile", "compile"] and "train" not in import_s[0]


class Client:
    """One process's view of the keys that all have in common."""

    def __init__(self, keys):
        self.keys, self.fetched = keys, 0

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite or key not in self.keys
        self.keys[key] = value

    def key_value_dir_get(self, folder):
        found = [(key, value) for key, value in list(self.keys.items()) if key.startswith(folder)]
        self.fetched += len(found)
        return found


def test_what_a_barrier_costs_grows_with_the_processes_not_with_their_square():
    keys = {}
    clients = [Client(keys) for _ in range(64)]
    threads = [
        threading.Thread(target=processes._barrier, args=(Store(client, index, 64), "here"))
        for index, client in enumerate(clients)
    ]
    for thread in threads[1:]:
        thread.start()
    assert all(thread.is_alive() for thread in threads[1:])
    threads[0].start()
    for thread in threads:
        thread.join(60)
    assert [client.fetched for client in clients[1:]] == [1] * 63
