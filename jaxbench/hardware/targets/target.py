"""Look up targets by name: machines to compile for that are not here.

    tpu:v5e:2x4     a slice of 2x4 chips of TPU v5e
    tpu:v4:2x2x1    v4 and v5p have three dimensions
    gpu:h100        one GPU
    gpu:h100:8      eight GPUs of one host
    gpu:h100:2x8    two hosts of eight
    gpu:mine.txtpb  a GPU by XLA's description of it, in a file; sizes as above

The facts stand in `tpus.csv` and `gpus.csv`, each row with its sources; what peaks.csv has (peak
rates, memory bandwidth, devices of a chip) is not repeated there. JAX is not imported.

`host_gb_per_s` is the link to the host in one direction. Google publishes none for TPUs: theirs is
a PCIe 5.0 x16 slot's, which none exceeds. `bridge_gb_per_s` is an optional NVLink bridge, which
bounds measurements but is in no ceiling.
"""

import dataclasses
import functools
import math
import pathlib
import re
from typing import Any, NamedTuple

from jaxbench.errors import BadInput, nearest
from jaxbench.files import read_table, read_text
from jaxbench.hardware.peak_table import devices_per_chip, find_bandwidth

# {dimensions of a TPU slice: the smallest size of a host}.
_FORMS = {"2": "2x2", "3": "2x2x1"}
_SIZE = re.compile(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*")
# No machine that can be rented has more; compiling for more takes no longer, but means nothing.
# TPUs have the size of their pod.
_MOST_GPUS = 8192
# What JAX takes of a GPU's memory by default (XLA_PYTHON_CLIENT_MEM_FRACTION).
_GPU_MEMORY_SHARE = 0.75
# What ends the name of a file with XLA's description of a GPU, in XLA's repository too.
SUFFIX = ".txtpb"
_MOST_BYTES = 2**20
# Without threads_per_warp or block_dim_limit_x XLA divides by zero. Without clock_rate_ghz or the
# second row it plans other kernels and other memory, and does not say so.
_WHOLE_NUMBERS = (
    *("core_count", "device_memory_size", "memory_bandwidth", "l2_cache_size"),
    *("fpus_per_core", "threads_per_core_limit", "shared_memory_per_block"),
    *("threads_per_warp", "block_dim_limit_x"),
)
_NEEDED = (
    *("platform_name", "device_description_str", "cuda_compute_capability", "clock_rate_ghz"),
    *_WHOLE_NUMBERS,
)


@dataclasses.dataclass(frozen=True)
class Target:
    """A machine to compile for.

    Attributes:
      name: as it was given, whole: `gpu:h100:2x8`.
      kind: the device's name in peaks.csv and in JAX.
      dimensions: of a TPU slice, in chips; (hosts, GPUs of each) for GPUs.
      memory_bytes: of a JAX device; of a TPU what its compiler lets a program use.
      link: what connects the devices, in words.
      link_bytes_per_s: of a JAX device, in one direction; None where unknown.
      specs: the row of the table.
    """

    name: str
    platform: str
    kind: str
    dimensions: tuple[int, ...]
    memory_bytes: int
    link: str
    link_bytes_per_s: float | None
    specs: dict[str, str]

    @property
    def num_devices(self) -> int:
        return math.prod(self.dimensions) * devices_per_chip(self.kind)

    @property
    def usable_bytes(self) -> int:
        """What a program may use of a device's memory: what `fits` compares with."""
        share = _GPU_MEMORY_SHARE if self.platform == "gpu" else 1.0
        return int(self.memory_bytes * share)

    def stand_ins(self) -> tuple["StandIn", ...]:
        """Return what describes its devices where no compiler has made them."""
        platform, kind = self.platform, self.kind
        return tuple(StandIn(number, platform, kind) for number in range(self.num_devices))


class StandIn(NamedTuple):
    """What run.json says of a device, under JAX's names."""

    id: int
    platform: str
    device_kind: str
    process_index: int = 0


def list_targets() -> list[str]:
    """Return the names of the machines, each with the form of its size."""
    tpus = [
        f"tpu:{name}:{_FORMS[row['dimensions']]}[ or another size up to {row['chips_per_pod']} "
        "chips]"
        for name, row in _rows("tpu").items()
    ]
    return [*tpus, *(f"gpu:{name}[:N or :HOSTSxN]" for name in (*_rows("gpu"), f"FILE{SUFFIX}"))]


def parse_target(text: str) -> Target:
    """Return the target of a name.

    Raises:
      BadInput: an unknown machine, an impossible size, or a bad description of a GPU.
    """
    platform, _, rest = text.partition(":")
    name, _, size = rest.partition(":")
    if platform not in ("tpu", "gpu"):
        raise BadInput(
            f"--target={text}: must begin with tpu: or gpu:, such as tpu:v5e:2x4 or gpu:h100:8 "
            "(--target=list shows all)"
        )
    row = _find_row(text, platform, name)
    if size and not _SIZE.fullmatch(size):
        example = {"tpu": "tpu:v5e:2x4 or tpu:v4:2x2x1", "gpu": "gpu:h100:8 or gpu:h100:2x8"}
        raise BadInput(f"--target={text}: {size!r} is no size; write it as in {example[platform]}")
    numbers = tuple(map(int, size.split("x"))) if size else ()
    return (_tpu if platform == "tpu" else _gpu)(text, row, numbers)


def smaller_targets(target: Target) -> list[Target]:
    """Return the same machine with ever more of its chips, twice as many at each step, and all."""
    dimensions = [1] * len(target.dimensions)
    sizes = [tuple(dimensions)]
    if target.platform == "tpu" and target.dimensions != sizes[0]:
        dimensions[:2] = 2, 2  # a host's chips; no slice has fewer, but for a single chip
        sizes.append(tuple(dimensions))
    while tuple(dimensions) != target.dimensions:
        # Of GPUs those of a host first; of a TPU slice the smallest dimension.
        growing = [i for i, most in enumerate(target.dimensions) if dimensions[i] < most]
        place = min(growing, key=lambda i: (dimensions[i], -i))
        if target.platform == "gpu":
            place = growing[-1]
        dimensions[place] = min(2 * dimensions[place], target.dimensions[place])
        sizes.append(tuple(dimensions))
    machine = target.name.rpartition(":")[0] if target.name.count(":") > 1 else target.name
    return [parse_target(f"{machine}:{'x'.join(map(str, size))}") for size in sizes]


def l2_bytes(device_kind: str) -> int | None:
    """Return the size of a GPU's L2 cache by its name in JAX; None where the table has none."""
    row = _row_of(device_kind)
    return int(float(row["l2_mib"]) * 2**20) if row else None


def compute_capability(device: Any) -> float | None:
    """Return the compute capability of an NVIDIA GPU, such as 9.0; None for other JAX devices.

    A GPU that is only compiled for does not say its own; one that the table lacks counts as new.
    """
    if device.platform != "gpu":
        return None
    row = _row_of(device.device_kind) or {"compute_capability": "inf"}
    capability = getattr(device, "compute_capability", row["compute_capability"])
    return None if capability.startswith("gfx") else float(capability)  # AMD's begin so


def most_link_bytes_per_s(device_kind: str, to_host: bool) -> float:
    """Return what a device's links carry at most in one direction.

    Of a device that the tables lack it is the most of any TPU, or of any GPU.

    Args:
      device_kind: its name in JAX.
      to_host: whether it is the link to the host, or all links to other devices.
    """
    platform = "tpu" if device_kind.startswith("TPU") else "gpu"
    row = _row_of(device_kind, platform)
    rows = [row] if row else _rows(platform).values()
    return max(_link_bytes_per_s(row, to_host) for row in rows)


def _link_bytes_per_s(row: dict[str, str], to_host: bool) -> float:
    if to_host:
        return float(row["host_gb_per_s"]) * 1e9
    if "link_gbit_per_s_per_chip" not in row:
        return max(float(row[name] or 0) for name in ("link_gb_per_s", "bridge_gb_per_s")) * 1e9
    if devices_per_chip(row["kind"]) > 1:  # two devices of a chip exchange through no link
        return find_bandwidth(row["kind"])
    return float(row["link_gbit_per_s_per_chip"]) * 1e9 / 8


def _row_of(device_kind: str, platform: str = "gpu") -> dict[str, str] | None:
    kind = device_kind.removeprefix("NVIDIA ")
    rows = _rows(platform).values()
    return next((row for row in rows if row["kind"].removeprefix("NVIDIA ") == kind), None)


def _find_row(text: str, platform: str, name: str) -> dict[str, str]:
    if platform == "gpu" and name.endswith(SUFFIX):
        try:
            return read_description(name)
        except BadInput as error:
            raise BadInput(f"--target={text}: {error}") from error
    rows = _rows(platform)
    if name not in rows:
        or_file = f", or a file NAME{SUFFIX}" if platform == "gpu" else ""
        raise BadInput(
            f"--target={text}: must name a {platform.upper()}, one of {', '.join(rows)}{or_file}"
            + nearest(name, rows)
        )
    return rows[name]


def _tpu(text: str, row: dict[str, str], numbers: tuple[int, ...]) -> Target:
    if len(numbers) != int(row["dimensions"]):
        raise BadInput(
            f"--target={text}: a slice of {row['name']} has {row['dimensions']} dimensions, such "
            f"as tpu:{row['name']}:{_FORMS[row['dimensions']]}"
        )
    if math.prod(numbers) > 1 and (numbers[0] % 2 or numbers[1] % 2):
        raise BadInput(
            f"--target={text}: a host has 2x2 chips, so the first two numbers must be even; a "
            f"single chip is tpu:{row['name']}:{'x'.join('1' * len(numbers))}"
        )
    if math.prod(numbers) > int(row["chips_per_pod"]):
        raise BadInput(
            f"--target={text}: has {math.prod(numbers):,} chips; a pod of {row['name']} has "
            f"{int(row['chips_per_pod']):,}"
        )
    cores = devices_per_chip(row["kind"])
    return Target(
        name=text,
        platform="tpu",
        kind=row["kind"],
        dimensions=numbers,
        memory_bytes=int(float(row["usable_gib_per_device"]) * 2**30),
        link="inter-chip interconnect",
        # Of all links of the chip, in one direction: Google's page of v5e has had 1600 Gbit/s, and
        # now has 400 GB/s in both directions.
        link_bytes_per_s=float(row["link_gbit_per_s_per_chip"]) * 1e9 / 8 / cores,
        specs=row,
    )


def _gpu(text: str, row: dict[str, str], numbers: tuple[int, ...]) -> Target:
    if len(numbers) > 2:
        raise BadInput(f"--target={text}: must be gpu:NAME, gpu:NAME:N or gpu:NAME:HOSTSxN")
    if math.prod(numbers) > _MOST_GPUS:
        raise BadInput(f"--target={text}: has {math.prod(numbers):,} GPUs; at most {_MOST_GPUS:,}")
    return Target(
        name=text,
        platform="gpu",
        kind=row["kind"],
        dimensions=(1,) * (2 - len(numbers)) + numbers,
        memory_bytes=int(float(row["memory_mib"]) * 2**20),
        link=row["link"],
        link_bytes_per_s=float(row["link_gb_per_s"]) * 1e9 if row["link_gb_per_s"] else None,
        specs=row,
    )


@functools.cache
def _rows(platform: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in read_table(__file__, f"{platform}s.csv")}


def read_description(path: str) -> dict[str, str]:
    """Return a GPU's facts as a row of `gpus.csv` has them, and the whole text as `description`.

    Its links are unknown. Fields that XLA does not know are refused by XLA: see `create_devices`.

    Raises:
      BadInput: the file cannot be read, or lacks a fact; the message begins with its name.
    """
    try:
        text = read_text(pathlib.Path(path), _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', error)}") from error
    values = {}
    for name in _NEEDED:
        # A value, or the brace that opens it.
        field = rf"""^[^#"]*\b{name}\b\s*:?\s*("[^"]*"|[^\s"]+)"""
        if match := re.search(field, text, re.MULTILINE):
            values[name] = match[1].strip('"')
    if missing := [name for name in _NEEDED if name not in values]:
        raise BadInput(f"{path}: lacks {', '.join(missing)} of XLA's GpuTargetConfigProto")
    if values["platform_name"] != "CUDA":
        raise BadInput(f"{path}: platform_name is {values['platform_name']!r}, must be 'CUDA'")
    for name in _WHOLE_NUMBERS:
        if not values[name].isdigit() or not int(values[name]):
            raise BadInput(f"{path}: {name} is {values[name]!r}, must be a whole number above 0")
    return {
        "name": path,
        "kind": values["device_description_str"],
        "memory_mib": str(int(values["device_memory_size"]) / 2**20),
        "l2_mib": str(int(values["l2_cache_size"]) / 2**20),
        "link": "unknown",
        "link_gb_per_s": "",
        "description": text,
    }
