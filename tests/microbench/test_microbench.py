"""Collectives, matmuls, memory bandwidth, transfers, dispatch: what is computed and counted."""

import itertools
import types

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxbench.analysis.rate import Estimate
from jaxbench.hardware import system
from jaxbench.hardware.system import last_level_cache_bytes
from jaxbench.hardware.targets.target import l2_bytes
from jaxbench.microbench import collectives, matmul, memory_bandwidth, transfer
from jaxbench.microbench.collectives import Collective
from jaxbench.microbench.interleaved import (
    Interleaved,
    WarmUp,
    measure_in_turn,
    unsettled_warnings,
    warm_up,
)
from jaxbench.microbench.memory_bandwidth import choose_array_bytes, measure_bandwidth
from jaxbench.parallel.mesh import DataMesh
from jaxbench.xla.hlo import arrays, count_collectives, instructions


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


@pytest.fixture
def two_seconds_a_call(monkeypatch):
    """Has nothing run; each call takes two seconds."""

    def pretend(turns, rounds, show):
        for turn in turns:
            turn.warmup = WarmUp(calls_per_window=3, calls=6, settled=True)
            turn.windows_s = [6.0] * rounds

    for module in (collectives, memory_bandwidth):
        monkeypatch.setattr(module, "measure_in_turn", pretend)


def test_bandwidths_are_sizes_over_times(mesh, two_seconds_a_call):
    """With the factors of nccl-tests for four devices."""
    shown = []
    how = {"rounds": 6, "window_s": 0.1, "show": shown.append}
    found = collectives.measure_collectives(mesh, most_bytes=5000, **how)
    assert [(one.operation, one.num_bytes) for one in found] == [
        (operation, size) for size in (1024, 4096) for operation in collectives.OPERATIONS
    ]
    by_name = {(one.operation, one.num_bytes): one for one in found}
    assert by_name["all_reduce", 4096].bus_bytes_per_s().span == (1.5 * 2048,) * 3
    assert by_name["all_gather", 1024].bus_bytes_per_s()[0] == 0.75 * 512
    assert by_name["reduce_scatter", 1024].bus_bytes_per_s()[0] == 0.75 * 512
    pairs = collectives.measure_pairs(mesh, [(0, 1), (2, 3)], num_bytes=64, **how)
    assert shown[-1] == "exchange between devices 2 and 3, compiling"
    assert {pair: rate[0] for pair, rate in pairs.items()} == {(0, 1): 32.0, (2, 3): 32.0}


def test_a_warm_up_ends_when_windows_agree_or_gives_up():
    def warm(seconds_a_call):
        return warm_up(lambda calls: calls * next(seconds_a_call), window_s=1.0, rounds=11)

    steady = warm(itertools.chain([1.0, 0.5, 0.1, 0.1, 0.101], itertools.repeat(0.1)))
    assert steady.settled and steady.calls_per_window < steady.calls
    assert not warm(itertools.cycle([0.1, 0.11])).settled


def test_stages_that_did_not_stabilise_are_told():
    found = {"a": WarmUp(2, 8, settled=True), "b": WarmUp(2, 27, settled=False), "c": None}
    [warning] = unsettled_warnings(found)
    assert "did not stabilise during warm-up" in warning and warning.endswith(": b (27)")
    assert unsettled_warnings({"a": found["a"]}) == []


def test_stages_take_turns_forwards_then_backwards():
    """What is warm is not warmed up again."""
    taken = []

    class Turn(Interleaved):
        def run(self, calls):
            taken.append(self.name)

    cold, *warm = turns = [Turn(name, window_s=0.0) for name in "abc"]
    for turn in warm:
        turn.warmup = WarmUp(1, 1, settled=True)
    measure_in_turn(turns, 3, end_round=lambda number: taken.append(str(number)))
    assert "".join(taken) == cold.name * cold.warmup.calls + "abc1cba2abc3"
    assert [len(turn.windows_s) for turn in turns] == [3, 3, 3]


