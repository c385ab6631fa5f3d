"""The most images/s that a machine can reach: what its arithmetic, memory and links allow."""

from typing import Any

from jaxbench.analysis.scaling_model import ring_bytes

ASSUMPTIONS = (
    "the network's own arithmetic at the peak rate, without gradients that no update needs and "
    "without what a causal mask spares cuDNN's attention; in fp32 on GPUs convolutions with as few "
    "multiplications as a Fourier transform leaves, outside of tensor cores; arguments are read, "
    "results written but for the state that replaces the old one, and what is alive at once beyond "
    "the L2 cache is written to memory and read again, all at the full bandwidth, on a TPU with "
    "the padding of tiles; collectives over a ring at the full bandwidth of the links, between "
    "hosts too; all three at the same time, and nothing else"
)


def least_traffic(memory: dict[str, int], uncached_bytes: int, cache_bytes: int) -> int:
    """Return the bytes that a step must at least move between memory and cores of a device.

    Args:
      memory: what the compiler plans, see `CompileRecord`. All temporaries are alive at one moment:
        of them the cache holds `cache_bytes`, the rest was written and will be read.
      uncached_bytes: what arrays larger than the cache make it move, see `count_work`.
      cache_bytes: the size of the cache.
    """
    new_bytes = memory["output_bytes"] - memory["alias_bytes"]
    spilled_bytes = max(0, memory["temporary_bytes"] - cache_bytes)
    return max(uncached_bytes, memory["argument_bytes"] + new_bytes + 2 * spilled_bytes)


def all_reduced_bytes(collectives: dict[str, dict[str, int]], num_devices: int) -> float:
    """Return how many bytes all-reduces would sum that load a ring as much as these collectives.

    An all-reduce is a reduce-scatter and an all-gather of its parts.

    Args:
      collectives: see `count_collectives`.
      num_devices: how many devices take part.
    """
    loads = {"reduce-scatter": 0.5, "all-gather": 0.5 * num_devices}
    return sum(count["bytes"] * loads.get(kind, 1.0) for kind, count in collectives.items())


def ceiling(
    *,
    images_per_step: int,
    flops_per_device: float,
    bytes_per_device: float,
    exchanged_bytes: float,
    num_devices: int,
    peak_flops_per_s: float | None,
    memory_bytes_per_s: float | None,
    link_bytes_per_s: float | None,
) -> dict[str, Any]:
    """Return the ceiling of a step, predicted from its sizes and a machine's peak rates.

    Args:
      images_per_step: of all devices.
      flops_per_device, bytes_per_device: arithmetic and memory traffic of a step on each device.
      exchanged_bytes: what each device's all-reduces sum, see `all_reduced_bytes`.
      num_devices: how many devices take part.
      peak_flops_per_s, memory_bytes_per_s, link_bytes_per_s: of one device; None if unknown.

    Returns:
      `least_s`: the least time of a step by `compute`, `memory` and `links`, those that are known;
      `bound_by`: which of them takes longest; `images_per_s`: the ceiling. Without a peak of the
      arithmetic the last two are None: it may well be what binds.
    """
    least_s = {}
    if peak_flops_per_s:
        least_s["compute"] = flops_per_device / peak_flops_per_s
    if memory_bytes_per_s:
        least_s["memory"] = bytes_per_device / memory_bytes_per_s
    if num_devices > 1 and link_bytes_per_s:
        least_s["links"] = ring_bytes(num_devices, exchanged_bytes) / link_bytes_per_s
    bound_by = max(least_s, key=least_s.get) if "compute" in least_s else None
    return {
        "least_s": least_s,
        "bound_by": bound_by,
        "images_per_s": images_per_step / least_s[bound_by] if bound_by else None,
        "assumptions": ASSUMPTIONS,
    }
