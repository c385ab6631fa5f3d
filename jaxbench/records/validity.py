"""Which figures cannot be true."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_ROUNDING = 1e-6
# What a job's phases may differ from the whole by: they are added up a moment before it.
_UNACCOUNTED, _UNACCOUNTED_S = 0.001, 0.05
# The share of its windows that a stage's work may go on after them: looking takes a little itself.
_LATE = 0.05


def impossible(record: Mapping[str, Any]) -> list[str]:
    """Returns why a `throughput` record cannot be true, one reason an entry; none if it can."""
    reasons = []
    rate = record["images_per_s"]
    if not (math.isfinite(rate) and rate > 0):
        reasons.append(f"images_per_s is {rate}")
        return reasons
    if not record["images_per_s_low"] <= rate <= record["images_per_s_high"]:
        reasons.append("images_per_s lies outside its own interval")
    latencies_s = [record[f"latency_{p}_s"] for p in ("p50", "p95", "p99") if _has(record, p)]
    if latencies_s != sorted(latencies_s):
        reasons.append(f"latencies p50, p95, p99 do not rise: {latencies_s}")
    # Queueing ahead can only hide time: a step closed by itself takes no less than one in a row
    # of steps. Windows and latencies are measured in turns, and noise may do a third.
    if latencies_s and latencies_s[0] < record["step_s"] / 1.5:
        reasons.append(
            f"a step by itself takes {latencies_s[0]:.6f} s, in a row {record['step_s']:.6f} s"
        )
    sync_residual_s = record.get("sync_residual_s")
    if (
        sync_residual_s is not None
        and sync_residual_s > _LATE * sum(record["windows_s"]) + _UNACCOUNTED_S
    ):
        reasons.append(
            f"its work went on for {sync_residual_s:.3f} s after windows of "
            f"{sum(record['windows_s']):.3f} s"
        )
    if record.get("images_counted") not in (None, record.get("images_per_step")):
        reasons.append(
            f"a step counted {record['images_counted']} images, its batch holds "
            f"{record['images_per_step']}"
        )
    mfu = record.get("mfu")
    if mfu is not None and mfu > 1:
        reasons.append(f"{mfu:.0%} of what {record['peak']['kind']} can do at most")
    return reasons


def impossible_epoch(record: Mapping[str, Any], images: int, corrupt: int = 0) -> list[str]:
    """Returns why a training epoch's record cannot be true.

    Args:
      record: of kind `epoch`.
      images: that its timed steps have places for.
      corrupt: so many at most were left out.
    """
    reasons = []
    epoch = f"epoch {record['epoch']}"
    if not images - corrupt <= record["images"] <= images:
        reasons.append(f"{epoch}: {record['images']} images trained in steps of {images}")
    parts_s = record["train_time_s"] + record["eval_time_s"]
    if record["epoch_time_s"] < parts_s * (1 - _ROUNDING):
        reasons.append(f"{epoch}: took {record['epoch_time_s']} s, its parts {parts_s} s")
    if record["data_wait_s"] > record["epoch_time_s"] * (1 + _ROUNDING):
        reasons.append(f"{epoch}: more time spent waiting for data than there was")
    if record["mfu"] is not None and record["mfu"] > 1:
        reasons.append(f"{epoch}: {record['mfu']:.0%} of what the devices can do at most")
    return reasons


def impossible_phases(summary: Mapping[str, Any]) -> list[str]:
    """Returns why a job's account of its time cannot be true: its phases are not the whole."""
    if "phases_s" not in summary:
        return []
    parts_s, wall_s = sum(summary["phases_s"].values()), summary["wall_s"]
    if abs(parts_s - wall_s) <= _UNACCOUNTED * wall_s + _UNACCOUNTED_S:
        return []
    return [f"the phases take {parts_s:.3f} s together, the whole run {wall_s:.3f} s"]


def impossible_total(epochs: Sequence[Mapping[str, Any]], wall_s: float) -> list[str]:
    """Returns why a whole run's time cannot be true: the epochs took longer than it all."""
    parts_s = sum(record["epoch_time_s"] for record in epochs)
    if parts_s > wall_s * (1 + _ROUNDING):
        return [f"the epochs took {parts_s} s, the whole run {wall_s} s"]
    return []


def _has(record: Mapping[str, Any], percentile: str) -> bool:
    return record.get(f"latency_{percentile}_s") is not None
