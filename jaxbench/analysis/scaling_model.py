"""Scaling efficiency, and predictions of it: arithmetic on measured rates."""

from collections.abc import Sequence
from typing import Any

from jaxbench.analysis.rate import Estimate, apart, of_windows


def efficiency(num_devices: int, rate: Estimate | None, base: Estimate | None) -> Estimate:
    """Return rate_N / (N x rate_1), and the limits that the two intervals set to it.

    Args:
      num_devices: N.
      rate: images/s on N devices; None if it was not measured.
      base: images/s on one device: with the same batch per device for weak scaling, the same
        global batch for strong. None if it was not measured.
    """
    if not (rate and rate.value and base and base.value):
        return Estimate()
    if num_devices == 1:  # the same windows
        return Estimate(1.0, 1.0, 1.0)
    if not (rate.interval and base.interval):
        return Estimate(rate.value / (num_devices * base.value))
    (low, high), (base_low, base_high) = rate.interval, base.interval
    ends = (rate.value, base.value), (low, base_high), (high, base_low)
    value, low, high = (own / (num_devices * other) for own, other in ends)
    return Estimate(value, low, high)


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
        "differ": apart(*(of_windows(one, "images_per_s") for one in (slowest, fastest))) == 1,
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
