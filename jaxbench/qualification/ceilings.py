"""The parts ceilings and collectives: the micro-benchmarks, in the time that there is."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import jax

from jaxbench.analysis.scaling_model import Interval
from jaxbench.cards.card import Figure, measured
from jaxbench.cards.figures import ARITHMETICS
from jaxbench.hardware.peaks import find_peak
from jaxbench.microbench.collectives import OPERATIONS, measure_collectives, measure_pairs
from jaxbench.microbench.dispatch import measure_dispatch
from jaxbench.microbench.interleaved import measure_in_turn
from jaxbench.microbench.matmul import MatmulResult, matmul_calls, measure_matmul, operations
from jaxbench.microbench.memory import memory_bytes
from jaxbench.microbench.memory_bandwidth import measure_bandwidth
from jaxbench.microbench.transfer import measure_transfers, sizes_up_to
from jaxbench.qualification.bench import Bench

_DIRECTIONS = {"host_to_device": "h2d_gb_per_s", "device_to_host": "d2h_gb_per_s"}
_LARGEST_TRANSFER_BYTES, _LARGEST_COLLECTIVE_BYTES, _ON_CPU_BYTES = 2**28, 2**28, 2**20
# Each pair of devices is a program of its own. With more devices only neighbours and the first one.
_MOST_IN_ALL_PAIRS = 8
# The rounds of a short and of a long measurement, what their warm-up may add, and where long
# begins.
_SHORT_ROUNDS, _LONG_ROUNDS, _WARM_UP_ROUNDS, _LONG_S = 6, 11, 6, 45.0
# Shapes of which each arithmetic's best are measured.
_FINALISTS = 3


def measure_ceilings(bench: Bench, time_s: float) -> None:
    """Measure arithmetic, memory, transfers and dispatch of each device.

    Simulated devices share one processor: only the first is measured.
    """
    devices = bench.mesh.local_devices[: 1 if bench.on_cpu else None]
    rounds = _SHORT_ROUNDS if time_s < _LONG_S else _LONG_ROUNDS
    bench.figures += _measure_matmuls(bench, devices, 0.6 * time_s, rounds)
    each_s = 0.3 * time_s / len(devices)
    for device in devices:
        bench.show(f"memory and transfers of device {device.id}")
        bench.figures += _measure_memory(bench, device, each_s, rounds)
        bench.figures += _measure_transfers(device, rounds)
        latency = measure_dispatch(device, calls=200, rounds=_SHORT_ROUNDS, window_s=0.02)
        value, *ends = latency.latency_s
        bench.figures.append(measured("dispatch_latency_s", value, (*ends,), device=device.id))


def _window_s(time_s: float, turns: int, rounds: int, most_s: float) -> float:
    """Return how long a window may be for this many turns to fit into a time."""
    return min(most_s, max(0.005, time_s / (turns * (rounds + _WARM_UP_ROUNDS))))


def _in(unit: float, found: Interval) -> tuple[float, tuple[float, float]]:
    value, low, high = (one / unit for one in found)
    return value, (low, high)


def _measure_matmuls(
    bench: Bench, devices: Sequence[jax.Device], time_s: float, rounds: int
) -> Iterator[Figure]:
    """Yield the best rate of each arithmetic; the first device says of which shape."""
    first, *others = devices
    arithmetics = ("fp32", "bf16") if bench.on_cpu else ARITHMETICS
    bench.show(f"matrix products on device {first.id}")
    window_s = _window_s(time_s / 2, _FINALISTS * len(arithmetics), rounds, 0.2)
    search_s = max(1.0, 0.3 * time_s / len(arithmetics))
    results = measure_matmul(
        first, arithmetics, rounds=rounds, window_s=window_s, search_s=search_s
    )
    for result in results:
        if result.best is None:
            bench.note(f"matmul {result.arithmetic}", "ok", f"not measured: {result.reason}")
            continue
        yield _matmul_figure(result.arithmetic, first, result.best.operations_per_s)
    known = [result for result in results if result.best]
    for device in others:
        bench.show(f"matrix products on device {device.id}")
        yield from _measure_same(known, device, rounds, window_s)


def _measure_same(
    known: Sequence[MatmulResult], device: jax.Device, rounds: int, window_s: float
) -> Iterator[Figure]:
    """Yield the rates of another device, each of the shape that was best on the first."""
    turns = {
        result: matmul_calls(device, result.arithmetic, result.best.shape, window_s)
        for result in known
    }
    measure_in_turn([*turns.values()], rounds)
    for result, calls in turns.items():
        rate = calls.per_s(operations(result.best.shape))
        yield _matmul_figure(result.arithmetic, device, rate)


def _matmul_figure(arithmetic: str, device: jax.Device, rate: Interval) -> Figure:
    # "highest": fp32 is IEEE's here, not what a network's fp32 is multiplied in.
    peak = find_peak(device.device_kind, arithmetic, "highest")
    return measured(
        f"matmul_{arithmetic}_tflops",
        *_in(1e12, rate),
        device=device.id,
        nominal=peak and peak.flops_per_s / 1e12,
    )


def _measure_memory(
    bench: Bench, device: jax.Device, time_s: float, rounds: int
) -> Iterator[Figure]:
    alone = dataclasses.replace(bench.mesh, devices=(device,))
    window_s = _window_s(time_s, 3, rounds, 0.2)
    peak = find_peak(device.device_kind, "bf16")
    nominal = peak and peak.bytes_per_s and peak.bytes_per_s / 1e9
    for rate in measure_bandwidth(alone, rounds=rounds, window_s=window_s):
        name = f"{rate.operation}_gb_per_s"
        yield measured(name, *_in(1e9, rate.bytes_per_s), device=device.id, nominal=nominal)


def _measure_transfers(device: jax.Device, rounds: int) -> Iterator[Figure]:
    """Yield the fastest transfer of each direction: of the largest size mostly."""
    found = measure_transfers(device, most_bytes=_LARGEST_TRANSFER_BYTES, rounds=rounds)
    for direction, name in _DIRECTIONS.items():
        rates = [rate.bytes_per_s for rate in found if rate.direction == direction]
        if rates:
            yield measured(name, *_in(1e9, max(rates)), device=device.id)


def measure_links(bench: Bench, time_s: float) -> None:
    """Measure collectives over all devices, and exchanges between two."""
    mesh = bench.mesh
    limit_bytes = _ON_CPU_BYTES if bench.on_cpu else _LARGEST_COLLECTIVE_BYTES
    most_bytes = min(limit_bytes, memory_bytes(mesh.local_devices[0]) // 32)
    bench.show(f"collectives over {mesh.num_devices} devices")
    # Half of the time goes into compiling.
    turns = len(sizes_up_to(most_bytes)) * len(OPERATIONS)
    how = {"rounds": _SHORT_ROUNDS}
    window_s = _window_s(0.3 * time_s, turns, _SHORT_ROUNDS, 0.1)
    for rate in measure_collectives(mesh, most_bytes=most_bytes, window_s=window_s, **how):
        of = {"collective": rate.operation, "bytes": rate.num_bytes}
        bench.figures += [
            measured("algorithm_gb_per_s", *_in(1e9, rate.algorithm_bytes_per_s), **of),
            measured("bus_gb_per_s", *_in(1e9, rate.bus_bytes_per_s), **of),
        ]
    pairs = _pairs(mesh.num_devices)
    bench.show(f"exchanges between {len(pairs)} pairs of devices")
    window_s = _window_s(0.2 * time_s, len(pairs), _SHORT_ROUNDS, 0.05)
    num_bytes = min(2**26, most_bytes)
    for rate in measure_pairs(mesh, pairs, num_bytes=num_bytes, window_s=window_s, **how):
        # Both directions at once, each at this rate.
        ends = [mesh.devices[place].id for place in rate.pair]
        bench.figures += [
            measured("pair_gb_per_s", *_in(1e9, rate.bytes_per_s), source=source, target=target)
            for source, target in (ends, ends[::-1])
        ]


def _pairs(num_devices: int) -> list[tuple[int, int]]:
    """Return the pairs of devices that are measured."""
    pairs = [*itertools.combinations(range(num_devices), 2)]
    if num_devices <= _MOST_IN_ALL_PAIRS:
        return pairs
    return [(a, b) for a, b in pairs if a == 0 or b == a + 1]
