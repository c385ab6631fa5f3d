"""The conclusions of --mode=scaling from its records: predictions, failed checks, warnings."""

from collections.abc import Sequence
from typing import Any

import jax

from jaxbench.analysis.scaling_model import predict
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.system import available_cores
from jaxbench.records.schema import AllReduceRecord, CompileRecord, DeviceRecord, ScalingRecord
from jaxbench.records.validity import impossible

PREDICTED_DEVICES = (8, 64, 256, 1024)
NOTHING_PREDICTED = (
    "nothing is predicted: predictions take an all-reduce of the gradient, "
    "and parallelism=fsdp exchanges shards"
)


def efficiencies(scaled: Sequence[ScalingRecord]) -> list[dict[str, Any]]:
    """Return the figures of each record that a summary repeats."""
    names = ("scaling", "num_devices", "batch_size", "images_per_s")
    names += ("efficiency", "efficiency_low", "efficiency_high")
    return [{name: getattr(record, name) for name in names} for record in scaled]


def exchange(compiled: Sequence[CompileRecord], gradient_bytes: int) -> dict[str, Any] | None:
    """Return what the compiled step on most devices exchanges, beside the gradient's size."""
    told = [record for record in compiled if record.collectives is not None]
    if not told:
        return None
    most = max(told, key=lambda record: record.num_devices)
    figures = {"num_devices": most.num_devices, "gradient_bytes": gradient_bytes}
    return figures | {"collectives": most.collectives}


def predictions(
    alone: Sequence[DeviceRecord],
    all_reduces: Sequence[AllReduceRecord],
    first: jax.Device,
    gradient_bytes: int,
    link_gb_per_s: float | None,
) -> list[dict[str, Any]]:
    """Predict weak scaling beyond the devices that are here, from the first device's step.

    Args:
      alone: the devices that were measured alone.
      all_reduces: the last one is over most devices.
      link_gb_per_s: the links' stated bandwidth; None takes what the last all-reduce used.

    Returns:
      See `predict`; nothing where the step or the bandwidth is unknown.
    """
    if link_gb_per_s is not None:
        link_bytes_per_s, source = link_gb_per_s * 1e9, "stated (--link_gb_per_s)"
    elif all_reduces:
        link_bytes_per_s = all_reduces[-1].bus_bytes_per_s
        source = (
            f"measured: bus bandwidth of an all-reduce over {all_reduces[-1].num_devices} "
            f"{first.device_kind} devices"
        )
    else:
        return []
    if not alone or alone[0].device_id != first.id:
        return []
    return [
        predict(
            count,
            step_s=alone[0].step_s,
            batch_per_device=alone[0].batch_size,
            gradient_bytes=gradient_bytes,
            link_bytes_per_s=link_bytes_per_s,
            link_source=source,
        )
        for count in PREDICTED_DEVICES
    ]


def failed_checks(
    records: Sequence[ScalingRecord | DeviceRecord], devices: Sequence[jax.Device]
) -> list[str]:
    """Return which rates of some of the devices fail a sanity check, and which replicas differ."""
    reasons = []
    for record in records:
        if record.images_per_s is not None:
            limit = flops_limit(devices[: record.num_devices])
            reasons += [f"{_label(record)}: {why}" for why in impossible(record, limit)]
    for record in records:
        if isinstance(record, ScalingRecord) and record.unequal:
            reasons.append(
                f"{_label(record)}: after {record.steps} steps the replicas differ in "
                f"{len(record.unequal)} arrays, the first of them {record.unequal[0]}"
            )
    return reasons


def device_warnings(devices: Sequence[jax.Device]) -> list[str]:
    """Return what the devices themselves leave open."""
    if len(devices) == 1:
        return ["one device: nothing was scaled"]
    if devices[0].platform != "cpu":
        return []
    return [
        f"these {len(devices)} devices are simulated and share {available_cores()} processor "
        "core(s): efficiencies, bandwidths and predictions say nothing about accelerators"
    ]


def efficiency_warnings(scaled: Sequence[ScalingRecord]) -> list[str]:
    """Return the warnings about efficiencies whose whole interval is above 100 %."""
    return [
        f"{_label(record)}: an efficiency of {record.efficiency:.1%}, "
        f"{record.efficiency_low:.1%} at least: more than 100 % is seldom true, look for what "
        "held the single device up"
        for record in scaled
        if record.efficiency_low is not None and record.efficiency_low > 1
    ]


def _label(record: ScalingRecord | DeviceRecord) -> str:
    if isinstance(record, DeviceRecord):
        return f"device {record.device_id}"
    return f"{record.scaling}, {record.num_devices} device(s)"
