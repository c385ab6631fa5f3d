"""What more devices are worth, and what still more would be: arithmetic on measured rates."""

from collections.abc import Mapping, Sequence
from typing import Any


def label(record: Mapping[str, Any]) -> str:
    """Returns what tells a `scaling` or `device` record from the others, for people."""
    if record["kind"] == "device":
        return f"device {record['device_id']}"
    return f"{record['scaling']}, {record['num_devices']} device(s)"


def efficiency(
    record: Mapping[str, Any], base: Mapping[str, Any] | None
) -> dict[str, float | None]:
    """Returns rate_N / (N x rate_1), and from where to where the two intervals let it lie.

    Args:
      record: `num_devices` and a rate with its interval; null where it was not measured.
      base: the same on one device: with the same batch per device for weak scaling, the same
        global batch for strong. None where it was not measured.
    """
    if base is None or record["images_per_s"] is None:
        return dict.fromkeys(("efficiency", "efficiency_low", "efficiency_high"))
    count = record["num_devices"]
    if count == 1:  # the same windows
        return dict.fromkeys(("efficiency", "efficiency_low", "efficiency_high"), 1.0)
    return {
        "efficiency": record["images_per_s"] / (count * base["images_per_s"]),
        "efficiency_low": record["images_per_s_low"] / (count * base["images_per_s_high"]),
        "efficiency_high": record["images_per_s_high"] / (count * base["images_per_s_low"]),
    }


def efficiency_warnings(scaled: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say of `scaling` records whose whole interval lies above 100 %."""
    return [
        f"{label(record)}: an efficiency of {record['efficiency']:.1%}, "
        f"{record['efficiency_low']:.1%} at least: more than 100 % is seldom true, look for what "
        "held the single device up"
        for record in scaled
        if record["efficiency_low"] is not None and record["efficiency_low"] > 1
    ]


def split(alone: Sequence[Mapping[str, Any]], share: int) -> dict[str, Any]:
    """Says how far apart the devices are, and what any split of the batch can come to at best.

    Args:
      alone: a `device` record of every device, each with `share` images to itself.
      share: images of each device where the batch is split evenly.
    """
    slowest = min(alone, key=lambda record: record["images_per_s"])
    fastest = max(alone, key=lambda record: record["images_per_s"])
    return {
        "slowest": {name: slowest[name] for name in ("device_id", "device_kind", "step_s")},
        "fastest": {name: fastest[name] for name in ("device_id", "device_kind", "step_s")},
        "slowest_over_fastest": slowest["step_s"] / fastest["step_s"],
        # Whether that is more than noise.
        "differ": slowest["images_per_s_high"] < fastest["images_per_s_low"],
        # All wait for the slowest, and exchanging costs nothing.
        "even_split_images_per_s": len(alone) * share / slowest["step_s"],
        # Each has as much as it can do.
        "uneven_split_images_per_s": sum(record["images_per_s"] for record in alone),
    }


def ring_bytes(num_devices: int, size: float) -> float:
    """Returns how many bytes each link of a ring carries to sum `size` bytes over the devices."""
    return 2 * (num_devices - 1) / num_devices * size


def predict(
    num_devices: int,
    *,
    step_s: float,
    batch_per_device: int,
    gradient_bytes: int,
    link_bytes_per_s: float,
    link_source: str,
) -> dict[str, Any]:
    """Predicts weak scaling from one device's step and a ring all-reduce of its gradient.

    Returns:
      What is reckoned with, in words, and the step, rate and efficiency with nothing of the
      all-reduce hidden behind the step (`no_overlap`) and with as much as can be
      (`full_overlap`): the truth lies between them as far as the assumptions hold.
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
