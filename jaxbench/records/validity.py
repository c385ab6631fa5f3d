"""Sanity checks: which figures cannot be true."""

import math
from collections.abc import Mapping

from jaxbench.schema import (
    CompileRecord,
    DeviceRecord,
    EpochRecord,
    ScalingRecord,
    ThroughputRecord,
)

# A compiled step leaves work out if it has less than this share of what is claimed. It has less
# than all: no gradient of the images is computed, and padding pixels are not multiplied.
_LEFT_OUT = 1 / 3
# Clocks disagree if they are apart by more than this share of the time, and more seconds.
_CLOCK_SHARE, _CLOCK_S = 0.02, 1.0
# After its windows a stage may work on for this fraction of their time plus these seconds: the
# check itself takes a little.
_LATE, _LATE_S = 0.05, 0.05


def impossible(
    record: ThroughputRecord | ScalingRecord | DeviceRecord, limit: float = math.inf
) -> list[str]:
    """Return why a measured rate cannot be true, one reason an entry; none if it can.

    No device computes more than `limit` FLOP/s.
    """
    rate = record.images_per_s
    if rate is None or not (math.isfinite(rate) and rate > 0):
        return [f"images_per_s is {rate}"]
    reasons = _impossible_times(record, rate) if isinstance(record, ThroughputRecord) else []
    if record.images_counted not in (None, record.images_per_step):
        reasons.append(
            f"a step counted {record.images_counted} images, its batch holds "
            f"{record.images_per_step}"
        )
    if record.peak and record.mfu and record.mfu > 1:
        reasons.append(f"{record.mfu:.0%} of what {record.peak['kind']} can do at most")
    return reasons + impossible_arithmetic(record.flops_per_s_per_device, limit)


def impossible_arithmetic(flops_per_s: float | None, limit: float) -> list[str]:
    """Return why a device's FLOP/s, by the network's multiply-accumulates, cannot be true."""
    if flops_per_s is None or flops_per_s <= limit:
        return []
    return [
        f"{flops_per_s / 1e12:,.2f} TFLOP/s on a device by the network's own arithmetic, no such "
        f"device does more than {limit / 1e12:,.2f}: the compiled step leaves work out, or the "
        "clock is wrong"
    ]


def _impossible_times(record: ThroughputRecord, rate: float) -> list[str]:
    reasons, latency_s = [], record.latency_p50_s
    # Queueing ahead can only hide time: a step closed alone takes no less than one in a row of
    # steps. Windows and latencies are measured in turns, and noise may do a third; on a busy host
    # it does more, which the interval of the windows shows.
    least_s = (record.step_s or 0) * rate / max(rate, record.images_per_s_high or 0)
    if latency_s is not None and latency_s < least_s / 1.5:
        reasons.append(
            f"a step closed alone takes {latency_s:.6f} s, in a row {record.step_s:.6f} s"
        )
    windows_s = sum(record.windows_s or ())
    if record.sync_residual_s > _LATE * windows_s + _LATE_S:
        reasons.append(
            f"its work went on for {record.sync_residual_s:.3f} s after windows of "
            f"{windows_s:.3f} s"
        )
    return reasons


def impossible_epoch(record: EpochRecord, images: int) -> list[str]:
    """Return why the record of an epoch, whose timed steps have `images`, cannot be true."""
    reasons = []
    epoch = f"epoch {record.epoch}"
    if record.images != images:
        reasons.append(f"{epoch}: {record.images} images trained in steps of {images}")
    if record.mfu is not None and record.mfu > 1:
        reasons.append(f"{epoch}: {record.mfu:.0%} of what the devices can do at most")
    return reasons


def missing_arithmetic(record: CompileRecord, flops: float) -> list[str]:
    """Return the warning that a compiled step has far less arithmetic than its rates are judged by.

    The network's own multiply-accumulates are `flops` operations for each device and call.
    """
    compiled_flops = record.xla_flops_per_device
    if compiled_flops is None or not 0 < compiled_flops < _LEFT_OUT * flops:
        return []
    return [
        f"the compiled {record.function} does {compiled_flops:.3g} FLOPs on each device, the "
        f"network's own arithmetic is {flops:.3g}: XLA removed what no result depends on; rates, "
        "FLOP/s and MFU are not those of this network"
    ]


def clock_disagreements(elapsed_s: Mapping[str, float]) -> list[str]:
    """Return the warning that `run`, `date` and `uptime`, which may be absent, disagree."""
    run_s = elapsed_s["run"]
    disagreeing = {
        name: f"{name} {other_s:.1f} s"
        for name, other_s in elapsed_s.items()
        if abs(other_s - run_s) > max(_CLOCK_S, _CLOCK_SHARE * max(run_s, other_s))
    }
    if not disagreeing:
        return []
    counted = f"the run's clock counted {run_s:.1f} s, {', '.join(disagreeing.values())}"
    if list(disagreeing) == ["date"] and "uptime" in elapsed_s:
        return [f"{counted}: the date was set meanwhile; times of day are wrong, durations hold"]
    return [
        f"{counted}: the machine was suspended or a clock is wrong; rates and times cannot be "
        "trusted"
    ]
