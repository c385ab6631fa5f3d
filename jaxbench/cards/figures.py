"""The figures that a card may hold: one line for each name, with its unit in the name."""

import math
from typing import NamedTuple

PARTS = ("doctor", "ceilings", "collectives", "networks", "soak", "corruption", "storage")
# The types that matrices are multiplied in.
ARITHMETICS = ("fp32", "tf32", "bf16", "fp16", "int8")


class FigureKind(NamedTuple):
    """What a name of a figure means.

    Attributes:
      part: the part of the card that measures it.
      meaning: what it is.
      labels: what tells figures of this name and device apart; each has exactly these.
      better: higher, lower, or "" where neither is.
      low, high: what no such figure can lie outside of.
      is_count: whether it is a whole number, which is counted and not measured.
    """

    part: str
    meaning: str
    labels: tuple[str, ...] = ()
    better: str = ""
    low: float = 0.0
    high: float = math.inf
    is_count: bool = False


_COLLECTIVE = ("collective", "bytes")
_NETWORK = ("network", "precision", "batch")

FIGURES: dict[str, FigureKind] = {
    **{
        f"matmul_{arithmetic}_tflops": FigureKind(
            "ceilings", f"rate of a large product of {arithmetic} matrices", (), "higher"
        )
        for arithmetic in ARITHMETICS
    },
    "copy_gb_per_s": FigureKind(
        "ceilings", "bytes read and written, a = b, in device memory", (), "higher"
    ),
    "scale_gb_per_s": FigureKind("ceilings", "the same of a = s b", (), "higher"),
    "triad_gb_per_s": FigureKind("ceilings", "the same of a = b + s c", (), "higher"),
    "h2d_gb_per_s": FigureKind("ceilings", "copies from host to device", (), "higher"),
    "d2h_gb_per_s": FigureKind("ceilings", "copies from device to host", (), "higher"),
    "dispatch_latency_s": FigureKind(
        "ceilings", "from calling a trivial program to its end", (), "lower"
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
    "images_per_s": FigureKind("networks", "steady state over all devices", _NETWORK, "higher"),
    "flops_per_image": FigureKind(
        "networks", "operations of a training step for an image, by the network's count", _NETWORK
    )._replace(is_count=True),
    "mfu": FigureKind(
        "networks", "share of the peak that these operations use", _NETWORK, "higher", 0.0, 1.0
    ),
    "measured_peak_share": FigureKind(
        "networks",
        "these operations a second over the best matrix rate of the card",
        _NETWORK,
        "higher",
    ),
    "energy_j_per_image": FigureKind("networks", "energy of the devices", _NETWORK, "lower"),
    "compile_cold_s": FigureKind("networks", "compilation, nothing cached", _NETWORK, "lower"),
    "compile_warm_s": FigureKind("networks", "the same from the cache", _NETWORK, "lower"),
    "drift_percent": FigureKind(
        "soak", "change of the rate from the first third to the last", (), "higher", -100.0
    ),
    "throttled_share": FigureKind(
        "soak", "share of the readings in which the clock was held down", ("reason",), "lower"
    )._replace(high=1.0),
    "temperature_max_c": FigureKind("soak", "highest temperature", (), "lower", -273.15),
    "power_mean_w": FigureKind("soak", "mean power"),
    **{
        name: FigureKind(part, meaning, labels, better, is_count=True)
        for name, part, meaning, labels, better in (
            ("errors_before", "soak", "an error counter before the soak", ("counter",), ""),
            ("errors_after", "soak", "the same counter after it", ("counter",), ""),
            ("rounds", "corruption", "rounds of equal work whose results were compared", (), ""),
            ("mismatches", "corruption", "results that differ from the others", (), "lower"),
            (
                *("mismatched_values", "corruption", "elements that differ in one tensor"),
                *(("round", "tensor"), "lower"),
            ),
        )
    },
    "decode_images_per_s": FigureKind("storage", "images read and decoded", (), "higher"),
    "read_cold_gb_per_s": FigureKind("storage", "reads past the page cache", (), "higher"),
    "read_warm_gb_per_s": FigureKind("storage", "reads from the page cache", (), "higher"),
    "checkpoint_write_gb_per_s": FigureKind("storage", "a checkpoint written", (), "higher"),
    "checkpoint_restore_gb_per_s": FigureKind("storage", "a checkpoint restored", (), "higher"),
}
