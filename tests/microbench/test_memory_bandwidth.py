"""Memory bandwidth: what the operations compute, where they write, what is counted."""

import types

import jax
import numpy as np
import pytest

from jaxbench.hardware.system import last_level_cache_bytes
from jaxbench.hardware.targets.target import l2_bytes
from jaxbench.microbench import memory_bandwidth
from jaxbench.microbench.memory_bandwidth import Arrays, choose_array_bytes, measure_bandwidth
from jaxbench.parallel.mesh import DataMesh
from jaxbench.xla.hlo import instructions


@pytest.fixture
def mesh():
    return DataMesh(tuple(jax.devices()[:2]), "shard_map")


@pytest.mark.parametrize(("operation", "value"), [("copy", 2.0), ("scale", 6.0), ("triad", 3.5)])
def test_an_operation_reads_and_writes_its_arrays_once(mesh, operation, value):
    """Its result is in the memory of the array before it, by one instruction."""
    arrays = Arrays(mesh, array_bytes=400)
    compiled = arrays.compile(operation)
    hlo = compiled.lower(arrays._a, arrays._b, arrays._c).compile().as_text()
    program = [one for one in instructions(hlo) if one.computation == "ENTRY"]
    work = [one for one in program if one.opcode not in ("parameter", "bitcast")]
    assert len(work) == 1 and work[0].opcode in ("copy", "fusion"), work
    assert "input_output_alias={ {}: (0," in hlo
    np.testing.assert_array_equal(arrays.run(compiled), np.full((2, 100), value, np.float32))


def test_bytes_are_counted_as_stream_does(mesh, monkeypatch):
    """A call of one second: two arrays for copy and scale, three for triad, of all devices."""

    def pretend(turns, rounds, show):
        for turn in turns:
            turn.warmup = type("WarmUp", (), {"calls_per_window": 4})
            turn.windows_s = [4.0] * rounds

    monkeypatch.setattr(memory_bandwidth, "measure_in_turn", pretend)
    rates = measure_bandwidth(mesh, 400, rounds=6)
    assert {key: median for key, (median, _, _) in rates.items()} == {
        **{("copy", 1): 800, ("scale", 1): 800, ("triad", 1): 1200},
        **{("copy", 2): 1600, ("scale", 2): 1600, ("triad", 2): 2400},
    }


@pytest.mark.parametrize(
    ("platform", "memory_gib", "cache_mib", "array_mib"),
    [("gpu", 80, 50, 1024), ("gpu", 80, 500, 2000), ("gpu", 8, None, 512), ("cpu", 8, 32, 128)],
)
def test_arrays_are_large_beside_the_cache_and_fit(
    monkeypatch, platform, memory_gib, cache_mib, array_mib
):
    cache_bytes = cache_mib and cache_mib * 2**20
    monkeypatch.setattr(memory_bandwidth, "memory_bytes", lambda _: memory_gib * 2**30)
    monkeypatch.setattr(memory_bandwidth, "l2_bytes", lambda _: cache_bytes)
    monkeypatch.setattr(memory_bandwidth, "last_level_cache_bytes", lambda: cache_bytes)
    device = types.SimpleNamespace(platform=platform, device_kind="some")
    assert choose_array_bytes(device) == array_mib * 2**20


def test_the_sizes_of_caches_are_found(tmp_path):
    assert l2_bytes("NVIDIA H100 80GB HBM3") == 50 * 2**20
    assert l2_bytes("TPU v4") is None
    assert last_level_cache_bytes(tmp_path) is None
    for index, size in enumerate(("32K", "512K", "32768K")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert last_level_cache_bytes(tmp_path) == 32 * 2**20
