"""The catalogue of a card: its metrics, its parts, and its networks, a line of a table each."""

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from jaxbench.files import read_table
from jaxbench.hardware.peak_table import find_bandwidth, find_peak

# The types that matrices are multiplied in.
ARITHMETICS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
MATMULS = tuple(f"matmul_{arithmetic}_tflops" for arithmetic in ARITHMETICS)
MEMORY = ("copy_gb_per_s", "scale_gb_per_s", "triad_gb_per_s")
# The labels of a network's figures.
NETWORK = ("network", "precision", "batch")


class PartKind(msgspec.Struct, frozen=True, kw_only=True):
    """A line of parts.csv, which explains the columns."""

    name: str
    measured_in: str = ""
    priority: int = 0
    least_s: float = 0.0
    least_on_cpu_s: float = 0.0
    fraction: float = 0.0
    most_s: float = 0.0


class FigureKind(msgspec.Struct, frozen=True, kw_only=True):
    """A line of figures.csv, which explains the columns."""

    name: str
    part: str
    labels: str = ""
    better: str = ""
    min: float = 0.0
    max_cpu: str = ""
    max_accelerator: str = ""
    is_count: bool = False
    is_needed: bool = False
    meaning: str


def load_rows(table: str, kind: type) -> list[Any]:
    """Return the rows of one of the tables here; an empty cell is the field's default."""
    rows = [{name: one for name, one in row.items() if one} for row in read_table(__file__, table)]
    return msgspec.convert(rows, list[kind], strict=False)  # type: ignore[valid-type]


PARTS: dict[str, PartKind] = {row.name: row for row in load_rows("parts.csv", PartKind)}
FIGURES: dict[str, FigureKind] = {row.name: row for row in load_rows("figures.csv", FigureKind)}


class PresetNetwork(msgspec.Struct, frozen=True):
    """A line of networks.csv, which explains the columns."""

    spec: str
    batch_per_device: int
    flops_per_image: int
    public: str = ""
    preset: str = ""


class Preset(NamedTuple):
    """What is run on one kind of hardware.

    Attributes:
      name: with the version, as a card has it.
      precisions: that each network is trained in.
      check_width: side of the matrices whose products are compared bit for bit.
      networks: the first one is trained in the soak, too.
    """

    name: str
    precisions: tuple[str, ...]
    check_width: int
    networks: tuple[PresetNetwork, ...]


def _preset(name: str, precisions: tuple[str, ...], check_width: int) -> Preset:
    rows = load_rows("networks.csv", PresetNetwork)
    networks = tuple(row for row in rows if row.preset == name)
    return Preset(name, precisions, check_width, networks)


STANDARD = _preset("standard-1", ("bf16", "fp32"), 4096)
# A CPU would take minutes for a step of the standard networks.
CPU = _preset("cpu-1", ("fp32", "bf16"), 256)
# Cards of two presets are not of the same work: whatever changes is a preset of another number. The
# old ones stay here, so that their cards can be checked.
PRESETS = {preset.name: preset for preset in (STANDARD, CPU)}


def published_peak(name: str, device_kind: str) -> float | None:
    """Return the published peak of a device that a figure is compared with, in its unit."""
    if name in MATMULS:
        # "highest": fp32 is IEEE's here, not what a network's fp32 is multiplied in.
        peak = find_peak(device_kind, ARITHMETICS[MATMULS.index(name)], "highest")
        return peak and peak.flops_per_s / 1e12
    bytes_per_s = find_bandwidth(device_kind) if name in MEMORY else None
    return bytes_per_s and bytes_per_s / 1e9


def share_of_measured(
    figures: Iterable[Any],
    arithmetic: str | None,
    precision: str,
    flops_per_s_per_device: float | None,
    num_devices: int,
    backend: str,
) -> float | None:
    """Return FLOP/s over the measured matrix rate; None if one of them is unknown.

    It is also None above 1: then the network did not do the operations that are counted for it, or
    not in this arithmetic.

    Args:
      arithmetic: the type that the network multiplies in, one of `ARITHMETICS`; None if no
        published peak of the device is known.
      precision: of the network. It says the arithmetic, but for fp32 on accelerators: there JAX may
        multiply in TF32 or bf16.
      flops_per_s_per_device: the network's own operations, see `Utilization`.
      num_devices, backend: of the network's run. CPU devices share the processor whose rate the
        card has.
    """
    if arithmetic is None and precision == "fp32" and backend != "cpu":
        return None
    name = f"matmul_{arithmetic or precision}_tflops"
    rates = [figure.value for figure in figures if figure.name == name]
    if not rates or flops_per_s_per_device is None:
        return None
    share = flops_per_s_per_device / (1e12 * statistics.median(rates))
    share *= num_devices if backend == "cpu" else 1
    return share if share <= 1 else None
