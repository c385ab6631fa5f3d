"""The figures that a card may hold: one line for each name, with its unit in the name."""

import math
from typing import NamedTuple

PARTS = ("doctor", "ceilings", "collectives", "networks", "soak", "corruption", "storage")
# The types that matrices are multiplied in.
ARITHMETICS = ("fp32", "tf32", "bf16", "fp16", "int8")
MATMULS = tuple(f"matmul_{arithmetic}_tflops" for arithmetic in ARITHMETICS)
MEMORY = ("copy_gb_per_s", "scale_gb_per_s", "triad_gb_per_s")
# The labels of a network's figures.
NETWORK = ("network", "precision", "batch")
_COLLECTIVE = ("collective", "bytes")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


class FigureKind(NamedTuple):
    """What a name of a figure means.

    Attributes:
      part: the part of the card that measures it.
      meaning: what it is.
      labels: what tells figures of this name and device apart; each has exactly these.
      better: higher, lower, or "" where neither is.
      low, high: what no such figure can lie outside of.
      is_count: whether it is a whole number, which is counted and not measured.
      title: its name and unit in the console's table; "" where it is not in that table.
    """

    part: str
    meaning: str
    labels: tuple[str, ...] = ()
    better: str = ""
    low: float = 0.0
    high: float = math.inf
    is_count: bool = False
    title: str = ""


def _rate(part: str, title: str, meaning: str) -> FigureKind:
    return FigureKind(part, meaning, better="higher", title=title)


def _count(part: str, meaning: str, labels: tuple[str, ...] = (), better: str = "") -> FigureKind:
    return FigureKind(part, meaning, labels, better, is_count=True)


FIGURES: dict[str, FigureKind] = {
    **{
        name: _rate(
            "ceilings",
            f"matrix products in {arithmetic} [TFLOP/s]",
            f"rate of a large product of {arithmetic} matrices",
        )
        for name, arithmetic in zip(MATMULS, ARITHMETICS, strict=True)
    },
    "copy_gb_per_s": _rate(
        "ceilings", "memory, copy [GB/s]", "bytes read and written, a = b, in device memory"
    ),
    "scale_gb_per_s": _rate("ceilings", "memory, scale [GB/s]", "the same of a = s b"),
    "triad_gb_per_s": _rate("ceilings", "memory, triad [GB/s]", "the same of a = b + s c"),
    "h2d_gb_per_s": _rate("ceilings", "host to device [GB/s]", "copies from host to device"),
    "d2h_gb_per_s": _rate("ceilings", "device to host [GB/s]", "copies from device to host"),
    "dispatch_latency_s": FigureKind(
        "ceilings",
        "from calling a trivial program to its end",
        better="lower",
        title="shortest call [us]",
    ),
    "algorithm_gb_per_s": FigureKind(
        "collectives", "bytes of a device over the time of the collective", _COLLECTIVE, "higher"
    ),
    "bus_gb_per_s": FigureKind(
        "collectives", "bytes that each link carries over that time", _COLLECTIVE, "higher"
    ),
    "pair_gb_per_s": FigureKind(
        "collectives", "copies from one device to another", ("source", "target"), "higher"
    ),
    "images_per_s": FigureKind("networks", "steady state over all devices", NETWORK, "higher"),
    "flops_per_image": _count(
        "networks", "operations of a training step for an image, by the network's count", NETWORK
    ),
    "mfu": FigureKind(
        "networks", "share of the peak that these operations use", NETWORK, "higher", high=1.0
    ),
    "measured_peak_share": FigureKind(
        "networks",
        "these operations a second over the best matrix rate of the card",
        NETWORK,
        "higher",
    ),
    "energy_j_per_image": FigureKind("networks", "energy of the devices", NETWORK, "lower"),
    "compile_cold_s": FigureKind("networks", "compilation, nothing cached", NETWORK, "lower"),
    "compile_warm_s": FigureKind("networks", "the same from the cache", NETWORK, "lower"),
    "drift_percent": FigureKind(
        "soak",
        "change of the rate from the first third to the last",
        better="higher",
        low=-100.0,
        title="change of the rate during the soak [%]",
    ),
    "throttled_share": FigureKind(
        "soak",
        "share of the readings in which the clock was held down",
        ("reason",),
        "lower",
        high=1.0,
    ),
    "temperature_max_c": FigureKind(
        "soak",
        "highest temperature",
        better="lower",
        low=-273.15,
        title="highest temperature [degrees C]",
    ),
    "power_mean_w": FigureKind("soak", "mean power", title="mean power [W]"),
    "errors_before": _count("soak", "an error counter before the soak", ("counter",)),
    "errors_after": _count("soak", "the same counter after it", ("counter",)),
    "rounds": FigureKind(
        "corruption", "rounds of equal work whose results were compared", low=1.0, is_count=True
    ),
    "mismatches": _count("corruption", "results that differ from the others", better="lower"),
    "mismatched_values": _count(
        "corruption", "elements that differ in one tensor", ("round", "tensor"), "lower"
    ),
    "decode_images_per_s": _rate(
        "storage", "decoding on one core [images/s]", "images read and decoded"
    ),
    "read_cold_gb_per_s": _rate(
        "storage", "reading a file from storage [GB/s]", "reads past the page cache"
    ),
    "read_warm_gb_per_s": _rate(
        "storage", "reading it from memory [GB/s]", "reads from the page cache"
    ),
    "checkpoint_write_gb_per_s": _rate(
        "storage", "writing a checkpoint [GB/s]", "a checkpoint written"
    ),
    "checkpoint_restore_gb_per_s": _rate(
        "storage", "restoring a checkpoint [GB/s]", "a checkpoint restored"
    ),
}
