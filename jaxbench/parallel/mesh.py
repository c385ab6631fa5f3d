"""The devices of a run: placing arrays on them and running a step on all of them.

This is the only module that names `jax.pmap` and `jax.shard_map`. Letters in names: D devices of
all processes, L of this one, B examples per device.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxbench.batch_layout import BatchLayout
from jaxbench.clock import wait_until
from jaxbench.config import Config, Experiment
from jaxbench.errors import BadInput, RunFailed, first_line
from jaxbench.parallel import processes
from jaxbench.xla.variables import decisive_variables

# Placing state on a mesh whose axis has the *same* name as pmap's is what lets the step compile
# once: under any other name the first call re-places its input and the second compiles again.
AXIS = "batch"
# The variables by which a user leaves JAX without a device.
_CHOOSING = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
_CHOOSING += ("CUDA_VISIBLE_DEVICES", "JAX_CUDA_VISIBLE_DEVICES")


@dataclasses.dataclass(frozen=True)
class DataMesh:
    """D devices, each with its part of every batch, and with all parameters or a part of each.

    Process 0's devices come first; every process has the same number.
    """

    devices: tuple[jax.Device, ...]
    # pmap | shard_map: two spellings of the same computation; fsdp: shard_map with a split state.
    parallelism: str
    # The peak memory of this process before the run's steps.
    peak_before_bytes: int = dataclasses.field(default=0, compare=False)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def local_devices(self) -> tuple[jax.Device, ...]:
        return local_devices(self.devices)

    @property
    def process(self) -> tuple[int, int]:
        """Return the index of this process and the number of processes."""
        return processes.index(), self.num_devices // len(self.local_devices)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Return the peak memory of any local device in the run.

        JAX counts from the process's start, so a run that does not exceed what was in use before
        has no peak: None, as if nothing counts.
        """
        peak_bytes = _peak_memory_bytes(self.devices)
        return peak_bytes if peak_bytes > self.peak_before_bytes else None

    def without_peak(self) -> "DataMesh":
        """Return the mesh without the peak memory so far, for a run that begins now."""
        return dataclasses.replace(self, peak_before_bytes=_peak_memory_bytes(self.devices))

    def replicate(self, tree: Any) -> Any:
        """Place a copy of every array on every device; all processes pass the same arrays."""
        return self._place(tree, PartitionSpec())

    def shard(self, tree_Lx: Any) -> Any:
        """Place row l of every array on this process's device l."""
        return self._place(tree_Lx, PartitionSpec(AXIS))

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Return the sharding over the devices of all processes."""
        return NamedSharding(Mesh(np.array(self.devices), (AXIS,)), spec)

    def transfer_guard(self) -> contextlib.AbstractContextManager:
        """Return the context of a step's call, in which nothing may move to a device unasked.

        On one CPU device JAX runs a network's callbacks in the call: what they move is their own.
        """
        if self.num_devices == 1 and self.devices[0].platform == "cpu":
            return contextlib.nullcontext()
        return jax.transfer_guard("disallow")

    def _place(self, tree: Any, spec: PartitionSpec) -> Any:
        local = NamedSharding(Mesh(np.array(self.local_devices), (AXIS,)), spec)
        placed = jax.device_put(tree, local)
        # Across processes pmap takes each one's own rows. Placing on another's devices, as
        # device_put offers, would compare all values over the network.
        if self.parallelism == "pmap" or self.process[1] == 1:
            return placed
        everywhere = self.sharding(spec)

        def join(array: jax.Array) -> jax.Array:
            shape = (self.num_devices, *array.shape[1:]) if spec else array.shape
            shards = [shard.data for shard in array.addressable_shards]
            return jax.make_array_from_single_device_arrays(shape, everywhere, shards)

        return jax.tree.map(join, placed)

    def map_devices(
        self,
        function: Callable,
        *,
        sharded: Sequence[Any],
        sharded_output: Any = False,
        donate: Sequence[int] = (),
    ) -> Any:
        """Return a function that runs a per-device function on all devices at once.

        Args:
          function: gets its device's row of each sharded argument. Its collectives use `AXIS`.
          sharded: for each argument, whether it has a row for each device or is replicated; except
            for pmap, it may be the PartitionSpecs of its arrays.
          sharded_output: whether results become the rows of arrays with a leading axis D; else
            they must be the same on every device, which JAX does not check. Or PartitionSpecs.
          donate: indices of arguments whose memory the call may reuse; they must not be read again.
        """
        if self.parallelism == "pmap":
            return jax.pmap(
                function,
                axis_name=AXIS,
                in_axes=tuple(0 if rows else None for rows in sharded),
                out_axes=0 if sharded_output else None,
                donate_argnums=tuple(donate),
                devices=self.devices,
            )

        @functools.wraps(function)
        def on_one_row(*args):
            output = function(
                *(
                    jax.tree.map(lambda x: x[0], arg) if rows is True else arg
                    for arg, rows in zip(args, sharded, strict=True)
                )
            )
            return jax.tree.map(lambda x: x[None], output) if sharded_output is True else output

        spec_of = {True: PartitionSpec(AXIS), False: PartitionSpec()}

        def specs(rows):
            return spec_of[rows] if isinstance(rows, bool) else rows

        # check_vma=False keeps pmap's rules for differentiating collectives; with True a gradient
        # of a replicated parameter would arrive already summed over the devices.
        mapped = jax.shard_map(
            on_one_row,
            mesh=Mesh(np.array(self.devices), (AXIS,)),
            in_specs=tuple(map(specs, sharded)),
            out_specs=specs(sharded_output),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=tuple(donate))


def local_devices(devices: Sequence[jax.Device]) -> tuple[jax.Device, ...]:
    """Return the devices of this process; only they have memory statistics here."""
    index = processes.index()
    return tuple(device for device in devices if device.process_index == index)


def host_device() -> jax.Device:
    """Return this process's CPU device, or its first device if it has no CPU device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def find_devices() -> list[jax.Device]:
    """Return the devices of this process.

    Raises:
      BadInput: JAX has none, or none of JAX_PLATFORMS: why, and after a semicolon what to do.
    """
    asked, reason = os.environ.get("JAX_PLATFORMS"), None
    try:
        devices = jax.local_devices()
        # Where jaxbench has put the CPU behind what was asked for, it does not take its place.
        if devices[0].platform != "cpu" or jax.config.values["jax_platforms"] != f"{asked},cpu":
            return devices
    except AssertionError as error:
        reason = first_line(error).removeprefix("AssertionError")
    except RuntimeError as error:
        # JAX advises to set JAX_PLATFORMS, whatever it is that leaves no device.
        reason = first_line(error).partition(" (set JAX_PLATFORMS=")[0].rstrip(".")
    # JAX has logged how a plugin failed.
    reason = reason or f"the plugin for JAX_PLATFORMS={asked} has not started"
    chosen = [name for name in decisive_variables() if name in _CHOOSING]
    todo = f"correct or unset {', '.join(chosen)}" if chosen else ""
    raise BadInput(
        f"JAX finds no devices: {reason}; {todo or 'JAX_PLATFORMS=cpu leaves the device out'}"
    )


