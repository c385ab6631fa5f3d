"""What a compiler says of a training step on a machine that is not here."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import Record, Summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetRecord(Record):
    """A training step compiled for a target.

    Attributes:
      target: the machine, as `gpu:h100:8`.
      origin: compiled; that of the ceiling is predicted.
      compiler: the package and version that compiled.
      device_kind: the devices, as JAX names them.
      num_devices: devices of the machine.
      batch_size: global batch, in images.
      batch_per_device: images of a step on each device.
      precision: what the network computes in.
      device_memory_bytes: what a program may use of a device's memory.
      fits: whether the compiler accepts the step and its estimated memory is no more than that.
      needed_bytes: estimated memory on each device, as the compiler says where it refuses too.
      scaling: weak | strong of --mode=scaling: how the batch grows with the devices.
      refusal: the compiler's words where it refuses.
      lower_s, compile_s: seconds of lowering and of compiling.
      memory: bytes on one device, as in the `compile` record.
      state_donated: whether the new state takes the place of the old one, whole.
      collectives: by kind, `count`, `bytes` and `largest_bytes` on each device.
      flops_per_image: the network's own arithmetic of training.
      custom_calls: calls of libraries by name.
      transposes, converts: activations written, to memory or on the chip, only to change their
        layout or type.
      moved_bytes: read from memory and written to it by all instructions of a step on one device,
        without the padding of a TPU's tiles; the ceiling's `least_moved_bytes` may have it, and be
        more.
      bytes_lower_bound: predicted, the least that a step of this network moves on a device if no
        whole activation stays on the chip, by the rules of `jaxbench.xla.least_bytes`; None for
        networks that these leave out.
      ceiling: the most images/s, what it is bound by, the least seconds by cause, the assumptions.
      efficiency_no_overlap, efficiency_full_overlap: scaling efficiency at the ceiling, predicted
        against the smallest size, if nothing of the all-reduce overlaps with the step, or all.
    """

    kind = "target"
    target: str
    origin: str
    compiler: str
    device_kind: str
    num_devices: int
    batch_size: int
    batch_per_device: int
    precision: str
    device_memory_bytes: int
    fits: bool
    needed_bytes: int | None = None
    refusal: str | None = None
    scaling: str | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    memory: dict[str, int] | None = None
    state_donated: bool | None = None
    collectives: dict[str, dict[str, int]] | None = None
    flops_per_image: int | None = None
    custom_calls: dict[str, int] | None = None
    transposes: dict[str, int] | None = None
    converts: dict[str, int] | None = None
    moved_bytes: int | None = None
    bytes_lower_bound: int | None = None
    ceiling: dict[str, Any] | None = None
    efficiency_no_overlap: float | None = None
    efficiency_full_overlap: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileSummary(Summary):
    """--target: what the compiler says of the step on the whole machine.

    Attributes:
      planned_bytes_per_device: estimated memory (XLA) of the step.
      device_memory_bytes: what a program may use of a device's memory.
      ceiling_images_per_s: the most images/s, predicted.
      ceiling_bound_by: compute, memory or links, whichever takes longest.
    """

    planned_bytes_per_device: int | None = None
    device_memory_bytes: int | None = None
    ceiling_images_per_s: float | None = None
    ceiling_bound_by: str | None = None
