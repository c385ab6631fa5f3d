"""What the measuring modes record: throughput, input, scaling, memory and conv2d."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import Rate, Record, Summary, Utilization, Windows, figure, group


@group
class Stage(Record):
    """One stage of --mode=throughput or input, and the work of one of its steps.

    Attributes:
      stage: name of the stage.
      batch_size: global batch, in images.
      num_devices: devices that take part.
    """

    stage: str
    batch_size: int
    num_devices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputRecord(Utilization, Windows, Stage):
    """One stage of --mode=throughput: train_step, train_step_xN or forward.

    Latencies are of single steps, each waited for, in the stage train_step.

    Attributes:
      feed: where the batches come from: synthetic, resident or stream.
      precision: what the network computes in.
      images_per_s_per_device: images per second of each device.
      steps_per_call: training steps in one call of a program.
      warmup_steps: steps before the measurement.
      warmup_settled: whether throughput stabilised during warm-up.
      sync_residual_s: seconds that work continued after the windows' ends, in sum.
      images_per_step: images of a step, over all models.
      images_counted: images that the last step counted itself; must equal `images_per_step`.
      flops_per_byte: operations of a step for each byte of memory traffic that XLA counts.
      flops_per_byte_at_ridge: the same ratio at which the device's arithmetic and memory are in
        balance.
      bound_by: roofline position: arithmetic or memory.
      latency_p50_s, latency_p95_s, latency_p99_s: percentiles of a step's latency, in seconds.
      latency_steps: number of latencies measured.
      host_share: fraction of a latency that queueing steps ahead hides.
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
    """--mode=throughput; the rate is that of the stage train_step.

    Attributes:
      first_step_s: seconds of the first step, compilation excluded.
      first_loss, last_loss: loss of the first and of the last window's last step.
      loss_scale: loss scale at the end, under precision=fp16.
      skipped_steps: steps skipped for overflowing gradients, under precision=fp16.
      profile: steps that were profiled, and where the trace is.
    """

    first_step_s: float | None
    first_loss: float | None
    last_loss: float | None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    profile: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputRecord(Rate, Stage):
    """One stage of --mode=input: prepare, prepare_and_send or train_step.

    Attributes:
      windows_images_per_s: images per second of each window, in order.
      cores: processor cores that the process may use.
      images_per_s_per_core: images per second of each core; absent for the devices' stage.
      tokens_per_s: tokens per second, where images are sequences.
      windows_storage_read_bytes: bytes that storage delivered in each window; 0 where the page
        cache held everything.
    """

    kind = "input"
    windows_images_per_s: list[float]
    cores: int
    images_per_s_per_core: float | None = None
    tokens_per_s: float | None = None
    windows_storage_read_bytes: list[int | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSummary(Summary):
    """--mode=input: whether the host or the devices bound a run.

    Attributes:
      verdict: the bottleneck, in words; null unless all stages were measured.
    """

    verdict: str | None


@group
class Devices(Record):
    """Devices, and the batch that they share.

    Attributes:
      num_devices: devices that take part.
      batch_size: global batch, in images.
      batch_per_device: images of a step on each device.
    """

    num_devices: int = figure()
    batch_size: int = figure()
    batch_per_device: int = figure()


@group
class MeasuredStep(Utilization, Windows, Devices):
    """A training step measured on some devices; its rate is null where it was not measured.

    Attributes:
      precision: what the network computes in.
      images_per_step: images of a step.
      images_counted: images that the last step counted itself; must equal `images_per_step`.
      warmup_steps: steps before the measurement.
      warmup_settled: whether throughput stabilised during warm-up.
      steps: steps in all.
      status: done, or why there is no rate: oom or failed.
      reason: the error, where it is not done.
    """

    precision: str
    images_per_step: int
    images_counted: int | None
    warmup_steps: int | None
    warmup_settled: bool | None
    steps: int = figure()
    status: str = figure()
    reason: str | None = figure()


@group
class Scaled(Record):
    """How the batch follows the number of devices.

    Attributes:
      scaling: weak: each device keeps its batch. strong: the global batch is kept.
    """

    scaling: str = figure()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingRecord(MeasuredStep, Scaled):
    """A step of --mode=scaling and its efficiency against one device.

    Attributes:
      efficiency: rate on N devices over N times the rate on one.
      efficiency_low, efficiency_high: ends of its 95 % interval.
      gradient_bytes: size of the gradient that the devices exchange.
      collectives: count and bytes of each kind of collective in the compiled step.
      replicas_equal_after_steps: whether all devices hold the same state at the end, bit for bit;
        null on one device.
      unequal: names of the arrays that differ.
    """

    kind = "scaling"
    efficiency: float | None = figure()
    efficiency_low: float | None = figure()
    efficiency_high: float | None = figure()
    gradient_bytes: int
    collectives: dict[str, dict[str, int]] | None
    replicas_equal_after_steps: bool | None = figure()
    unequal: list[str] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceRecord(MeasuredStep):
    """One device alone, with its part of the batch.

    Attributes:
      device_id: the device, as JAX numbers it.
      device_kind: the device, as JAX names it.
    """

    kind = "device"
    device_id: int
    device_kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceRecord(Record):
    """The sum over devices of a buffer as large as the gradient.

    Attributes:
      num_devices: devices that take part.
      bytes: size of the buffer.
      all_reduce_s: seconds of one all-reduce, median.
      all_reduce_s_low, all_reduce_s_high: ends of its 95 % interval.
      bus_bytes_per_s: bus bandwidth: bytes that a ring sends over each link, per second.
      bus_bytes_per_s_low, bus_bytes_per_s_high: ends of its 95 % interval.
      share_of_weak_step: its time over that of the weak-scaling step on as many devices.
      calls_per_window: all-reduces in a window.
      windows_s: seconds of each window, in order.
    """

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
    """--mode=scaling: efficiencies, what the devices exchange, predictions.

    Attributes:
      efficiencies: efficiency of each measured step, with its interval.
      exchange: gradient bytes and collectives on the most devices.
      devices: how far apart single devices are, and what even and uneven splits could reach.
      predictions: estimated weak scaling on more devices.
      tokens_per_image: tokens of a sequence, where images are sequences.
    """

    efficiencies: list[dict[str, Any]]
    exchange: dict[str, Any] | None
    devices: dict[str, Any] | None
    predictions: list[dict[str, Any]]
    tokens_per_image: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySummary(Summary):
    """--mode=memory: the larger step's estimated memory on each device, and the host's.

    Attributes:
      planned_bytes_per_device: estimated memory (XLA) of the larger of the two steps.
      private_memory_before_bytes: private memory of the process on the host before the steps ran.
    """

    planned_bytes_per_device: int | None
    private_memory_before_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dRecord(Record):
    """One convolution on a number of devices, its time in parts.

    Attributes:
      kernel: side of the square kernel, in pixels.
      channels, filters: input and output channels.
      images, height, width: number of images and their size in pixels.
      devices: devices that share the images.
      lower_s, compile_s: seconds of lowering and of compiling.
      first_use_s: seconds of the first use, from placing the images to the result on the host,
        compilation included.
      host_to_device_s: seconds to place kernel and images on the devices, median.
      compute_s: seconds of a call among several queued ones, median.
      call_s: seconds of a single call that is waited for, median.
      device_to_host_s: seconds to fetch the result, median.
      steady_total_s: host to device, compute and device to host together.
      images_per_s: images per second of the computation alone.
      gflop_per_s: 1e9 floating-point operations per second of the computation alone.
      speedup: compute time on one device over this one.
      scipy_s: seconds that SciPy takes on one CPU thread, median.
      scipy_per_compute, scipy_per_steady_total: SciPy's time over `compute_s` and `steady_total_s`.
      max_relative_error: largest difference from SciPy's result, relative to its largest value.
      memory: bytes by the compiler's estimate.
      samples: every single measurement, by part.
    """

    kind = "conv2d"
    kernel: int = figure()
    channels: int = figure()
    filters: int = figure()
    images: int = figure()
    height: int = figure()
    width: int = figure()
    devices: int = figure()
    lower_s: float = figure()
    compile_s: float = figure()
    first_use_s: float = figure()
    host_to_device_s: float = figure()
    compute_s: float = figure()
    call_s: float = figure()
    device_to_host_s: float = figure()
    steady_total_s: float = figure()
    images_per_s: float = figure()
    gflop_per_s: float = figure()
    speedup: float | None = figure()
    scipy_s: float | None = figure()
    scipy_per_compute: float | None = figure()
    scipy_per_steady_total: float | None = figure()
    max_relative_error: float = figure()
    memory: dict[str, int] | None
    samples: dict[str, list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dSummary(Summary):
    """--mode=conv2d: how many trials were measured and what they say.

    Attributes:
      cells: number of trials.
      findings: conclusions, in words.
    """

    cells: int
    findings: list[str]
