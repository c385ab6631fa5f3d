"""The devices that take part, what lies on them, and how a step runs on all of them.

This is the only module that names `jax.pmap` and `jax.shard_map`. Letters in names: D devices,
B examples per device.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxbench.errors import BadInput

# Placing state on a mesh whose axis has the *same* name as pmap's is what lets the step compile
# once: under any other name the first call re-places its input and the second compiles again.
AXIS = "batch"


@dataclasses.dataclass(frozen=True)
class DataMesh:
    """D devices in a row, each holding all parameters and its share of every batch."""

    devices: tuple[jax.Device, ...]
    parallelism: str  # pmap | shard_map: two spellings of the same computation

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), (AXIS,))

    def replicate(self, tree: Any) -> Any:
        """Places a whole copy of every array on every device."""
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec()))

    def shard(self, tree_Dx: Any) -> Any:
        """Places row d of every array on device d."""
        return jax.device_put(tree_Dx, NamedSharding(self._mesh, PartitionSpec(AXIS)))

    def parallelize(
        self, function: Callable, *, num_replicated: int, donate: Sequence[int] = ()
    ) -> Any:
        """Makes a per-device function run on all devices at once.

        Args:
          function: takes `num_replicated` replicated arguments, then one sharded argument, of
            which it sees its own device's row. Collectives inside it use the axis `AXIS`. What it
            returns must be the same on every device: JAX does not check that.
          num_replicated: how many leading arguments are replicated.
          donate: which arguments' memory the call may reuse; they must not be read again.

        Returns:
          A compiled-on-first-call function with `.lower(...)`; its outputs are replicated.
        """
        if self.parallelism == "pmap":
            return jax.pmap(
                function,
                axis_name=AXIS,
                in_axes=(None,) * num_replicated + (0,),
                out_axes=None,
                donate_argnums=tuple(donate),
                devices=self.devices,
            )

        @functools.wraps(function)
        def on_one_row(*args):
            *replicated, row_1x = args
            return function(*replicated, jax.tree.map(lambda x: x[0], row_1x))

        # check_vma=False keeps pmap's rules for differentiating collectives; with True a gradient
        # of a replicated parameter would arrive already summed over the devices.
        mapped = jax.shard_map(
            on_one_row,
            mesh=self._mesh,
            in_specs=(PartitionSpec(),) * num_replicated + (PartitionSpec(AXIS),),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=tuple(donate))


def create_mesh(
    num_devices: int, batch_size: int, parallelism: str, accumulate_steps: int = 1
) -> DataMesh:
    """Takes the first `num_devices` local devices (0: all of them).

    Raises:
      BadInput: there are fewer, or the global batch cannot be dealt out evenly to them, in
        `accumulate_steps` equal parts each.
    """
    try:
        local = jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS")
        raise BadInput(
            f"JAX finds no devices{f' with JAX_PLATFORMS={asked}' if asked else ''}: "
            + (str(error).split("\n", 1)[0] or type(error).__name__)
        ) from error
    if num_devices > len(local):
        raise BadInput(
            f"num_devices={num_devices}: this machine has {len(local)} "
            f"{local[0].device_kind} device(s), so 1 to {len(local)}, or 0 for all"
        )
    devices = tuple(local[: num_devices or len(local)])
    parts = len(devices) * accumulate_steps
    if batch_size % parts:
        below = batch_size // parts * parts
        near = [size for size in (below, below + parts) if size]
        in_parts = f" in {accumulate_steps} parts each" if accumulate_steps > 1 else ""
        raise BadInput(
            f"batch_size={batch_size} does not divide over {len(devices)} devices{in_parts}; "
            f"the nearest that do: {' and '.join(map(str, near))}"
        )
    return DataMesh(devices, parallelism)


def all_ready(tree: Any) -> bool:
    """Whether every array has been computed; never waits."""
    return all(leaf.is_ready() for leaf in jax.tree.leaves(tree))


def peak_memory_bytes(devices: Sequence[jax.Device]) -> int | None:
    """The most memory that any of these devices has had in use, None where it is not counted."""
    peaks = []
    for device in devices:
        stats = device.memory_stats()
        if stats and "peak_bytes_in_use" in stats:
            peaks.append(stats["peak_bytes_in_use"])
    return max(peaks, default=None)
