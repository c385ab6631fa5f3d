"""Where the train state lies: whole on every device, one model's on each, or split by fsdp.

`Replicated` and `FullySharded` have the same methods, so the step needs no branches. A state is a
`jaxbench.train.TrainState`, or one of shapes.

| | data parallel | independent | fsdp |
|---|---|---|---|
| `on_all_devices` | a per-device step, by pmap | the same, a row each | `jax.jit` of whole arrays |
| `per_device` | nothing | nothing | that part of the step, by shard_map |
| `mean_gradients` | `pmean` | not called | `pmean`, and the parts as they are |
| `constrain` | nothing | nothing | the parts in which XLA keeps the state |

Under fsdp the parameters and the optimizer's arrays are split, all else is whole on every device. A
module of the network reads a parameter through `Shard.unbox`, which gathers it there and then. A
gather's transpose is a reduce-scatter: the gradient of a split parameter arrives summed and split.
The optimizer runs outside of the per-device function, on the split arrays of all devices, and XLA
divides its work. So update rules that look at whole arrays, such as Muon or a clipped global norm,
are right without knowing of any of this.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import numpy as np
from jax.sharding import PartitionSpec, SingleDeviceSharding

from jaxbench.aliases import PyTree
from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.parallel.mesh import AXIS, DataMesh, host_device


def shard_state(config: Config, mesh: DataMesh) -> "Replicated | FullySharded":
    """Return where the state of an experiment lies on the devices of a mesh."""
    if config.parallelism == "fsdp":
        return FullySharded(mesh)
    return Replicated(mesh, rows=config.replicas == "independent")


@dataclasses.dataclass(frozen=True)
class Replicated:
    """Every device has the whole state of its model.

    With `rows` each device trains a model of its own: states and metrics have a row for each.
    """

    mesh: DataMesh
    rows: bool
    gathers = False  # whether a device reads parameters that other devices have
    is_across_processes = False  # whether no process has the whole state on its devices

    @property
    def init_device(self) -> jax.Device:
        """Return the device that draws the parameters: the host's, which has room for them."""
        return host_device()

    @property
    def init_sharding(self) -> SingleDeviceSharding | None:
        """Return where the drawn parameters lie; None if `constrain` says it."""
        return SingleDeviceSharding(host_device())

    def place(self, state: PyTree) -> PyTree:
        """Place a state of the host, as `device_get` fetched it from the devices."""
        return self.mesh.shard(state) if self.rows else self.mesh.replicate(state)

    def shapes(self, state: PyTree) -> PyTree:
        """Return the shapes and shardings of what `place` returns, of one model's state."""
        sharding = self.mesh.sharding(PartitionSpec(AXIS) if self.rows else PartitionSpec())
        rows = (self.mesh.num_devices,) * self.rows

        def placed(leaf):
            return jax.ShapeDtypeStruct((*rows, *leaf.shape), leaf.dtype, sharding=sharding)

        return jax.tree.map(placed, state)

    def fetch(self, state: PyTree) -> PyTree:
        """Return a placed state that one process can read whole; all processes must call it."""
        return state

    def constrain(self, state: PyTree) -> PyTree:
        """Have XLA compute a state where it lies, inside a step of all devices."""
        return state

    def per_device(self, function: Callable, *, gradients: bool = False) -> Callable:
        """Return a per-device function for use in a step: see `on_all_devices`.

        Args:
          function: (state, data, batch) -> what is the same on every device.
          gradients: whether it returns (gradients from `mean_gradients`, ...).
        """
        return function

    def mean_gradients(self, grads: PyTree) -> PyTree:
        """Return the mean over all devices of a device's gradients, inside `per_device`."""
        return jax.lax.pmean(grads, AXIS)

    def on_all_devices(self, step: Callable, donate: tuple[int, ...] = ()) -> Any:
        """Return a step(state, data, batch) as a call of all devices.

        `donate` are the indices of the arguments whose memory the call reuses.
        """
        rows = self.rows
        return self.mesh.map_devices(
            step, sharded=(rows, False, True), sharded_output=rows, donate=donate
        )


def split_axis(shape: tuple[int, ...], num_devices: int) -> int | None:
    """Return the axis along which an array is split: the first that the devices divide.

    None for an array that every device has whole: it has no such axis, or is a vector or a scalar,
    whose exchange would cost more than its memory.
    """
    if len(shape) < 2:
        return None
    return next((axis for axis, size in enumerate(shape) if size % num_devices == 0), None)


