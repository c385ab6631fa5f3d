"""Compare a rate with the peak of its devices, see `peak_table.py`, and with what cannot be."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax

from jaxbench.hardware.peak_table import accelerator_limit, cpu_flops_limit, find_peak
from jaxbench.hardware.system import search_file
from jaxbench.parallel.mesh import DataMesh


def utilization(
    mesh: DataMesh, precision: str, images_per_s: float, flops_per_image: int
) -> dict[str, Any]:
    """Return the model FLOPs utilization (MFU) of a rate; None if the peak is unknown.

    Images are those of all devices, operations those that the network itself needs.
    """
    flops_per_s = images_per_s * flops_per_image / mesh.num_devices
    kind, *others = {device.device_kind for device in mesh.devices}
    matmul_precision = jax.config.values["jax_default_matmul_precision"]
    peak = None if others else find_peak(kind, precision, matmul_precision)
    return {
        "flops_per_image": flops_per_image,
        "flops_per_s_per_device": flops_per_s,
        "mfu": flops_per_s / peak.flops_per_s if peak else None,
        "peak": peak._asdict() if peak else None,
    }


def flops_limit(devices: Sequence[jax.Device]) -> float:
    """Return the FLOP/s that no device can exceed while it runs with the others, in any precision.

    It is an upper bound for sanity checks, far above any peak. CPU devices share one processor.
    """
    if devices[0].platform == "cpu":
        sharing = sum(device.process_index == devices[0].process_index for device in devices)
        return cpu_flops_limit(os.cpu_count() or 1, _cpu_flags()) / sharing
    return 1e12 * accelerator_limit("tflops")


@functools.cache
def _cpu_flags() -> list[str]:
    """Return the processor's flags, on x86 `flags`, on ARM `Features`; [] if Linux names none."""
    return (search_file("/proc/cpuinfo", r"^(?:flags|Features)\s*:(.*)$") or "").split()
