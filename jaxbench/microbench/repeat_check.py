"""Whether devices compute the same bits, again and again: a search for silent data corruption.

One compiled step runs repeatedly from the same inputs on every device. Faulty cores that now and
then compute wrong values without any error are known from large fleets (P. H. Hochschild et al.,
"Cores that don't count", HotOS 2021; H. D. Dixit et al., "Silent data corruptions at scale", 2021).

Each array of the results is summed on the device: its bit patterns as unsigned integers, each times
an odd number by its position, modulo 2**32. A changed bit changes the sum, whatever the order of
the additions; so do elements that changed places. If a sum differs from the reference's, all
elements are compared. The reference is the result that most devices have in the first round, or in
as many rounds as it takes until one is the most common. As long as none is, any device may be
wrong, and all are named: so with two devices that disagree. With a single device the check says
that its rounds differ, not which of them is right.

A step with atomics on GPUs is not deterministic, and differs without a fault. Train with
`--deterministic` to see whether it repeats then.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.parallel.mesh import DataMesh


class Mismatch(NamedTuple):
    """One array of one round, from 0 on, whose bits are not the reference's."""

    device_id: int
    round: int
    path: str  # of the array in the results, such as `params/Dense_0/kernel`
    elements: int  # how many differ; 0 if the elements agree and the sum was wrong


def checksum(array: jax.Array) -> jax.Array:
    """Return the sum of an array's 32-bit patterns, each times 2 x position + 1, as uint32."""
    bits_N = lax.bitcast_convert_type(array, jnp.uint32).reshape(-1)
    odd_N = 2 * lax.iota(jnp.uint32, bits_N.size) + 1
    return jnp.sum(bits_N * odd_N, dtype=jnp.uint32)


class RepeatCheck:
    """One program that all devices of a process run at once, again and again from the same inputs.

    Args:
      step: a function of arrays that JAX can compile, and that is the same in each call. Its
        results are arrays of 32-bit elements.
      inputs: its arguments.
      mesh: devices of one kind: other kinds may rightly compute other bits.
    """

    def __init__(self, step: Callable[..., Any], inputs: Sequence[Any], mesh: DataMesh):
        self.rounds = 0  # that were run
        self._mesh, self._arguments = mesh, mesh.replicate(tuple(inputs))
        self._step = mesh.map_devices(step, sharded=(False,) * len(inputs), sharded_output=True)
        self._sum_up = mesh.map_devices(
            lambda tree: jnp.stack([*map(checksum, jax.tree.leaves(tree))]),
            sharded=(True,),
            sharded_output=True,
        )
        self._seen: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._expected: tuple[int, ...] = ()
        self._expected_arrays: list[np.ndarray] = []
        self._is_tied = True

    def burst(self, rounds: int) -> list[Mismatch]:
        """Run some rounds; return what differs from the reference, also that of earlier bursts."""
        return [mismatch for _ in range(rounds) for mismatch in self._round()]

    def _round(self) -> list[Mismatch]:
        """Run the step once on each device; return what differs."""
        result = self._step(*self._arguments)
        sums_DxL = np.concatenate(jax.device_get(self._by_device(self._sum_up(result))))
        sums = [tuple(map(int, sums_L)) for sums_L in sums_DxL]
        leaves = [
            (jax.tree_util.keystr(path, simple=True, separator="/"), self._by_device(array))
            for path, array in jax.tree_util.tree_leaves_with_path(result)
        ]
        if self._is_tied:
            self._seen.update(sums)
            [(commonest, count), *others] = self._seen.most_common(2)
            self._is_tied = any(count == other for _, other in others)
            if commonest != self._expected:
                self._expected, device = commonest, sums.index(commonest)
                self._expected_arrays = [np.asarray(arrays[device]) for _, arrays in leaves]
        mismatches = [
            mismatch
            for leaf, (path, arrays) in enumerate(leaves)
            for mismatch in self._compare(path, arrays, leaf, [one[leaf] for one in sums])
        ]
        self.rounds += 1
        return sorted(mismatches)

    def _compare(
        self, path: str, arrays: Sequence[jax.Array], leaf: int, sums: Sequence[int]
    ) -> Iterator[Mismatch]:
        """Yield the mismatches of one array, of each device."""
        expected = self._expected_arrays[leaf].view(np.uint32)
        counts = {
            device: int(np.sum(np.asarray(arrays[device]).view(np.uint32) != expected))
            for device, one in enumerate(sums)
            if one != self._expected[leaf]
        }
        if counts and self._is_tied:  # whichever device is wrong, the same elements differ
            counts = {n: counts.get(n, max(counts.values())) for n in range(len(arrays))}
        for device, count in counts.items():
            device_id = self._mesh.local_devices[device].id
            yield Mismatch(device_id, self.rounds, path, count)

    def _by_device(self, array: jax.Array) -> list[jax.Array]:
        """Return the part of each device."""
        parts = {shard.device: shard.data for shard in array.addressable_shards}
        return [parts[device] for device in self._mesh.local_devices]
