"""Look up the peak rates of devices in `peaks.csv`, and bounds that no device exceeds. No JAX.

Peaks are as the makers publish them: for dense matrices with fp32 accumulation, at the boost clock
that the maker names.
"""

import functools
import re
from collections.abc import Collection
from typing import NamedTuple

from jaxbench.files import read_table

# No processor has a faster clock; and what a core of one can do in a cycle at most, by its flags in
# /proc/cpuinfo: AMX tiles in bf16, two AVX-512 units with dot products in bf16, two AVX2 units.
_CPU_HZ = 6.5e9
_FLOPS_PER_CYCLE = {"amx_tile": 2048, "sve": 256, "avx512f": 128, "fma": 32, "avx": 32}
# A new accelerator is at most this many times as fast as the fastest in the table.
_NEWER = 2.0
# In a type whose peak the table lacks, a device is at most this many times as fast as in its
# fastest: int8 on GeForce boards.
_OTHER_TYPE = 4.0


class Peak(NamedTuple):
    """The peak rates of one JAX device, which is a core of a chip with two."""

    kind: str  # the device's name in the table
    arithmetic: str  # the type of the multiplications
    flops_per_s: float
    bytes_per_s: float | None  # None if no source was found
    source: str


def find_peak(device_kind: str, precision: str, matmul_precision: str | None = None) -> Peak | None:
    """Return a device's peak for a network's precision, None if the table has none.

    With the default `jax_default_matmul_precision`, None, fp32 networks are multiplied in TF32 on
    NVIDIA's Ampere and later, and in bf16 on TPUs.
    """
    row = _find_row(device_kind)
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
    return Peak(
        kind=row["kind"],
        arithmetic=arithmetic,
        flops_per_s=float(tflops) * 1e12 / int(row["per_chip"]),
        bytes_per_s=find_bandwidth(device_kind),
        source=row["source"],
    )


def find_bandwidth(device_kind: str) -> float | None:
    """Return the bytes/s of a device's memory, whatever it computes in; None if unknown."""
    row = _find_row(device_kind)
    if row is None or not row["bandwidth_gb_per_s"]:
        return None
    return float(row["bandwidth_gb_per_s"]) * 1e9 / int(row["per_chip"])


def devices_per_chip(device_kind: str) -> int:
    """Return how many JAX devices a chip is: 2 of TPU v2, v3 and TPU7x; 1 if it is unknown."""
    row = _find_row(device_kind)
    return int(row["per_chip"]) if row else 1


def without_maker(device_kind: str) -> str:
    """Return a device's name in JAX without "NVIDIA", which older drivers leave out."""
    return device_kind.removeprefix("NVIDIA ")


def _find_row(device_kind: str) -> dict[str, str] | None:
    # V100s come with two sizes of the same memory. Nothing else may differ: an RTX 3090 Ti is no
    # RTX 3090.
    name = without_maker(device_kind)
    named = {without_maker(row["kind"]): row for row in rows()}
    return named.get(name) or named.get(re.sub(r"-\d+GB$", "", name))


@functools.cache
def rows() -> list[dict[str, str]]:
    """Return the rows of peaks.csv."""
    return read_table(__file__, "peaks.csv")


def accelerator_limit(unit: str, device_kind: str | None = None) -> float:
    """Return what a device of a kind, or any, does not exceed, in `tflops`, `gb_per_s` or `w`."""
    row = _find_row(device_kind) if device_kind else None

    def most(of: list[dict[str, str]]) -> float:
        # Of fp8 few rows say it, and `_OTHER_TYPE` covers it.
        names = [name for name in of[0] if name.endswith(f"_{unit}") and name != "fp8_tflops"]
        cells = (one[name] for one in of for name in names)
        return max((float(cell) for cell in cells if cell), default=0.0)

    if row and (listed := most([row])):
        return (_OTHER_TYPE if unit == "tflops" else 1.0) * listed
    return _NEWER * most(rows())


def cpu_flops_limit(cores: int, flags: Collection[str]) -> float:
    """Return the FLOP/s that a processor with these flags cannot exceed; without flags, any."""
    rates = [per_cycle for flag, per_cycle in _FLOPS_PER_CYCLE.items() if flag in flags]
    return cores * _CPU_HZ * max(rates or _FLOPS_PER_CYCLE.values())
