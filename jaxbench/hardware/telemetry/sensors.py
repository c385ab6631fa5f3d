"""What no sensor can read: beyond these bounds a driver, a register or a file is wrong."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from jaxbench.hardware.peak_table import accelerator_limit

# Owners, and makers of GeForce boards (450 W for the 320 W of an RTX 3080), raise the power limit.
_RAISED = 1.5
# Chips switch off at 125 degrees C. A board that computes takes power, and its clocks run.
_BOUNDS = {
    **dict.fromkeys(("load_percent", "cpu_percent", "other_cpu_percent"), (0, 100.5)),
    "fan_percent": (0, 200),
    "memory_used_bytes": (0, 2**50),
    "memory_total_bytes": (1, 2**50),
    "rss_bytes": (1, 2**50),
    "sm_clock_mhz": (1, 6500),
    "memory_clock_mhz": (1, 50_000),
    "temperature_c": (-20, 125),
    "energy_j": (0, 1e13),
    "load_1min": (0, 1e6),
}


@functools.cache
def bounds(sensor: str, device_kind: str | None = None) -> tuple[float, float]:
    """Return the least and the most that a sensor of a device can read."""
    if sensor == "power_w":
        return 0.1, _RAISED * accelerator_limit("w", device_kind)
    return _BOUNDS.get(sensor, (-math.inf, math.inf))


def impossible(values: Mapping[str, Any], device_kind: str | None = None) -> list[str]:
    """Return the names of the numbers that cannot be what a device's sensors read together."""
    total_bytes = values.get("memory_total_bytes", math.inf)
    return [
        name
        for name, value in values.items()
        if (name in _BOUNDS or name == "power_w")
        and not (
            (ends := bounds(name, device_kind))[0] <= value <= ends[1]
            and (name != "memory_used_bytes" or value <= total_bytes)
        )
    ]
