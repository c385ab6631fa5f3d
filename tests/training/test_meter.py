"""Steps that are queued on the devices: how many, in training, evaluation and measurements."""

import types

import pytest

import jaxbench
from jaxbench.training.run import DispatchLimiter, MetricsQueue
from tests.conftest import MICRO


class Queued:
    """The metrics of a step, computed only when somebody waits for it or for a later one."""

    def __init__(self, before, platform, num_devices):
        self._before = before
        self._devices = [types.SimpleNamespace(platform=platform)] * num_devices
        self._done = False

    def devices(self):
        return self._devices

    def copy_to_host_async(self):
        pass

    def is_ready(self):
        return self._done

    def block_until_ready(self):
        for one in (*self._before, self):
            one._done = True


@pytest.mark.parametrize(("platform", "num_devices", "most"), [("cpu", 2, 4), ("gpu", 2, 16)])
def test_few_calls_are_queued_on_simulated_devices(platform, num_devices, most):
    """Else they wait for one another until XLA ends the process."""
    queue, pushed, queued = MetricsQueue(), [], []
    queue._last_wait_s = 0.0  # steps are quick
    for _ in range(50):
        pushed.append(Queued([*pushed], platform, num_devices))
        queue.push(pushed[-1])
        queued.append(sum(not one.is_ready() for one in pushed))
    assert max(queued) == most
    list(queue.drain())
    assert all(one.is_ready() for one in pushed)


def test_training_and_evaluation_keep_the_limit(tmp_path, monkeypatch):
    added, genuine = [], DispatchLimiter.add

    def add(self, result):
        genuine(self, result)
        added.append(len(self._results))

    monkeypatch.setattr(DispatchLimiter, "add", add)
    run = jaxbench.train(MICRO, workdir=tmp_path / "run", epochs=1, quiet=True, telemetry_s=0)
    evaluations = added[run.summary["steps"] :]
    assert len(evaluations) > 1 and max(added) == 4