def create_mesh(config: Experiment) -> DataMesh:
    """Take the first `num_devices` devices (0: all), the same number from each process.

    Raise BadInput if there are fewer, or they cannot be taken evenly.
    """
    kind, count = find_devices()[0].device_kind, jax.process_count()
    if count != processes.count():
        raise BadInput(
            f"these devices belong to {count} processes that are not connected: start the same "
            "command with --distributed=auto on every host"
        )
    by_process = [jax.local_devices(process_index=index) for index in range(count)]
    counts = [len(devices) for devices in by_process]
    most = min(counts) * count
    if config.num_devices > most or config.num_devices % count:
        raise BadInput(
            f"num_devices={config.num_devices}: must be 0 (all) or a multiple of {count} up to "
            f"{most}; {count} process(es) have {min(counts)} {kind} device(s) each"
        )
    if max(counts) > min(counts) and not config.num_devices:
        raise BadInput(
            f"the processes have {' and '.join(map(str, counts))} devices: give num_devices, at "
            f"most {most}, to take as many of each"
        )
    of_each = config.num_devices // count or min(counts)
    devices = tuple(device for local in by_process for device in local[:of_each])
    return DataMesh(devices, config.parallelism, _peak_memory_bytes(devices))


def create_training_mesh(
    config: Config, say: Callable[[str], None] = lambda line: None
) -> tuple[DataMesh, BatchLayout]:
    """Return the mesh of a network's training, and how the batch is split; say what runs there."""
    mesh = create_mesh(config)
    banner = _banner(config, mesh)
    layout = BatchLayout.create(config, mesh.num_devices, mesh.process)
    say(banner)  # not of a batch that is refused
    return mesh, layout


