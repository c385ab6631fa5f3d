"""What the measuring modes record: throughput, input, scaling, memory and conv2d."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import Rate, Record, Summary, Utilization, Windows, column, group


@group
class Stage(Record):
    """One stage of --mode=throughput or input, and the work of one of its steps."""

    stage: str
    batch_size: int
    num_devices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputRecord(Utilization, Windows, Stage):
    """One stage of --mode=throughput: train_step, train_step_xN or forward.

    Latencies are of single steps, each waited for, in the stage train_step.
    """

    kind = "throughput"
    feed: str
    precision: str
    images_per_s_per_device: float
    steps_per_call: int
    warmup_steps: int
    warmup_settled: bool
    sync_residual_s: float
    images_per_step: int | None = None
    images_counted: int | None = None
    flops_per_byte: float | None = None
    flops_per_byte_at_ridge: float | None = None
    bound_by: str | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    latency_steps: int | None = None
    host_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputSummary(Rate, Summary):
    """--mode=throughput; the rate is that of the stage train_step."""

    first_step_s: float | None
    first_loss: float | None
    last_loss: float | None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    profile: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputRecord(Rate, Stage):
    """One stage of --mode=input: prepare, prepare_and_send or train_step."""

    kind = "input"
    windows_images_per_s: list[float]
    cores: int
    images_per_s_per_core: float | None = None
    tokens_per_s: float | None = None
    windows_storage_read_bytes: list[int | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSummary(Summary):
    """--mode=input: whether the host or the devices bound a run."""

    verdict: str | None


@group
class Devices(Record):
    """Devices, and the batch that they share."""

    num_devices: int = column()
    batch_size: int = column()
    batch_per_device: int = column()


@group
class MeasuredStep(Utilization, Windows, Devices):
    """A training step measured on some devices; its rate is null where it was not measured."""

    precision: str
    images_per_step: int
    images_counted: int | None
    warmup_steps: int | None
    warmup_settled: bool | None
    steps: int = column()
    status: str = column()
    reason: str | None = column()


@group
class Scaled(Record):
    """How the batch follows the number of devices."""

    scaling: str = column()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingRecord(MeasuredStep, Scaled):
    """A step of --mode=scaling and its efficiency against one device."""

    kind = "scaling"
    efficiency: float | None = column()
    efficiency_low: float | None = column()
    efficiency_high: float | None = column()
    gradient_bytes: int
    collectives: dict[str, dict[str, int]] | None
    replicas_equal_after_steps: bool | None = column()
    unequal: list[str] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceRecord(MeasuredStep):
    """One device alone, with its part of the batch."""

    kind = "device"
    device_id: int
    device_kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceRecord(Record):
    """The sum over devices of a buffer as large as the gradient."""

    kind = "all_reduce"
    num_devices: int
    bytes: int
    all_reduce_s: float
    all_reduce_s_low: float
    all_reduce_s_high: float
    bus_bytes_per_s: float
    bus_bytes_per_s_low: float
    bus_bytes_per_s_high: float
    share_of_weak_step: float | None
    calls_per_window: int
    windows_s: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingSummary(Summary):
    """--mode=scaling: efficiencies, what the devices exchange, predictions."""

    efficiencies: list[dict[str, Any]]
    exchange: dict[str, Any] | None
    devices: dict[str, Any] | None
    predictions: list[dict[str, Any]]
    tokens_per_image: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySummary(Summary):
    """--mode=memory: the larger step's estimated memory on each device, and the host's."""

    planned_bytes_per_device: int | None
    private_memory_before_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dRecord(Record):
    """One convolution on a number of devices, its time in parts."""

    kind = "conv2d"
    kernel: int = column()
    channels: int = column()
    filters: int = column()
    images: int = column()
    height: int = column()
    width: int = column()
    devices: int = column()
    lower_s: float = column()
    compile_s: float = column()
    first_use_s: float = column()
    host_to_device_s: float = column()
    compute_s: float = column()
    call_s: float = column()
    device_to_host_s: float = column()
    steady_total_s: float = column()
    images_per_s: float = column()
    gflop_per_s: float = column()
    speedup: float | None = column()
    scipy_s: float | None = column()
    scipy_per_compute: float | None = column()
    scipy_per_steady_total: float | None = column()
    max_relative_error: float | None = column()
    memory: dict[str, int] | None
    samples: dict[str, list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dSummary(Summary):
    """--mode=conv2d: how many trials were measured and what they say."""

    cells: int
    findings: list[str]
