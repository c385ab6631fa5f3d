"""Compare a rate with the peak of the devices."""

from typing import Any

import jax

from jaxbench.distributed.mesh import DataMesh
from jaxbench.hardware.peaks import find_peak


def utilization(
    mesh: DataMesh, precision: str, images_per_s: float, flops_per_image: int
) -> dict[str, Any]:
    """Return the model FLOPs utilization (MFU) of a rate; None where the peak is unknown.

    Args:
      mesh: the devices.
      precision: the experiment's.
      images_per_s: over all devices.
      flops_per_image: floating-point operations that the network itself needs.
    """
    flops_per_s = images_per_s * flops_per_image / mesh.num_devices
    kinds = {device.device_kind for device in mesh.devices}
    peak = None
    if len(kinds) == 1:
        matmul_precision = jax.config.jax_default_matmul_precision
        peak = find_peak(kinds.pop(), precision, matmul_precision)
    return {
        "flops_per_image": flops_per_image,
        "flops_per_s_per_device": flops_per_s,
        "mfu": flops_per_s / peak.flops_per_s if peak else None,
        "peak": peak._asdict() if peak else None,
    }
