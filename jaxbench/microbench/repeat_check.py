"""Whether devices compute the same bits, again and again: a search for silent data corruption.

One compiled step runs repeatedly from the same inputs on every device. Faulty cores that now and
then compute wrong values without any error are known from large fleets (P. H. Hochschild et al.,
"Cores that don't count", HotOS 2021; H. D. Dixit et al., "Silent data corruptions at scale", 2021).

Each array of the results is summed on the device: its bit patterns as unsigned integers, each times
an odd number by its place, modulo 2**32. A changed bit changes the sum, whatever the order of the
additions; so do elements that changed places. Sums that differ from the reference's are followed up
by a comparison of all elements. The reference is the result that most devices have in the first
round, or in as many rounds as it takes until one is the most common. As long as none is, any
device may be wrong, and all are named: so with two devices that disagree. With a single device the
check says that its rounds differ, not which of them is right.

A step with atomics on GPUs is not deterministic, and differs without a fault. Run it with
XLA_FLAGS=--xla_gpu_deterministic_ops=true to tell the two apart.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.parallel.mesh import DataMesh
from jaxbench.parallel.processes import broadcast_value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One array of one round, from 0 on, whose bits are not the reference's.

    Attributes:
      path: of the array in the results, such as `params/Dense_0/kernel`.
      elements: how many differ; 0 if the elements agree and the sum was wrong; None if the
        reference is in another process.
      is_tied: whether no result is more common than the others, so that any device may be wrong.
        Then each has a mismatch.
    """

    device_id: int
    round: int
    path: str
    elements: int | None
    is_tied: bool


def bits(array: jax.Array) -> jax.Array:
    """Return an array's bit patterns as flat uint32; wider elements become several."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag], -1)
    width = 8 * array.dtype.itemsize
    unsigned = jnp.dtype(f"uint{min(width, 32)}")
    return lax.bitcast_convert_type(array, unsigned).reshape(-1).astype(jnp.uint32)


def checksum(array: jax.Array) -> jax.Array:
    """Return the sum of the bit patterns, each times 2 x place + 1, as uint32."""
    bits_N = bits(array)
    odd_N = 2 * lax.iota(jnp.uint32, bits_N.size) + 1
    return jnp.sum(bits_N * odd_N, dtype=jnp.uint32)


class RepeatCheck:
    """One program that all devices run at once, again and again from the same inputs.

    Args:
      step: a function of arrays that JAX can compile, and that is the same in each call: whatever
        is random in it comes from a key in `inputs`.
      inputs: its arguments, the same in every process.
      mesh: devices of one kind: other kinds may rightly compute other bits.

    Attributes:
      rounds: that were run.
    """

    def __init__(self, step: Callable[..., Any], inputs: Sequence[Any], mesh: DataMesh):
        self.rounds = 0
        self._mesh, self._arguments = mesh, mesh.replicate(tuple(inputs))
        self._step = mesh.pmap(step, sharded=(False,) * len(inputs), sharded_output=True)
        self._sum_up = mesh.pmap(
            lambda tree: jnp.stack([*map(checksum, jax.tree.leaves(tree))]),
            sharded=(True,),
            sharded_output=True,
        )
        self._seen: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._expected_L: np.ndarray | None = None
        # Of the expected arrays, on the host; None where they are in another process.
        self._expected_bits: list[np.ndarray] | None = None
        self._is_tied = True

    def burst(self, rounds: int) -> list[Mismatch]:
        """Run some rounds; return what differs from the reference, also that of earlier bursts."""
        return [mismatch for _ in range(rounds) for mismatch in self._round()]

    def _round(self) -> list[Mismatch]:
        """Run the step once on each device; return what differs."""
        result = self._step(*self._arguments)
        sums_DxL = np.concatenate(jax.device_get(self._own_rows(self._sum_up(result))))
        named = [
            (jax.tree_util.keystr(path, simple=True, separator="/"), self._own_rows(array))
            for path, array in jax.tree_util.tree_leaves_with_path(result)
        ]
        if self._is_tied:
            self._choose_reference(sums_DxL, [rows for _, rows in named])
        wrong_DxL = sums_DxL != self._expected_L
        mismatches = [
            mismatch
            for leaf in np.flatnonzero(wrong_DxL.any(axis=0))
            for mismatch in self._compare(*named[leaf], leaf, np.flatnonzero(wrong_DxL[:, leaf]))
        ]
        self.rounds += 1
        return sorted(mismatches, key=lambda one: one.device_id)

    def _compare(
        self, path: str, parts: Sequence[jax.Array], leaf: int, rows: np.ndarray
    ) -> Iterator[Mismatch]:
        """Yield the mismatches of one array, by the devices (rows) whose sums are not expected."""
        counts: dict[int, int | None] = dict.fromkeys(map(int, rows))
        if self._expected_bits is not None:
            for row in counts:
                differs_N = np.asarray(bits(parts[row])) != self._expected_bits[leaf]
                # Of an element, several words may differ.
                counts[row] = int(differs_N.reshape(parts[row].size, -1).any(axis=1).sum())
        if self._is_tied:  # whichever device is wrong, the same elements differ
            most = max(counts.values(), key=lambda count: count or 0)
            counts = {row: counts.get(row, most) for row in range(len(parts))}
        for row, count in counts.items():
            yield Mismatch(
                device_id=self._mesh.local_devices[row].id,
                round=self.rounds,
                path=path,
                elements=count,
                is_tied=self._is_tied,
            )

    def _own_rows(self, array: jax.Array) -> list[jax.Array]:
        """Return the part of each device of this process."""
        place = {device: number for number, device in enumerate(self._mesh.local_devices)}
        shards = sorted(array.addressable_shards, key=lambda shard: place[shard.device])
        return [shard.data for shard in shards]

    def _choose_reference(self, sums_DxL: np.ndarray, leaves: Sequence[Sequence[Any]]) -> None:
        """Take the sums that process 0's devices had most often so far as what is expected."""
        rows = [tuple(map(int, sums_L)) for sums_L in sums_DxL]
        self._seen.update(rows)
        [(commonest, count), *others] = self._seen.most_common(2)
        is_tied = any(count == other for _, other in others)
        expected, self._is_tied = broadcast_value([list(commonest), is_tied])
        if self._expected_L is not None and self._expected_L.tolist() == expected:
            return
        self._expected_L = np.array(expected, np.uint32)
        self._expected_bits = None
        if tuple(expected) in rows:
            row = rows.index(tuple(expected))
            self._expected_bits = [np.asarray(bits(leaf[row])) for leaf in leaves]
