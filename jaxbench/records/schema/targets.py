"""What a compiler says of a training step on a machine that is not here."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import Record, Summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetRecord(Record):
    """A training step compiled for a target."""

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
    """--target: what the compiler says of the step on the whole machine."""

    planned_bytes_per_device: int | None = None
    device_memory_bytes: int | None = None
    ceiling_images_per_s: float | None = None
    ceiling_bound_by: str | None = None
