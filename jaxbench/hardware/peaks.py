"""Look up the peak rates of devices, as their makers publish them, in `peaks.csv`.

For dense matrices with fp32 accumulation, at the boost clock that the maker names.
"""

import csv
import functools
import pathlib
import re
from typing import NamedTuple

_TABLE = pathlib.Path(__file__).with_name("peaks.csv")


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

    Args:
      device_kind: JAX's `device.device_kind`.
      precision: bf16, fp16, fp32 or fp64.
      matmul_precision: `jax_default_matmul_precision`. With None, its default, fp32 networks are
        multiplied in TF32 on NVIDIA's Ampere and later, and in bf16 on TPUs.
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
