"""Transfers and dispatch: sizes, directions, the arithmetic of rates."""

import types

import jax
import numpy as np

from jaxbench.microbench import transfer
from jaxbench.microbench.dispatch import measure_dispatch


def test_sizes_are_powers_of_four():
    assert transfer.sizes_up_to(1024) == [1024]
    assert transfer.sizes_up_to(4095) == [1024]
    assert transfer.sizes_up_to(2**16 + 1) == [2**10, 2**12, 2**14, 2**16]


def test_transfers_end_in_the_memory_that_they_name():
    device = jax.devices()[2]
    ends = []
    for direction, memory, start in transfer._transfers(device, 4096):
        found = start()
        assert found.nbytes == 4096 and np.all(np.asarray(found) == 1)
        on_host = isinstance(found, np.ndarray)
        kind = "pageable" if on_host else found.sharding.memory_kind
        assert on_host or found.devices() == {device}
        ends.append((direction, memory, kind))
    assert ends == [
        ("host_to_device", "pageable", "device"),
        ("device_to_host", "pageable", "pageable"),
        ("host_to_device", "pinned_host", "device"),
        ("device_to_host", "pinned_host", "pinned_host"),
    ]


def test_rates_are_sizes_over_times(monkeypatch):
    """On CPU there are none."""
    assert transfer.measure_transfers(jax.devices()[0]) == {}

    def transfers(device, size):
        yield "host_to_device", "pageable", lambda: np.ones(size)

    monkeypatch.setattr(transfer, "_transfers", transfers)
    monkeypatch.setattr(transfer.Stopwatch, "elapsed_s", lambda _: 0.5)
    accelerator = types.SimpleNamespace(platform="gpu")
    found = transfer.measure_transfers(accelerator, most_bytes=4096, rounds=5)
    assert [num_bytes for *_, num_bytes in found] == [1024, 4096]
    # Each takes half a second, by the test's clock.
    assert found["host_to_device", "pageable", 4096] == (8192.0,) * 3


def test_dispatch_is_timed_both_waited_for_and_queued():
    latency_s, asynchronous_s = measure_dispatch(
        jax.devices()[0], calls=40, rounds=3, window_s=0.001
    )
    assert 0 < latency_s[1] <= latency_s[0] <= latency_s[2]
    assert asynchronous_s[0] > 0
