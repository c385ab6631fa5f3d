"""How much memory and cache a device has, by which the micro-benchmarks size their arrays."""

import jax
import psutil

from jaxbench.hardware.system import last_level_cache_bytes
from jaxbench.hardware.targets.target import l2_bytes


def memory_bytes(device: jax.Device) -> int:
    """Return the memory that one device may use; simulated devices share the host's."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    own = [other for other in jax.local_devices() if other.platform == device.platform]
    return psutil.virtual_memory().available // len(own)


def cache_bytes(device: jax.Device) -> int | None:
    """Return the size of the last cache before the memory; None where it is unknown."""
    if device.platform == "cpu":
        return last_level_cache_bytes()
    return l2_bytes(device.device_kind)
