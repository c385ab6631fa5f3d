"""Whether devices compute the same bits, again and again: a search for silent data corruption.

One compiled step runs repeatedly from the same inputs on every device. Faulty cores that now and
then compute wrong values without any error are known from large fleets (P. H. Hochschild et al.,
"Cores that don't count", HotOS 2021; H. D. Dixit et al., "Silent data corruptions at scale", 2021).

Each array of the results is summed on the device: its bit patterns as unsigned integers, each times
an odd number by its place, modulo 2**32. A changed bit changes the sum, whatever the order of the
additions; so do elements that changed places. Sums that differ from the reference's are followed up
by a comparison of all elements. The reference is the first round of the device whose sums most
devices share; what is told of a single device is that its rounds differ, not which one is right.

A step that is not deterministic by itself (atomics on GPUs) differs, too: run it with
XLA_FLAGS=--xla_gpu_deterministic_ops=true to know.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.distributed.coordination import broadcast_value
from jaxbench.distributed.mesh import DataMesh

# Of an array's elements with other bits, this many positions are named.
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One array of one round whose bits are not the reference's.

    Attributes:
      device_id: of the device, JAX's number.
      round: that differs; 0 is the first.
      path: of the array in the results, such as `params/Dense_0/kernel`.
      elements: how many differ; 0 where the elements agree and the sum was wrong; None where the
        reference is in another process.
      size: elements of the array.
      positions: of the first of them, in the flattened array.
    """

    device_id: int
    round: int
    path: str
    elements: int | None
    size: int
    positions: tuple[int, ...] = ()


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


def check_repeats(
    step: Callable[..., Any], inputs: Sequence[Any], mesh: DataMesh, rounds: int
) -> list[Mismatch]:
    """Run a step `rounds` times on each device from the same inputs; return what differs.

    It is one program, which all devices run at once. Each holds the inputs and two rounds' results.

    Args:
      step: a function of arrays that JAX can compile, and that is the same in each call: whatever
        is random in it comes from a key in `inputs`.
      inputs: its arguments, the same in every process.
      mesh: devices of one kind: other kinds may rightly compute other bits.
      rounds: how often each device runs it.
    """
    place = {device: number for number, device in enumerate(mesh.local_devices)}

    def own_rows(array: jax.Array) -> list[jax.Array]:
        shards = sorted(array.addressable_shards, key=lambda shard: place[shard.device])
        return [shard.data for shard in shards]

    compiled = mesh.parallelize(step, sharded=(False,) * len(inputs), sharded_output=True)
    sum_up = mesh.parallelize(
        lambda tree: jnp.stack([*map(checksum, jax.tree.leaves(tree))]),
        sharded=(True,),
        sharded_output=True,
    )
    arguments = mesh.replicate(tuple(inputs))
    found: list[Mismatch] = []
    for number in range(rounds):
        result = compiled(*arguments)
        sums_DxL = np.concatenate(jax.device_get(own_rows(sum_up(result))))
        named = jax.tree_util.tree_leaves_with_path(result)
        if number == 0:
            first = [own_rows(array) for _, array in named]
            expected_L, reference = _reference(sums_DxL)
        for row, leaf in np.argwhere(sums_DxL != expected_L):
            path, array = named[leaf]
            own = own_rows(array)[row]
            positions = None if reference is None else _differing(own, first[leaf][reference])
            found.append(
                Mismatch(
                    device_id=mesh.local_devices[row].id,
                    round=number,
                    path=jax.tree_util.keystr(path, simple=True, separator="/"),
                    elements=None if positions is None else len(positions),
                    size=own.size,
                    positions=() if positions is None else tuple(positions[:_MOST_NAMED]),
                )
            )
    return found


def _reference(sums_DxL: np.ndarray) -> tuple[np.ndarray, int | None]:
    """Return the sums that most of process 0's devices have, and a row here that has them."""
    rows = [tuple(map(int, sums_L)) for sums_L in sums_DxL]
    [(commonest, _)] = collections.Counter(rows).most_common(1)
    expected = tuple(broadcast_value(list(commonest)))
    return np.array(expected, np.uint32), rows.index(expected) if expected in rows else None


def _differing(own: jax.Array, good: jax.Array) -> list[int]:
    """Return the positions of elements with other bits, in the flattened array."""
    own_N, good_N = (np.asarray(bits(one)).reshape(one.size, -1) for one in (own, good))
    return np.flatnonzero((own_N != good_N).any(axis=1)).tolist()
