"""Scaling efficiency, and predictions of it: arithmetic on measured rates."""

import math
from collections.abc import Sequence
from typing import Any

# A median and the ends of its 95 % interval, see `median_interval`; too few samples have no ends.
Interval = tuple[float, float | None, float | None]


def efficiency(num_devices: int, rate: Interval | None, base: Interval | None) -> dict[str, Any]:
    """Return rate_N / (N x rate_1), and the limits that the two intervals set to it.

    Args:
      num_devices: N.
      rate: images/s on N devices; None if it was not measured.
      base: images/s on one device: with the same batch per device for weak scaling, the same
        global batch for strong. None if it was not measured.
    """
    is_measured = base is not None and rate is not None
    if not is_measured or num_devices == 1:  # the same windows
        names = ("efficiency", "efficiency_low", "efficiency_high")
        return dict.fromkeys(names, 1.0 if is_measured else None)
    is_known = None not in (*rate, *base)
    return {
        "efficiency": rate[0] / (num_devices * base[0]),
        "efficiency_low": rate[1] / (num_devices * base[2]) if is_known else None,
        "efficiency_high": rate[2] / (num_devices * base[1]) if is_known else None,
    }


def split(alone: Sequence[Any]) -> dict[str, Any]:
    """Return how much the devices differ, and the best rates of an even and an uneven split.

    Args:
      alone: the record of each device, measured alone with an even split's part of the batch.
    """
    slowest = min(alone, key=lambda device: device.images_per_s)
    fastest = max(alone, key=lambda device: device.images_per_s)
    names = ("device_id", "device_kind", "step_s")
    return {
        "slowest": {name: getattr(slowest, name) for name in names},
        "fastest": {name: getattr(fastest, name) for name in names},
        "slowest_over_fastest": slowest.step_s / fastest.step_s,
        # Whether that is more than noise.
        "differ": (slowest.images_per_s_high or math.inf) < (fastest.images_per_s_low or 0.0),
        # All wait for the slowest, and exchanging costs nothing.
        "even_split_images_per_s": len(alone) * slowest.batch_size / slowest.step_s,
        # Each has as much as it can do.
        "uneven_split_images_per_s": sum(device.images_per_s for device in alone),
    }


def ring_bytes(num_devices: int, size: float) -> float:
    """Return how many bytes each link of a ring carries to sum `size` bytes over the devices."""
    return 2 * (num_devices - 1) / num_devices * size


def bus_factor(operation: str, num_devices: int) -> float:
    """Return bus bandwidth / algorithm bandwidth, as nccl-tests has it."""
    if operation == "exchange":
        return 1.0
    if operation == "all_reduce":
        return ring_bytes(num_devices, 1.0)
    return (num_devices - 1) / num_devices


def predict(
    num_devices: int,
    *,
    step_s: float,
    batch_per_device: int,
    gradient_bytes: int,
    link_bytes_per_s: float,
    link_source: str,
) -> dict[str, Any]:
    """Predict weak scaling from one device's step and a ring all-reduce of its gradient.

    Returns:
      The assumptions in words, and the step's time, rate and efficiency if nothing of the
      all-reduce overlaps with the step (`no_overlap`) and if as much as possible does
      (`full_overlap`). The truth lies between them if the assumptions hold.
    """
    all_reduce_s = ring_bytes(num_devices, gradient_bytes) / link_bytes_per_s
    record: dict[str, Any] = {
        "prediction": True,
        "scaling": "weak",
        "num_devices": num_devices,
        "batch_per_device": batch_per_device,
        "one_device_step_s": step_s,
        "gradient_bytes": gradient_bytes,
        "link_bytes_per_s": link_bytes_per_s,
        "link_source": link_source,
        "all_reduce_s": all_reduce_s,
        "assumptions": (
            "every device takes as long for its share as the one measured alone; one ring "
            "all-reduce of the gradient a step, 2 (n - 1) / n of its bytes over every link at the "
            "whole bandwidth, no latency; every link alike, between hosts too; the input keeps up"
        ),
    }
    steps_s = {"no_overlap": step_s + all_reduce_s, "full_overlap": max(step_s, all_reduce_s)}
    for overlap, predicted_s in steps_s.items():
        record |= {
            f"step_s_{overlap}": predicted_s,
            f"images_per_s_{overlap}": num_devices * batch_per_device / predicted_s,
            f"efficiency_{overlap}": step_s / predicted_s,
        }
    return record
