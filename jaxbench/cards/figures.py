"""The figures that a card may hold: figures.csv has one line for each."""

import math

import msgspec

from jaxbench.files import read_table
from jaxbench.hardware.peak_table import find_bandwidth, find_peak

PARTS = ("doctor", "ceilings", "collectives", "networks", "soak", "corruption", "storage")
# The types that matrices are multiplied in.
ARITHMETICS = ("fp32", "tf32", "bf16", "fp16", "int8")
MATMULS = tuple(f"matmul_{arithmetic}_tflops" for arithmetic in ARITHMETICS)
MEMORY = ("copy_gb_per_s", "scale_gb_per_s", "triad_gb_per_s")
# The labels of a network's figures.
NETWORK = ("network", "precision", "batch")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


class FigureKind(msgspec.Struct, frozen=True, kw_only=True):
    """A line of figures.csv, which explains the columns."""

    name: str
    part: str
    title: str = ""
    unit: str = ""
    labels: tuple[str, ...]
    better: str = ""
    low: float = 0.0
    high: float = math.inf
    bounded_by: str = ""
    times_bound: float = 1.0
    is_count: bool = False
    is_needed: bool = False
    meaning: str


def _load() -> dict[str, FigureKind]:
    rows = read_table(__file__, "figures.csv")
    stated = [{name: cell for name, cell in row.items() if cell} for row in rows]
    lines = [line | {"labels": line.get("labels", "").split()} for line in stated]
    return {line["name"]: msgspec.convert(line, FigureKind, strict=False) for line in lines}


FIGURES = _load()


def published_peak(name: str, device_kind: str) -> float | None:
    """Return the published peak of a device that a figure is compared with, in its unit."""
    if name in MATMULS:
        # "highest": fp32 is IEEE's here, not what a network's fp32 is multiplied in.
        peak = find_peak(device_kind, ARITHMETICS[MATMULS.index(name)], "highest")
        return peak and peak.flops_per_s / 1e12
    bytes_per_s = find_bandwidth(device_kind) if name in MEMORY else None
    return bytes_per_s and bytes_per_s / 1e9
