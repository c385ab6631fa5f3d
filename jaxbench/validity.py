"""Which figures cannot be true."""

import math
from collections.abc import Mapping
from typing import Any


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
    mfu = record.get("mfu")
    if mfu is not None and mfu > 1:
        reasons.append(f"{mfu:.0%} of what {record['peak']['kind']} can do at most")
    return reasons


def _has(record: Mapping[str, Any], percentile: str) -> bool:
    return record.get(f"latency_{percentile}_s") is not None
