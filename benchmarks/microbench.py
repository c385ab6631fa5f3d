"""The ceilings of this machine; whether they repeat; on a CPU, beside NumPy and STREAM.

    python benchmarks/microbench.py [--rounds=11] [--window_s=0.2]
    python benchmarks/microbench.py --repeat=10
    python benchmarks/microbench.py --against_numpy

Without more flags it prints every ceiling with its 95 % interval. --repeat measures every ceiling N
times, with the windows of all repetitions in turn, and says whether the intervals overlap. The exit
code is 1 if two do not. --against_numpy compares, on a CPU and in turn, the best fp32 matmul with
NumPy's of the same shape, and triad with a C loop as STREAM has it, compiled with
`cc -O3 -march=native -fopenmp` where there is a compiler. Each uses all cores of the process; on a
machine that others use, one core disturbs less: `taskset -c 0 python benchmarks/microbench.py ...`.
"""

import ctypes
import dataclasses
import functools
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags

from jaxbench.cli import entry_point
from jaxbench.cli.importing import importing
from jaxbench.errors import BadInput

_ROUNDS = flags.DEFINE_integer("rounds", 11, "Windows of each.", lower_bound=6)
_WINDOW_S = flags.DEFINE_float("window_s", 0.2, "How long a window should take.", lower_bound=0.001)
_SEARCH_S = flags.DEFINE_float("search_s", 20.0, "For the search of the best matmul.")
_LARGEST = flags.DEFINE_integer("largest", 16384, "Side of the largest matrix.", lower_bound=16)
_ARRAY_MIB = flags.DEFINE_integer(
    "array_mib", None, "Of each array of copy and triad; default: large beside the cache."
)
_REPEAT = flags.DEFINE_integer("repeat", None, "Repetitions that are compared.", lower_bound=2)
_AGAINST_NUMPY = flags.DEFINE_bool("against_numpy", False, "Compare with NumPy and STREAM's triad.")
_UNITS = {"op/s": (1e9, "Gop/s"), "B/s": (1e9, "GB/s"), "s": (1e-6, "us")}
# As in STREAM each thread writes its own elements first, so that they are in memory near it.
_TRIAD = """
void fill(float *a, float *b, float *c, long n) {
#pragma omp parallel for
    for (long i = 0; i < n; i++) { a[i] = 1; b[i] = 2; c[i] = 0.5f; }
}
void triad(float *restrict a, float *restrict b, float *restrict c, long n) {
#pragma omp parallel for
    for (long i = 0; i < n; i++) a[i] = b[i] + 3 * c[i];
}
"""


def main(arguments: list[str]) -> int:
    """Do what the flags say; return the exit code."""
    if arguments:
        raise BadInput(f"{arguments[0]!r}: flags begin with --")
    if _REPEAT.value and _AGAINST_NUMPY.value:
        raise BadInput("--repeat with --against_numpy: give one of them")
    with importing():
        from jaxbench.config import Experiment
        from jaxbench.hardware.backend_flags import prepare_backend
        from jaxbench.hardware.system import available_cores
        from jaxbench.parallel.mesh import create_mesh
    prepare_backend()
    mesh = create_mesh(Experiment(parallelism="shard_map"))
    device, load = mesh.devices[0], os.getloadavg()[0]
    print(
        f"{mesh.num_devices} x {device.device_kind}, {available_cores()} cores, load {load:.1f} "
        "before it began",
        flush=True,
    )
    if _REPEAT.value:
        return _repeat(mesh)
    if _AGAINST_NUMPY.value:
        if device.platform != "cpu":
            raise BadInput(f"--against_numpy: is for a CPU, this is {device.device_kind}")
        return _against_numpy(mesh)
    for name, unit, found in _ceilings(mesh):
        _print(name, unit, found)
    return 0


def _print(name: str, unit: str, found: tuple[float, float, float]) -> None:
    scale, shown = _UNITS[unit]
    value, low, high = (one / scale for one in found)
    print(f"{name:<48} {value:>10,.2f} {shown:<7} ({low:,.2f} to {high:,.2f})", flush=True)


