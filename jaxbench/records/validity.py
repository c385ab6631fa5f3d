"""Sanity checks: which figures cannot be true."""

import math
from collections.abc import Iterable, Mapping

from jaxbench.records.schema import DeviceRecord, EpochRecord, ScalingRecord, ThroughputRecord

_ROUNDING = 1e-6
# A job adds its phases up a moment before it reads the whole time.
_UNACCOUNTED, _UNACCOUNTED_S = 0.001, 0.05
# What share of its windows a stage's work may go on after them: the check itself takes a little.
_LATE = 0.05


def impossible(record: ThroughputRecord | ScalingRecord | DeviceRecord) -> list[str]:
    """Return why a measured rate cannot be true, one reason an entry; none if it can."""
    rate = record.images_per_s
    if not (math.isfinite(rate) and rate > 0):
        return [f"images_per_s is {rate}"]
    reasons = []
    if not record.images_per_s_low <= rate <= record.images_per_s_high:
        reasons.append("images_per_s lies outside its own interval")
    if isinstance(record, ThroughputRecord):
        reasons += _impossible_times(record)
    if record.images_counted not in (None, record.images_per_step):
        reasons.append(
            f"a step counted {record.images_counted} images, its batch holds "
            f"{record.images_per_step}"
        )
    mfu = record.mfu
    if mfu is not None and mfu > 1:
        reasons.append(f"{mfu:.0%} of what {record.peak['kind']} can do at most")
    return reasons


def _impossible_times(record: ThroughputRecord) -> list[str]:
    reasons = []
    percentiles_s = [record.latency_p50_s, record.latency_p95_s, record.latency_p99_s]
    latencies_s = [latency_s for latency_s in percentiles_s if latency_s is not None]
    if latencies_s != sorted(latencies_s):
        reasons.append(f"latencies p50, p95, p99 do not rise: {latencies_s}")
    # Queueing ahead can only hide time: a step closed alone takes no less than one in a row of
    # steps. Windows and latencies are measured in turns, and noise may do a third.
    if latencies_s and latencies_s[0] < record.step_s / 1.5:
        reasons.append(
            f"a step closed alone takes {latencies_s[0]:.6f} s, in a row {record.step_s:.6f} s"
        )
    windows_s = sum(record.windows_s)
    if record.sync_residual_s > _LATE * windows_s + _UNACCOUNTED_S:
        reasons.append(
            f"its work went on for {record.sync_residual_s:.3f} s after windows of "
            f"{windows_s:.3f} s"
        )
    return reasons


def impossible_epoch(record: EpochRecord, images: int, corrupt: int = 0) -> list[str]:
    """Return why a training epoch's record cannot be true.

    Args:
      record: the epoch.
      images: places for images in its timed steps.
      corrupt: how many images at most were left out.
    """
    reasons = []
    epoch = f"epoch {record.epoch}"
    if not images - corrupt <= record.images <= images:
        reasons.append(f"{epoch}: {record.images} images trained in steps of {images}")
    parts_s = record.train_time_s + record.eval_time_s
    if record.epoch_time_s < parts_s * (1 - _ROUNDING):
        reasons.append(f"{epoch}: took {record.epoch_time_s} s, its parts {parts_s} s")
    if record.data_wait_s > record.epoch_time_s * (1 + _ROUNDING):
        reasons.append(f"{epoch}: more time spent waiting for data than there was")
    if record.mfu is not None and record.mfu > 1:
        reasons.append(f"{epoch}: {record.mfu:.0%} of what the devices can do at most")
    return reasons


def impossible_phases(phases_s: Mapping[str, float] | None, wall_s: float | None) -> list[str]:
    """Return why a job's account of its time cannot be true: its phases are not the whole."""
    if phases_s is None or wall_s is None:
        return []
    parts_s = sum(phases_s.values())
    if abs(parts_s - wall_s) <= _UNACCOUNTED * wall_s + _UNACCOUNTED_S:
        return []
    return [f"the phases take {parts_s:.3f} s together, the whole run {wall_s:.3f} s"]


def impossible_total(epoch_times_s: Iterable[float], wall_s: float) -> list[str]:
    """Return why a whole run's time cannot be true: its epochs took longer than it."""
    parts_s = sum(epoch_times_s)
    if parts_s > wall_s * (1 + _ROUNDING):
        return [f"the epochs took {parts_s} s, the whole run {wall_s} s"]
    return []