def _banner(config: Config, mesh: DataMesh) -> str:
    """Return the line that says what a run trains on which devices."""
    models, device = config.num_models(mesh.num_devices), mesh.devices[0]
    each = f"{models} independent models, each with batch" if models > 1 else "batch"
    simulated = "simulated " * (device.platform == "cpu" and len(mesh.local_devices) > 1)
    several = f" in {mesh.process[1]} processes" if mesh.process[1] > 1 else ""
    spread = f"{config.parallelism}, batch norm: {config.batch_norm}, "
    devices = f"{mesh.num_devices} {simulated or 'x '}{device.device_kind}"
    return (
        f"{config.name or 'experiment'} on {devices}{several}: {each} {config.batch_size}, "
        f"{config.precision}, {config.data.feed} feed, "
        f"{spread * (mesh.num_devices > 1)}seed {config.seed}"
    )


def broadcast_arrays(tree: Any) -> Any:
    """Return process 0's arrays of NumPy in every process, bit for bit.

    All must call it, the others with arrays of the same shapes and types.
    """
    from jax.experimental import multihost_utils

    # As bytes: JAX broadcasts by summing, and -0.0 + 0.0 is 0.0.
    as_bytes = jax.tree.map(lambda leaf: np.ascontiguousarray(leaf).reshape(-1).view("u1"), tree)
    sent = multihost_utils.broadcast_one_to_all(as_bytes, is_source=processes.is_primary())
    return jax.tree.map(
        lambda leaf, data: np.asarray(data).view(leaf.dtype).reshape(leaf.shape), tree, sent
    )


def all_ready(tree: Any) -> bool:
    """Return whether every array has been computed, without waiting."""
    return all(leaf.is_ready() for leaf in jax.tree.leaves(tree))


def wait_for(tree: Any) -> None:
    """Return once every array has been computed; Ctrl-C is answered meanwhile, see `wait_until`."""
    leaves = jax.tree.leaves(tree)
    wait_until(lambda: all(leaf.is_ready() for leaf in leaves))


def unequal_copies(tree: Any) -> list[str]:
    """Return the paths of arrays whose copies differ in a bit between this process's devices.

    Each copy is fetched to the host. Parts of a split array are no copies.
    """

    def copies(leaf):
        shards = leaf.addressable_shards
        return {(str(shard.index), np.asarray(shard.data).tobytes()) for shard in shards}

    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if len(copies(leaf)) > len({str(shard.index) for shard in leaf.addressable_shards})
    ]


def mixed_devices(devices: Sequence[jax.Device], error: BaseException | None) -> RunFailed | None:
    """Return an error of one line if a backend fails on devices of several kinds, else None."""
    kinds = list(dict.fromkeys(device.device_kind for device in devices))
    of_backend = isinstance(error, jax.errors.JaxRuntimeError)
    if len(kinds) == 1 or not of_backend or "RESOURCE_EXHAUSTED" in str(error):
        return None
    return RunFailed(
        f"{' with '.join(kinds)}: the backend does not run one program on such a mix "
        f"({' '.join(str(error).split())[:200]}); take devices of one kind "
        "(num_devices, CUDA_VISIBLE_DEVICES)"
    )


def _peak_memory_bytes(devices: Sequence[jax.Device]) -> int:
    """Return the peak memory of any local one of these devices so far; 0 if nothing counts it."""
    here = jax.local_devices()  # those of a target are not
    stats = [device.memory_stats() or {} for device in devices if device in here]
    return max((each.get("peak_bytes_in_use", 0) for each in stats), default=0)
