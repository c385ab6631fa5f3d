"""Collectives: what they compute, their sizes, the arithmetic of their bandwidths."""

import jax
import numpy as np
import pytest

from jaxbench.analysis.scaling_model import bus_factor
from jaxbench.microbench import collectives
from jaxbench.microbench.collectives import Collective
from jaxbench.parallel.mesh import DataMesh
from jaxbench.xla.hlo import count_collectives


@pytest.fixture(params=["pmap", "shard_map"])
def mesh(request):
    return DataMesh(tuple(jax.devices()[:4]), request.param)


def _on_ones(mesh, operation, num_bytes, **how):
    collective = Collective(mesh, operation, num_bytes, window_s=0.01, **how)
    collective.start()
    assert not np.any(collective._arrays[0])
    ones = [np.ones_like(array) for array in collective._arrays]
    collective._arrays[:] = map(mesh.shard, ones)
    return collective


@pytest.mark.parametrize(
    ("operation", "opcode", "rows", "value", "sent"),
    [
        ("all_reduce", "all-reduce", (4, 32), 4.0, 128),
        ("all_gather", "all-gather", (4, 32), 1.0, 32),
        ("reduce_scatter", "reduce-scatter", (4, 8), 4.0, 128),
    ],
)
def test_a_collective_is_what_it_says(mesh, operation, opcode, rows, value, sent):
    """128 bytes are 32 elements; 2 more bytes are no element."""
    collective = _on_ones(mesh, operation, 130)
    np.testing.assert_array_equal(collective._queue(), np.full(rows, value))
    assert collective.num_bytes == 128
    hlo = collective._compiled.lower(*collective._arrays).compile().as_text()
    assert count_collectives(hlo) == {opcode: {"count": 1, "bytes": sent, "largest_bytes": sent}}


def test_an_exchange_is_between_two_devices(mesh):
    collective = _on_ones(mesh, "exchange", 16, pair=(1, 3))
    found_DxN = np.asarray(collective._queue())
    assert collective.num_bytes == 16
    np.testing.assert_array_equal(found_DxN[:, 0], [0, 1, 0, 1])


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8
    assert bus_factor("exchange", 8) == 1


def test_bandwidths_are_sizes_over_times(mesh, monkeypatch):
    """Each call takes two seconds."""

    def pretend(turns, rounds, show):
        for turn in turns:
            turn.warmup = type("WarmUp", (), {"calls_per_window": 3})
            turn.windows_s = [6.0] * rounds

    monkeypatch.setattr(collectives, "measure_in_turn", pretend)
    found = collectives.measure_collectives(mesh, most_bytes=5000, rounds=6)
    assert [(r.operation, r.num_bytes) for r in found] == [
        (operation, size) for size in (1024, 4096) for operation in collectives.OPERATIONS
    ]
    by_name = {(r.operation, r.num_bytes): r for r in found}
    largest = by_name["all_reduce", 4096]
    assert largest.algorithm_bytes_per_s() == (2048.0,) * 3
    assert largest.bus_bytes_per_s() == (1.5 * 2048,) * 3
    assert by_name["all_gather", 1024].bus_bytes_per_s()[0] == 0.75 * 512
    shown = []
    pairs = collectives.measure_pairs(mesh, num_bytes=64, rounds=6, show=shown.append)
    assert len(shown) == 6 and shown[-1] == "exchange between devices 2 and 3, compiling"
    assert [*pairs] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert {rate[0] for rate in pairs.values()} == {32.0}
    assert [*collectives.measure_pairs(mesh, [(2, 0)], num_bytes=64, rounds=6)] == [(2, 0)]
