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
      low, high: what no such figure can lie outside of, on any hardware.
      bounded_by: what bounds it besides, and is looked up by device: arithmetic, memory, host link
        or links; "" without such a bound.
      times_bound: how many times this bound it may reach.
      is_count: whether it is a whole number, which is counted and not measured.
      title: its name and unit in the console's table; "" where it is not in that table.
    """

    part: str
    meaning: str
    labels: tuple[str, ...] = ()
    better: str = ""
    low: float = 0.0
    high: float = math.inf
    bounded_by: str = ""
    times_bound: float = 1.0
    is_count: bool = False
    title: str = ""


def _rate(part: str, title: str, meaning: str, **bounds: str | float) -> FigureKind:
    return FigureKind(part, meaning, better="higher", title=title, **bounds)


def _file_rate(title: str, meaning: str) -> FigureKind:
    """Return the rate of a file; no host's memory is faster."""
    return _rate("storage", f"{title} [GB/s]", meaning, high=2_000.0)


def _count(part: str, meaning: str, labels: tuple[str, ...] = (), better: str = "") -> FigureKind:
    return FigureKind(part, meaning, labels, better, is_count=True)


FIGURES: dict[str, FigureKind] = {
    **{
        name: _rate(
            "ceilings",
            f"matrix products in {arithmetic} [TFLOP/s]",
            f"rate of a large product of {arithmetic} matrices",
            bounded_by="arithmetic",
        )
        for name, arithmetic in zip(MATMULS, ARITHMETICS, strict=True)
    },
    **{
        f"{name}_gb_per_s": _rate(
            "ceilings", f"memory, {name} [GB/s]", meaning, bounded_by="memory"
        )
        for name, meaning in (
            ("copy", "bytes read and written, a = b, in device memory"),
            ("scale", "the same of a = s b"),
            ("triad", "the same of a = b + s c"),
        )
    },
    **{
        name: _rate("ceilings", f"{way} [GB/s]", f"copies from {way}", bounded_by="host link")
        for name, way in (("h2d_gb_per_s", "host to device"), ("d2h_gb_per_s", "device to host"))
    },
    "dispatch_latency_s": FigureKind(
        "ceilings",
        "from calling a trivial program to its end",
        better="lower",
        low=2e-7,  # Python's own call takes as long
        title="shortest call [us]",
    ),
    # Two devices gather twice what their links carry, and a switch that adds saves half of the way.
    **{
        name: FigureKind(
            "collectives", meaning, _COLLECTIVE, "higher", bounded_by="links", times_bound=2.0
        )
        for name, meaning in (
            ("algorithm_gb_per_s", "bytes of a device over the time of the collective"),
            ("bus_gb_per_s", "bytes that each link carries over that time"),
        )
    },
    "pair_gb_per_s": FigureKind(
        "collectives",
        "copies from one device to another",
        ("source", "peer"),
        "higher",
        bounded_by="links",
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
        high=1.0,
    ),
    "energy_j_per_image": FigureKind("networks", "energy of the devices", NETWORK, "lower"),
    "compile_cold_s": FigureKind(
        "networks", "compilation, nothing cached", NETWORK, "lower", low=1e-4
    ),
    "compile_warm_s": FigureKind("networks", "the same from the cache", NETWORK, "lower", low=1e-4),
    "drift_percent": FigureKind(
        "soak",
        "change of the rate from the first third to the last",
        better="higher",
        low=-100.0,
        high=10_000.0,
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
        low=-50.0,
        high=150.0,  # silicon's end
        title="highest temperature [degrees C]",
    ),
    # No device of peaks.csv may take more than 1,400 W.
    "power_mean_w": FigureKind("soak", "mean power", high=2_000.0, title="mean power [W]"),
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
        "storage", "decoding on one core [images/s]", "images read and decoded", high=1e6
    ),
    "read_cold_gb_per_s": _file_rate("reading a file from storage", "reads past the page cache"),
    "read_warm_gb_per_s": _file_rate("reading it from memory", "reads from the page cache"),
    "checkpoint_write_gb_per_s": _file_rate("writing a checkpoint", "a checkpoint written"),
    "checkpoint_restore_gb_per_s": _file_rate("restoring a checkpoint", "a checkpoint restored"),
}