def _ceilings(mesh) -> Iterator[tuple[str, str, tuple[float, float, float]]]:
    """Yield the name, the unit and the interval of every ceiling."""
    from jaxbench.microbench.collectives import measure_collectives, measure_pairs
    from jaxbench.microbench.dispatch import measure_dispatch
    from jaxbench.microbench.matmul import ARITHMETICS, measure_matmul
    from jaxbench.microbench.memory_bandwidth import measure_bandwidth
    from jaxbench.microbench.transfer import measure_transfers

    device, how = mesh.local_devices[0], _how()
    search = {"search_s": _SEARCH_S.value, "largest": _LARGEST.value}
    for arithmetic in ARITHMETICS:
        result = measure_matmul(device, arithmetic, **how, **search)
        if not result.rates:
            print(f"matmul {arithmetic}: {result.reason}")
            continue
        shape, rate = next(iter(result.rates.items()))
        yield f"matmul {arithmetic} {'x'.join(map(str, shape))}", "op/s", rate
    size = _array_bytes(device)
    for (operation, count), rate in measure_bandwidth(mesh, size, **how).items():
        yield f"{operation} {size >> 20} MiB, {count} device(s)", "B/s", rate
    rates = measure_transfers(device, rounds=_ROUNDS.value)
    for (direction, memory, num_bytes), rate in rates.items():
        yield f"{direction} {memory} {num_bytes >> 10} KiB", "B/s", rate
    latency_s, asynchronous_s = measure_dispatch(device, **how)
    yield "dispatch, waited for", "s", latency_s
    yield "dispatch, queued", "s", asynchronous_s
    if mesh.num_devices > 1:
        most_bytes = 2**20 if device.platform == "cpu" else 2**28
        for one in measure_collectives(mesh, most_bytes=most_bytes, **how):
            yield f"{one.operation} {one.num_bytes >> 10} KiB, bus", "B/s", one.bus_bytes_per_s()
        for pair, rate in measure_pairs(mesh, num_bytes=most_bytes // 4, **how).items():
            yield f"exchange of devices {pair}", "B/s", rate


def _how() -> dict[str, float]:
    return {"rounds": _ROUNDS.value, "window_s": _WINDOW_S.value}


def _array_bytes(device) -> int:
    from jaxbench.microbench.memory_bandwidth import choose_array_bytes

    return _ARRAY_MIB.value << 20 if _ARRAY_MIB.value else choose_array_bytes(device)


def _jax_turns(mesh):
    """Return the best fp32 shape, and {name: (calls, amount of a call, unit)} of JAX."""
    from jaxbench.microbench.matmul import matmul_calls, measure_matmul, operations
    from jaxbench.microbench.memory_bandwidth import Arrays

    device, window_s = mesh.local_devices[0], _WINDOW_S.value
    search = {"search_s": _SEARCH_S.value, "largest": _LARGEST.value}
    result = measure_matmul(device, "fp32", **_how(), **search)
    if not result.rates:
        raise BadInput(f"matmul fp32: {result.reason}")
    shape, size = next(iter(result.rates)), _array_bytes(device)
    arrays = Arrays(dataclasses.replace(mesh, devices=(device,)), size)
    name = f"matmul fp32 {'x'.join(map(str, shape))}"
    return shape, {
        name: (matmul_calls(device, "fp32", shape, window_s), operations(shape), "op/s"),
        f"triad {size >> 20} MiB": (arrays.calls("triad", window_s), 3 * size, "B/s"),
    }


def _repeat(mesh) -> int:
    from jaxbench.analysis.statistics import disjoint_pairs, median_interval
    from jaxbench.microbench.interleaved import measure_in_turn

    repeat = _REPEAT.value
    _, turns = _jax_turns(mesh)
    measure_in_turn([calls for calls, *_ in turns.values()], _ROUNDS.value * repeat)
    num_apart = 0
    for name, (calls, amount, unit) in turns.items():
        rates = [amount * calls.warmup.calls_per_window / one_s for one_s in calls.windows_s]
        found = [median_interval(rates[number::repeat]) for number in range(repeat)]
        for number, interval in enumerate(found, 1):
            _print(f"{name}, repetition {number}", unit, interval)
        apart, pairs = len(disjoint_pairs(found)), math.comb(repeat, 2)
        print(f"{name}: {pairs - apart} of {pairs} pairs of intervals overlap")
        num_apart += apart
    return int(num_apart > 0)


def _against_numpy(mesh) -> int:
    from jaxbench.analysis.statistics import median_interval
    from jaxbench.microbench.interleaved import Interleaved, measure_in_turn

    class HostCalls(Interleaved):
        """Calls of a function that returns when its work is done."""

        def __init__(self, name: str, call: Callable[[], object]):
            super().__init__(name, _WINDOW_S.value)
            self._call = call

        def run(self, calls: int) -> None:
            for _ in range(calls):
                self._call()

    shape, turns = _jax_turns(mesh)
    others = {"NumPy": HostCalls("NumPy", _numpy_chain(shape))}
    with tempfile.TemporaryDirectory() as folder:
        triad = _c_triad(pathlib.Path(folder), _array_bytes(mesh.local_devices[0]) // 4)
        if triad:
            others["C"] = HostCalls("C", triad)
        else:
            print("triad in C is left out: there is no cc that compiles OpenMP")
        measure_in_turn([calls for calls, *_ in turns.values()] + [*others.values()], _ROUNDS.value)
    for (name, (calls, amount, unit)), (other, their) in zip(
        turns.items(), others.items(), strict=False
    ):
        rates = {
            who: [amount * one.warmup.calls_per_window / one_s for one_s in one.windows_s]
            for who, one in (("JAX", calls), (other, their))
        }
        for who, per_s in rates.items():
            _print(f"{name}, {who}", unit, median_interval(per_s))
        ratios = [own / its for own, its in zip(*rates.values(), strict=True)]
        ratio, low, high = median_interval(ratios)
        print(f"{name}: JAX / {other} {ratio:.3f} (95 % interval {low:.3f} to {high:.3f})")
    return 0


def _numpy_chain(shape: tuple[int, int, int]) -> Callable[[], object]:
    """Return NumPy's chain of the same products, see jaxbench/microbench/matmul.py."""
    from jaxbench.microbench.matmul import CHAIN

    (m, k, n), generator = shape, np.random.default_rng(0)
    x_MxK, w_KxN, v_NxK = (
        generator.standard_normal(size, np.float32) * np.float32(size[0] ** -0.5)
        for size in ((m, k), (k, n), (n, k))
    )

    def chain() -> None:
        left = x_MxK
        for number in range(CHAIN):
            left = left @ (v_NxK if number % 2 else w_KxN)

    return chain


def _c_triad(folder: pathlib.Path, count: int) -> Callable[[], object] | None:
    """Compile STREAM's triad over arrays of this size; return None without a compiler."""
    from jaxbench.hardware.system import available_cores

    source, library = folder / "triad.c", folder / "triad.so"
    source.write_text(_TRIAD)
    options = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    if not shutil.which("cc") or subprocess.run(["cc", *options, source, "-o", library]).returncode:
        return None
    # Threads that spin after a loop would take the others' cores.
    os.environ |= {"OMP_NUM_THREADS": str(available_cores()), "OMP_WAIT_POLICY": "passive"}
    functions = ctypes.CDLL(str(library))
    arrays = [np.empty(count, np.float32) for _ in range(3)]
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    functions.fill(*pointers, ctypes.c_long(count))
    call = functools.partial(functions.triad, *pointers, ctypes.c_long(count))

    def triad(arrays=arrays) -> None:  # holds what the pointers point to
        call()

    return triad


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