_SHAPE = (64, 32, 128)


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16", "fp16", "fp8", "int8"])
def test_no_matmul_of_a_call_is_optimised_away(arithmetic):
    """Each product is whole, and none has constants for operands."""
    calls = matmul.matmul_calls(jax.devices()[0], arithmetic, _SHAPE, window_s=0.01)
    hlo = calls._call.func.lower(*calls._call.args).compile().as_text()
    program = [*instructions(hlo)]
    dots = [one for one in program if one.opcode == "dot"]
    m, k, n = _SHAPE
    sizes = [array.size for dot in dots for array in arrays(dot.type)]
    assert sorted(sizes) == sorted([m * n, m * k] * (matmul.CHAIN // 2))
    assert not [one for one in program if one.opcode == "constant" and arrays(one.type)[0].size > 1]


@pytest.mark.device
def test_a_chain_multiplies_each_product_by_the_next_matrix():
    x, w, v = (np.random.default_rng(0).normal(size=s) for s in ((8, 4), (4, 16), (16, 4)))
    expected = x
    for number in range(matmul.CHAIN):
        expected = expected @ (v if number % 2 else w)
    found = matmul.chain("fp32", *map(np.float32, (x, w, v)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.device
@pytest.mark.parametrize(
    ("arithmetic", "dtype", "most"), [("int8", np.int8, 8), ("fp8", ml_dtypes.float8_e4m3fn, 2)]
)
def test_a_narrow_product_needs_the_one_before_it(arithmetic, dtype, most):
    """The first product's first element is in the second product's left side, and so on."""
    rng, sizes = np.random.default_rng(0), ((8, 4), (4, 16), (16, 4), (8, 16))
    x, w, v, start = (rng.integers(-most, most, size).astype(dtype) for size in sizes)
    left, other = x.astype(np.int32), start.astype(np.int32)
    for number in range(matmul.CHAIN):
        product = left @ (v if number % 2 else w).astype(np.int32)
        other[0, 0] = product[0, 0].astype(dtype).astype(np.int32)
        left, other = other, left
    found = matmul.chain(arithmetic, x, w, v, start)
    np.testing.assert_array_equal(np.asarray(found, np.int32), product)


@pytest.fixture
def small_shapes(monkeypatch):
    """Has the search try one side only, 16."""
    monkeypatch.setattr(matmul, "_SMALLEST_ON_CPU", 16)
    monkeypatch.setattr(matmul, "_LARGEST", 16)


def test_what_the_backend_does_not_run_is_an_error_unless_another_shape_ran(
    monkeypatch, small_shapes
):
    make, runs = matmul.matmul_calls, {(16, 16, 16)}

    def fail(*args, window_s):
        if args[2] not in runs:
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no such type")
        return make(*args, window_s)

    monkeypatch.setattr(matmul, "matmul_calls", fail)
    found = matmul.find_best_shape(jax.devices()[0], "fp16", 1000.0, print)
    assert found == ((16, 16, 16), [(16, 16, 16)])
    runs.clear()
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED"):
        matmul.find_best_shape(jax.devices()[0], "fp16", 1000.0, print)


def test_an_accelerator_is_asked_for_its_largest_product_first(monkeypatch):
    """The search may end after any shape; 8192 is the largest square whose arrays fit."""
    tried = []

    def call(_, arithmetic, shape, window_s):
        tried.append(shape)
        return FakeCalls(1.0)

    monkeypatch.setattr(matmul, "matmul_calls", call)
    monkeypatch.setattr(matmul, "memory_bytes", lambda device: 60e9)
    gpu = types.SimpleNamespace(platform="gpu")
    assert matmul.find_best_shape(gpu, "fp16", 0.0, print) == ((8192,) * 3, [(8192,) * 3])
    found = matmul.find_best_shape(gpu, "fp16", 1000.0, print)
    assert len(found[1]) == len({*tried}) == 10 and tried[-1] == (4096, 1024, 1024)


def test_the_fastest_shape_is_found(monkeypatch):
    """The last one does most, and takes too long for a larger one."""
    calls_s = {1: 4.0, 2: 0.01, 4: 1.0, 8: 1e9}
    monkeypatch.setattr(matmul, "_shapes", lambda *_: [(side,) * 3 for side in calls_s])
    calls = lambda *how, window_s: FakeCalls(calls_s[how[2][0]])  # noqa: E731
    monkeypatch.setattr(matmul, "matmul_calls", calls)
    monkeypatch.setattr(matmul, "_LONG_CALL_S", 10.0)
    found = matmul.find_best_shape(jax.devices()[0], "fp32", 1000.0, print)
    assert (found[0], len(found[1])) == ((2, 2, 2), 4)
    monkeypatch.setattr(matmul, "_LONG_CALL_S", 2.0)
    found = matmul.find_best_shape(jax.devices()[0], "fp32", 1000.0, print)
    assert found == ((1, 1, 1), [(1, 1, 1)])


def test_the_search_stops_at_the_memorys_end(monkeypatch, small_shapes):
    """16^3 takes more than this memory's share, but something is always measured."""
    monkeypatch.setattr(matmul, "memory_bytes", lambda device: 1)
    found = matmul.find_best_shape(jax.devices()[0], "fp32", 1000.0, print)
    assert found == ((16, 16, 16), [(16, 16, 16)])


class FakeCalls:
    def __init__(self, call_s):
        self.time_calls = lambda _: call_s


@pytest.mark.parametrize(("operation", "value"), [("copy", 2.0), ("scale", 6.0), ("triad", 3.5)])
@pytest.mark.device
def test_an_operation_reads_and_writes_its_arrays_once(operation, value):
    """Its result is in the memory of the array before it, by one instruction."""
    arrays_N = [jax.numpy.full(100, one) for one in (1.0, 2.0, 0.5)]
    compiled = memory_bandwidth.compile_operation(operation).lower(*arrays_N).compile()
    program = [one for one in instructions(compiled.as_text()) if one.computation == "ENTRY"]
    work = [one for one in program if one.opcode not in ("parameter", "bitcast")]
    assert len(work) == 1 and work[0].opcode in ("copy", "fusion"), work
    assert "input_output_alias={ {}: (0," in compiled.as_text()
    np.testing.assert_array_equal(compiled(*arrays_N), np.full(100, value, np.float32))


def test_bytes_are_counted_as_stream_does(two_seconds_a_call):
    """Two arrays for copy and scale, three for triad."""
    how = {"rounds": 6, "window_s": 0.1, "show": print}
    rates = measure_bandwidth(jax.devices()[1], 400, **how)
    medians = {key: rate.value for key, rate in rates.items()}
    assert medians == {"copy": 400, "scale": 400, "triad": 600}


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


def test_the_sizes_of_caches_are_found(tmp_path, monkeypatch):
    assert l2_bytes("NVIDIA H100 80GB HBM3") == 50 * 2**20
    assert l2_bytes("NVIDIA H200") == 60 * 2**20  # as CUDA reports it
    assert l2_bytes("TPU v4") is None
    monkeypatch.setattr(system, "_ROOT", tmp_path)
    assert last_level_cache_bytes() is None
    for index, size in enumerate(("32K", "512K", "32768K")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert last_level_cache_bytes() == 32 * 2**20


@pytest.mark.device
def test_transfers_end_in_the_memory_that_they_name():
    device = jax.devices()[-1]
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
    how = {"num_bytes": 4096, "rounds": 6, "show": print}
    assert transfer.measure_transfers(jax.devices()[0], **how) == {}
    monkeypatch.setattr(transfer.Stopwatch, "elapsed_s", lambda _: 0.5)
    accelerator = types.SimpleNamespace(platform="gpu")
    arrays = [("host_to_device", "pageable", lambda: np.ones(1024))]
    monkeypatch.setattr(transfer, "_transfers", lambda *_: arrays)
    # Each takes half a second, by the test's clock.
    rates = transfer.measure_transfers(accelerator, **how)
    assert rates == {("host_to_device", "pageable"): Estimate(8192.0, 8192.0, 8192.0, 6)}


@pytest.mark.device
def test_dispatch_is_timed():
    latency_s, low_s, high_s = transfer.measure_dispatch(jax.devices()[0], calls=40).span
    assert 0 < low_s <= latency_s <= high_s < 0.1