class Shard(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
    """A device's part of a parameter, in a box that flax opens where a module reads it."""

    value: jax.Array
    axis: int = flax.struct.field(pytree_node=False)

    def unbox(self) -> jax.Array:
        """Return the whole parameter, gathered from all devices."""
        return jax.lax.all_gather(self.value, AXIS, axis=self.axis, tiled=True)

    def replace_boxed(self, val: Any) -> "Shard":
        return self.replace(value=val)

    def add_axis(self, index: int, params: Any) -> "Shard":
        raise BadInput("parallelism=fsdp: the network's nn.scan or nn.vmap stacks parameters")

    remove_axis = add_axis


@dataclasses.dataclass(frozen=True)
class FullySharded:
    """Every device has a part of the parameters and of the optimizer's arrays: fsdp."""

    mesh: DataMesh
    gathers = True
    init_sharding = None

    @property
    def is_across_processes(self) -> bool:
        return self.mesh.process[1] > 1

    @property
    def init_device(self) -> jax.Device:
        """Return a device that has a part; the host need not have room for the state."""
        return jax.local_devices()[0]

    def specs(self, state: PyTree) -> PyTree:
        """Return the PartitionSpec of every array of a whole state, or of its shapes."""

        def spec(leaf):
            axis = split_axis(leaf.shape, self.mesh.num_devices)
            return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)

        return jax.tree.map(lambda _: PartitionSpec(), state).replace(
            params=jax.tree.map(spec, state.params),
            opt_state=jax.tree.map(spec, state.opt_state),
        )

    def shapes(self, state: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            self._shardings(state),
        )

    def place(self, state: PyTree) -> PyTree:
        """Place a state of the host; what lies on the devices in these parts stays as it is."""

        def place(leaf, sharding):
            if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
                return leaf
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

        return jax.tree.map(place, state, self._shardings(state))

    def fetch(self, state: PyTree) -> PyTree:
        """Gather one array at a time from the devices of all processes."""
        from jax.experimental import multihost_utils

        def fetch(leaf):
            is_here = leaf.is_fully_addressable or leaf.is_fully_replicated
            return leaf if is_here else multihost_utils.process_allgather(leaf, tiled=True)

        return jax.tree.map(fetch, state)

    def constrain(self, state: PyTree) -> PyTree:
        return jax.lax.with_sharding_constraint(state, self._shardings(state))

    def _shardings(self, state: PyTree) -> PyTree:
        return jax.tree.map(self.mesh.sharding, self.specs(state))

    def per_device(self, function: Callable, *, gradients: bool = False) -> Callable:
        """Return a function of whole arrays; in `function` each split parameter is a `Shard`."""

        def on_all_devices(state, data, batch):
            specs = self.specs(state)

            def on_one_device(part, data, batch):
                params = jax.tree.map(self._box, part.params, state.params)
                return function(part.replace(params=params), data, batch)

            whole = PartitionSpec()
            spread = self.mesh.map_devices(
                on_one_device,
                sharded=(specs, False, True),
                sharded_output=(specs.params, whole, whole) if gradients else False,
            )
            return spread(state, data, batch)

        return on_all_devices

    def _box(self, part: jax.Array, whole: Any) -> jax.Array | Shard:
        axis = split_axis(whole.shape, self.mesh.num_devices)
        return part if axis is None else Shard(part, axis)

    def mean_gradients(self, grads: PyTree) -> PyTree:
        """Return the mean of whole gradients, and each device's part of the others.

        Gradients of split parameters are sums already.
        """
        leaves, structure = jax.tree.flatten(grads, is_leaf=lambda leaf: isinstance(leaf, Shard))
        # In one call, whose sums XLA may join.
        means = iter(jax.lax.pmean([leaf for leaf in leaves if not isinstance(leaf, Shard)], AXIS))
        devices = jax.lax.axis_size(AXIS)
        means_or_parts = [
            leaf.value / devices if isinstance(leaf, Shard) else next(means) for leaf in leaves
        ]
        return jax.tree.unflatten(structure, means_or_parts)

    def on_all_devices(self, step: Callable, donate: tuple[int, ...] = ()) -> Any:
        return jax.jit(step, donate_argnums=donate)
