"""The part ceilings: arithmetic, memory, transfers and dispatch of each device."""

from collections.abc import Iterator, Sequence

import jax

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card import Figure, measured
from jaxbench.cards.expected import FLOOR_SIDE
from jaxbench.cards.figures import ARITHMETICS
from jaxbench.errors import first_line
from jaxbench.hardware.targets.target import has_fp8
from jaxbench.microbench.interleaved import Calls, measure_in_turn
from jaxbench.microbench.matmul import Shape, find_best_shape, matmul_calls, operations
from jaxbench.microbench.memory_bandwidth import choose_array_bytes, measure_bandwidth
from jaxbench.microbench.transfer import measure_dispatch, measure_transfers
from jaxbench.qualification.session import QualifySession

_DIRECTIONS = {"host_to_device": "h2d_gb_per_s", "device_to_host": "d2h_gb_per_s"}
_TRANSFER_BYTES = 2**28
# The rounds of a short measurement (of fewer nobody can tell whether they are independent) and of a
# long one, what their warm-up may add, and where long begins.
SHORT_ROUNDS, _LONG_ROUNDS, _WARM_UP_ROUNDS, _LONG_S = 8, 11, 6, 45.0
# The arithmetic that a platform's devices are made for: bf16 if none stands here.
_MADE_FOR = {"cpu": "fp32", "gpu": "fp16"}
# Where a device has no units for an arithmetic, a call may take far longer.
_LONGEST_CALL_S, _SMALLEST_SIDE = 0.5, 512


def measure(session: QualifySession, time_s: float) -> None:
    """Measure arithmetic, memory, transfers and dispatch of each device.

    Simulated devices share one processor: only the first is measured.
    """
    devices = session.mesh.devices[: 1 if session.on_cpu else None]
    rounds = SHORT_ROUNDS if time_s < _LONG_S else _LONG_ROUNDS
    session.figures += _measure_matmuls(session, devices, 0.6 * time_s, rounds)
    each_s = 0.3 * time_s / len(devices)
    for device in devices:
        session.figures += _measure_memory(session, device, each_s, rounds)
        session.figures += _measure_transfers(session, device, rounds)
        latency_s = measure_dispatch(device, calls=200)
        session.figures.append(_figure("dispatch_latency_s", 1, latency_s, device))


def fit_window_s(time_s: float, turns: int, rounds: int, most_s: float) -> float:
    """Return how long a window may be for this many turns to fit into a time."""
    return min(most_s, max(0.005, time_s / (turns * (rounds + _WARM_UP_ROUNDS))))


def in_unit(unit: float, rate: Estimate) -> Estimate:
    """Return a rate and its interval in a unit."""
    return rate.map(lambda one: one / unit)


def _figure(name: str, unit: float, rate: Estimate, device: jax.Device) -> Figure:
    return measured(name, in_unit(unit, rate), device=device.id)


def _measure_matmuls(
    session: QualifySession, devices: Sequence[jax.Device], time_s: float, rounds: int
) -> Iterator[Figure]:
    """Yield the rate of each arithmetic on each device.

    The best shape is searched on the first device, in the arithmetic that it is made for; the
    others have this shape. To search it for each would take minutes, most of them to compile.
    """
    first = devices[0]
    searched = _MADE_FOR.get(first.platform, "bf16")
    arithmetics = ("fp32", "bf16") if session.on_cpu else ARITHMETICS
    window_s = fit_window_s(0.6 * time_s, len(arithmetics) * len(devices), rounds, 0.2)
    best, tried = find_best_shape(first, searched, 0.4 * time_s, session.show)
    sides = " x ".join(map(str, best))
    text, side = f"m x k x n is {sides}, the best of {len(tried)} shapes", max(map(min, tried))
    if not session.on_cpu and side < FLOOR_SIDE:
        text += f"; no floor applies, because none had sides of {FLOOR_SIDE:,} or more"
    session.note("matrix products", "ok", text)
    for device in devices:
        yield measured("matmul_side", side, device=device.id)
        turns: dict[str, tuple[Calls, Shape]] = {}
        for arithmetic in arithmetics:
            if arithmetic == "tf32" and device.platform != "gpu":
                continue
            if arithmetic == "fp8" and not has_fp8(device):
                continue
            session.show(f"matmul {arithmetic} on device {device.id}, compiling")
            try:
                calls, shape = turns[arithmetic] = _calls(device, arithmetic, best, window_s)
                if shape != best:
                    smaller = " x ".join(map(str, shape))
                    session.note(f"matrix products in {arithmetic}", "ok", smaller)
            except jax.errors.JaxRuntimeError as error:
                name = f"matrix products in {arithmetic}, device {device.id}"
                session.note(name, "warning", f"not measured: {first_line(error)}")
        measure_in_turn([calls for calls, _ in turns.values()], rounds, session.show)
        for arithmetic, (calls, shape) in turns.items():
            rate = calls.per_s(operations(shape))
            yield _figure(f"matmul_{arithmetic}_tflops", 1e12, rate, device)


def _calls(
    device: jax.Device, arithmetic: str, shape: Shape, window_s: float
) -> tuple[Calls, Shape]:
    """Return the calls of this shape, or of a smaller one if a call takes too long."""
    while True:
        calls = matmul_calls(device, arithmetic, shape, window_s)
        if calls.time_calls(1) <= _LONGEST_CALL_S or min(shape) <= _SMALLEST_SIDE:
            return calls, shape
        m, k, n = shape
        shape = m // 2, k // 2, n // 2


def _measure_memory(
    session: QualifySession, device: jax.Device, time_s: float, rounds: int
) -> Iterator[Figure]:
    window_s = fit_window_s(time_s, 3, rounds, 0.2)
    size = choose_array_bytes(device)
    rates = measure_bandwidth(device, size, rounds=rounds, window_s=window_s, show=session.show)
    session.note("memory", "ok", f"arrays of {size / 2**20:g} MiB each")
    for operation, bytes_per_s in rates.items():
        yield _figure(f"{operation}_gb_per_s", 1e9, bytes_per_s, device)


def _measure_transfers(
    session: QualifySession, device: jax.Device, rounds: int
) -> Iterator[Figure]:
    """Yield the rate of each direction, from or to the faster kind of host memory."""
    rates = measure_transfers(device, num_bytes=_TRANSFER_BYTES, rounds=rounds, show=session.show)
    for direction, name in _DIRECTIONS.items():
        if of_direction := [key for key in rates if key[0] == direction]:
            best = max(of_direction, key=rates.__getitem__)
            memory = f"{best[1].replace('_', ' ')} memory"
            session.note(direction.replace("_", " "), "ok", memory)
            yield _figure(name, 1e9, rates[best], device)
