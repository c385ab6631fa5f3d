"""Collectives over all devices, and exchanges between pairs of them.

Bandwidths are as NVIDIA's nccl-tests define them (doc/PERFORMANCE.md). The size S of a collective
is that of the array that every device has whole: the operand of an all-reduce or reduce-scatter,
the result of an all-gather. Bus bandwidth is what each link carries: S / time, times 2 (n - 1) / n
for an all-reduce, (n - 1) / n for the other two, 1 for an exchange of S bytes each way.

One call is one collective of fp32 zeros. An all-reduce is in place; the others write over the last
result, since making new arrays would be measured, too (arrays are donated). Calls are queued back
to back, so that a collective that takes longer than its dispatch hides it. Small sizes are dispatch
as much as latency: compare with `measure_dispatch`. CPU devices wait for each call.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax

from jaxbench.analysis.rate import Estimate
from jaxbench.analysis.scaling_model import bus_factor
from jaxbench.microbench.interleaved import Calls, measure_in_turn
from jaxbench.parallel.mesh import AXIS, DataMesh

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
_WIDTH = np.dtype(np.float32).itemsize
# Mesh positions of two devices.
Pair = tuple[int, int]


def sizes_up_to(most_bytes: int) -> list[int]:
    """Return the sizes in bytes that are measured: 1 KiB times powers of four."""
    return [1024 * 2**power for power in range(0, (most_bytes // 1024).bit_length(), 2)]


class Collective(Calls):
    """One collective over a mesh, in windows.

    Args:
      operation: one of `OPERATIONS`, or exchange.
      num_bytes: S, see above; rounded down to whole elements, of every device if it is split.
      pair: for an exchange: the mesh positions of the devices. The others take no part.
      like: a collective with arrays of the same sizes, which this one uses, too.
    """

    def __init__(
        self,
        mesh: DataMesh,
        operation: str,
        num_bytes: int,
        window_s: float,
        *,
        pair: Pair = (0, 1),
        like: "Collective | None" = None,
    ):
        count = mesh.num_devices
        parts = count if operation in ("all_gather", "reduce_scatter") else 1
        part = max(1, num_bytes // _WIDTH // parts)
        self.operation, self.num_bytes, self.mesh = operation, part * parts * _WIDTH, mesh
        sent = part * (1 if operation == "all_gather" else parts)
        received = part * (1 if operation == "reduce_scatter" else parts)
        # The last result first. XLA would copy the operand of an all-reduce that is not in place.
        self._sizes = (part,) if operation == "all_reduce" else (received, sent)
        self._arrays: list[jax.Array] = like._arrays if like else []
        name = f"{operation.replace('_', '-')} of {self.num_bytes:,} bytes over {count} devices"
        if operation == "exchange":
            name = "exchange between devices {} and {}".format(*pair)
        super().__init__(name, self._queue, mesh.devices, window_s)
        functions: dict[str, Callable] = {
            "all_gather": lambda x: lax.all_gather(x, AXIS, tiled=True),
            "reduce_scatter": lambda x: lax.psum_scatter(x, AXIS, tiled=True),
            "exchange": lambda x: lax.ppermute(x, AXIS, [pair, pair[::-1]]),
        }

        def write(result_N, *operand_N):
            if not operand_N:
                return lax.psum(result_N, AXIS)
            # Writes all of it: XLA computes the result in the memory of the last one.
            return lax.dynamic_update_slice(result_N, functions[operation](*operand_N), (0,))

        sharded = (True,) * len(self._sizes)
        self._compiled = mesh.map_devices(write, sharded=sharded, sharded_output=True, donate=(0,))

    def start(self) -> None:
        """Place the arrays, compile, run once."""
        if not self._arrays:
            rows = len(self.mesh.local_devices)
            self._arrays += [
                self.mesh.shard(np.zeros((rows, size), np.float32)) for size in self._sizes
            ]
        self.run(1)

    def _queue(self) -> jax.Array:
        self._arrays[0] = self._compiled(*self._arrays)
        return self._arrays[0]

    def bus_bytes_per_s(self) -> Estimate:
        return self.per_s(self.num_bytes * bus_factor(self.operation, self.mesh.num_devices))


def measure_collectives(
    mesh: DataMesh,
    *,
    most_bytes: int,
    rounds: int,
    window_s: float,
    show: Callable[[str], object],
) -> list[Collective]:
    """Return every collective over all devices, measured, from 1 KiB up in powers of four.

    The arrays of a device take about eight times `most_bytes`, those of the largest, together.
    """
    turns = [
        Collective(mesh, operation, size, window_s)
        for size in sizes_up_to(most_bytes)
        for operation in OPERATIONS
    ]
    for turn in turns:
        show(f"{turn.name}, compiling")
        turn.start()
    measure_in_turn(turns, rounds, show)
    return turns


def measure_pairs(
    mesh: DataMesh,
    pairs: Sequence[Pair],
    *,
    num_bytes: int,
    rounds: int,
    window_s: float,
    show: Callable[[str], object],
) -> dict[Pair, Estimate]:
    """Measure the bandwidth between pairs of devices, in bytes/s of each direction.

    Each pair is a program of its own, which takes a second or so to compile. Each of its devices
    sends `num_bytes` to the other.
    """
    turns: dict[Pair, Collective] = {}
    for pair in pairs:
        like = next(iter(turns.values()), None)
        turns[pair] = Collective(mesh, "exchange", num_bytes, window_s, pair=pair, like=like)
        show(f"{turns[pair].name}, compiling")
        turns[pair].start()
    measure_in_turn([*turns.values()], rounds, show)
    return {pair: turn.bus_bytes_per_s() for pair, turn in turns.items()}
