"""Look up the peak rates of devices in `peaks.csv`, and compare a rate with them.

Peaks are as the makers publish them: for dense matrices with fp32 accumulation, at the boost clock
that the maker names.
"""

import csv
import functools
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxbench.distributed.mesh import DataMesh

_TABLE = pathlib.Path(__file__).with_name("peaks.csv")
# No processor has a faster clock; and what a core of one can do in a cycle at most, by its flags in
# /proc/cpuinfo: AMX tiles in bf16, two AVX-512 units with dot products in bf16, two AVX2 units.
_CPU_HZ = 6.5e9
_FLOPS_PER_CYCLE = {"amx_tile": 2048, "sve": 256, "avx512f": 128, "fma": 32, "avx": 32}
# An accelerator that is not in the table is at most this many times as fast as the fastest in it.
_NEWER = 4.0


class Peak(NamedTuple):
    """The peak rates of one JAX device, which is a core where a chip has two of them.

    Attributes:
      kind: the device's name in the table.
      arithmetic: the type of the multiplications.
      flops_per_s: floating-point operations per second.
      bytes_per_s: memory bandwidth; None where no source was found.
      source: of these figures.
    """

    kind: str
    arithmetic: str
    flops_per_s: float
    bytes_per_s: float | None
    source: str


def find_peak(device_kind: str, precision: str, matmul_precision: str | None = None) -> Peak | None:
    """Return a device's peak for a network's precision, None where the table has none.

    With the default `jax_default_matmul_precision`, None, fp32 networks are multiplied in TF32 on
    NVIDIA's Ampere and later, and in bf16 on TPUs.
    """
    # Older drivers leave "NVIDIA" out, and V100s come with two sizes of the same memory. Nothing
    # else may differ: an RTX 3090 Ti is no RTX 3090.
    own = re.sub(r"^NVIDIA |-\d+GB$", "", device_kind)
    named = {re.sub(r"^NVIDIA ", "", row["kind"]): row for row in _rows()}
    row = named.get(device_kind.removeprefix("NVIDIA ")) or named.get(own)
    if row is None:
        return None
    arithmetic = precision
    if precision == "fp32" and matmul_precision in (None, "default", "tensorfloat32"):
        arithmetic = "bf16" if row["kind"].startswith("TPU") else "tf32"
        if not row[f"{arithmetic}_tflops"]:
            arithmetic = "fp32"
    tflops = row.get(f"{arithmetic}_tflops")
    if not tflops:
        return None
    bandwidth_gb_per_s = row["bandwidth_gb_per_s"]
    chips = 1 / int(row["per_chip"])
    return Peak(
        kind=row["kind"],
        arithmetic=arithmetic,
        flops_per_s=float(tflops) * 1e12 * chips,
        bytes_per_s=float(bandwidth_gb_per_s) * 1e9 * chips if bandwidth_gb_per_s else None,
        source=row["source"],
    )


@functools.cache
def _rows() -> list[dict[str, str]]:
    with open(_TABLE, newline="") as file:
        return list(csv.DictReader(file))


def utilization(
    mesh: DataMesh, precision: str, images_per_s: float, flops_per_image: int
) -> dict[str, Any]:
    """Return the model FLOPs utilization (MFU) of a rate; None where the peak is unknown.

    Images are those of all devices, operations those that the network itself needs.
    """
    flops_per_s = images_per_s * flops_per_image / mesh.num_devices
    kind, *others = {device.device_kind for device in mesh.devices}
    matmul_precision = jax.config.jax_default_matmul_precision
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
        own = sum(device.process_index == devices[0].process_index for device in devices)
        return cpu_flops_limit(os.cpu_count() or 1, _cpu_flags()) / own
    tflops = (row[name] for row in _rows() for name in row if name.endswith("_tflops"))
    return _NEWER * 1e12 * max(float(cell) for cell in tflops if cell)


def cpu_flops_limit(cores: int, flags: Iterable[str]) -> float:
    """Return the FLOP/s that a processor with these flags cannot exceed; without flags, any."""
    known = set(flags)
    fastest = max(_FLOPS_PER_CYCLE.values())
    per_cycle = next((n for flag, n in _FLOPS_PER_CYCLE.items() if flag in known), None)
    return cores * _CPU_HZ * (per_cycle or fastest)


@functools.cache
def _cpu_flags() -> list[str]:
    """Return the processor's flags; [] where the system is not Linux or names none."""
    try:
        with open("/proc/cpuinfo") as file:
            # On x86 `flags`, on ARM `Features`; the first core's are enough.
            named = (line for line in file if line.startswith(("flags", "Features")))
            return next(named, ":").partition(":")[2].split()
    except OSError:
        return []
