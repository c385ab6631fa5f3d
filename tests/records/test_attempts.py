"""What a run ran on, from its first process to its last."""

import pytest

from jaxbench.analysis.pricing import Price
from jaxbench.clock import Clock
from jaxbench.hardware.telemetry.sampler import Telemetry
from jaxbench.records.attempts import changes, describe_attempt, describe_changes
from jaxbench.records.recorder import Recorder
from jaxbench.schema import Summary

PRICE = {"usd_per_hour": 3.0}


def environment(num_devices=4, jax="0.10", **more):
    return {"num_devices": num_devices, "device_kind": "X", "versions": {"jax": jax}, **more}


def entry(step, *args, price=None, **more):
    return {"step": step, **describe_attempt(environment(*args, **more), price, 64)}


def resumed(*entries, price=None):
    document = {"environment": environment(), "price": price, "batch_norm_examples": 64}
    return document | {"attempts": [{}, *entries]}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"environment": environment()}, ""),
        (resumed(entry(5)), ""),
        (resumed(entry(5, 2)), "num_devices 4, then 2"),
        (resumed(entry(5, 2), entry(9)), "num_devices 4, then 2, then 4"),
        (resumed(entry(5, 4, "0.12")), "jax 0.10, then 0.12"),
        (
            resumed(*(entry(n, versions={"jax": "0.10", "cuDNN": f"9.{n}.0"}) for n in (5, 8))),
            "cuDNN 9.5.0, then 9.8.0",
        ),
        (resumed(entry(5, variables={"XLA_FLAGS": "--x"})), "XLA_FLAGS none, then --x"),
        (resumed(entry(5, git={"commit": "a", "dirty": True})), "commit none, then a with changes"),
        (resumed(entry(5, python="3.11")), "python none, then 3.11"),
        (resumed(entry(5, price=PRICE)), "price none, then 3.0"),
        (resumed(entry(5) | {"batch_norm_examples": 32}), "batch_norm_examples 64, then 32"),
        # Nothing is left of what the first process did, or the second.
        (resumed(entry(0, 2)), ""),
        (resumed(entry(5, 2), entry(5)), ""),
        # In a folder of its own, run.json is of the last process; a third one is no first one.
        (
            {"environment": environment(), "attempts": [entry(0, 2), entry(5, 3), entry(9)]},
            "num_devices 2, then 3, then 4",
        ),
    ],
)
def test_what_changed_within_a_run_is_told(document, told):
    assert describe_changes(changes(document)) == told


def test_what_two_prices_make_is_unknown():
    recorder = Recorder(None, Telemetry(None, 0.0, Clock(), []), Price("a", "b", 1, 3.0, "c", "d"))

    def summarize(status, records):
        return Summary(status=status, wall_s=3600.0)

    recorder.finish("done", None, summarize)
    assert recorder.summary["usd"] == 3.0 and not recorder.summary["warnings"]
    recorder.changes = {"price": [None, 3.0]}
    recorder.finish("done", None, summarize)
    assert "usd" not in recorder.summary
    [warning] = recorder.summary["warnings"]
    assert warning == "usd_per_hour none, then 3.0: what it cost is unknown"
