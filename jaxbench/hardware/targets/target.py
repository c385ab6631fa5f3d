"""Machines to compile for that are not here: look them up by name, and describe them to XLA.

    tpu:v5e:2x4     a slice of 2x4 chips of TPU v5e
    tpu:v4:2x2x1    v4 and v5p have three dimensions
    gpu:h100        one GPU
    gpu:h100:8      eight GPUs of one host
    gpu:h100:2x8    two hosts of eight

The facts stand in `tpus.csv` and `gpus.csv`, each row with its sources. Peak rates, memory
bandwidth and devices of a chip are only in peaks.csv.

`host_gb_per_s` is the link to the host in one direction. Google publishes none for TPUs: theirs is
a PCIe 5.0 x16 slot's, which none exceeds. `bridge_gb_per_s` is an optional NVLink bridge, which
bounds measurements.

XLA's compilers for TPUs and GPUs need no such device. A process makes devices of one kind, in an
environment that is set before it imports JAX: see `environment`. JAX is not imported here.
"""

import dataclasses
import functools
import math
import pathlib
import re
from typing import Any, NamedTuple, NoReturn

from jaxbench.errors import BadInput, one_of
from jaxbench.files import read_table
from jaxbench.hardware.accelerators import Accelerators, extra_for, pip_command, supports
from jaxbench.hardware.nvidia_libraries import cuda_versions
from jaxbench.hardware.peak_table import devices_per_chip, find_bandwidth, find_peak, without_maker
from jaxbench.hardware.system import installed_version

# {dimensions of a TPU slice: the smallest size of a host}.
_FORMS = {"2": "2x2", "3": "2x2x1"}
_EXAMPLES = {"tpu": "tpu:v5e:2x4 or tpu:v4:2x2x1", "gpu": "gpu:h100:8 or gpu:h100:2x8"}
_SIZE = re.compile(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*")
# No machine that can be rented has more; compiling for more takes no longer, but means nothing.
# TPUs have the size of their pod.
_MOST_GPUS = 8192
# What JAX takes of a GPU's memory by default (XLA_CLIENT_MEM_FRACTION).
GPU_MEMORY_FRACTION = 0.75
# What describes a GPU if no CUDA plugin is installed: the versions that JAX 0.12 was built with.
_CUDA = {"CUDA": "13.0", "cuDNN": "9.12.0"}
# The compilers' packages; any of them will do.
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin")}
_EXTRAS = {"tpu": "tpu", "gpu": "cuda12"}


class StandIn(NamedTuple):
    """A device that is not here, with the attributes that JAX's devices have."""

    id: int
    platform: str
    device_kind: str
    process_index: int = 0


@dataclasses.dataclass(frozen=True)
class Target:
    """A machine to compile for."""

    name: str  # as it was given, whole: `gpu:h100:2x8`
    platform: str
    kind: str  # the device's name in peaks.csv and in JAX
    dimensions: tuple[int, ...]  # of a TPU slice, in chips; (hosts, GPUs of each) for GPUs
    memory_bytes: int  # of a JAX device; of a TPU what its compiler lets a program use
    link: str  # what connects the devices, in words
    link_bytes_per_s: float  # of a JAX device, in one direction
    specs: dict[str, str]  # the row of the table

    @property
    def num_devices(self) -> int:
        return math.prod(self.dimensions) * devices_per_chip(self.kind)

    @property
    def devices(self) -> tuple[StandIn, ...]:
        return tuple(StandIn(n, self.platform, self.kind) for n in range(self.num_devices))

    @property
    def usable_bytes(self) -> int:
        """What a program may use of a device's memory: what `fits` compares with."""
        fraction = GPU_MEMORY_FRACTION if self.platform == "gpu" else 1.0
        return int(self.memory_bytes * fraction)


def list_targets() -> list[str]:
    """Return the names of the machines, each with the form of its size."""
    tpus = [
        f"tpu:{name}:{_FORMS[row['dimensions']]}[ or another size up to {row['chips_per_pod']} "
        "chips]"
        for name, row in _rows("tpu").items()
    ]
    return [*tpus, *(f"gpu:{name}[:N or :HOSTSxN]" for name in _rows("gpu"))]


def parse_target(text: str) -> Target:
    """Return the target of a name; raise BadInput for an unknown machine or an impossible size."""

    def refuse(problem: str) -> NoReturn:
        raise BadInput(f"--target={text}: {problem}")

    platform, _, rest = text.partition(":")
    name, _, size = rest.partition(":")
    if platform not in _EXAMPLES:
        refuse(
            "must begin with tpu: or gpu:, such as tpu:v5e:2x4 or gpu:h100:8 (--target=list shows "
            "all)"
        )
    rows = _rows(platform)
    if name not in rows:
        refuse(f"must name a {platform.upper()}; {one_of(name, rows)}")
    if size and not _SIZE.fullmatch(size):
        refuse(f"{size!r} is no size; write it as in {_EXAMPLES[platform]}")
    row, dimensions = rows[name], tuple(map(int, size.split("x"))) if size else ()
    chips = math.prod(dimensions)
    if platform == "gpu":
        if len(dimensions) > 2:
            refuse("must be gpu:NAME, gpu:NAME:N or gpu:NAME:HOSTSxN")
        if chips > _MOST_GPUS:
            refuse(f"has {chips:,} GPUs; at most {_MOST_GPUS:,}")
        dimensions = (1,) * (2 - len(dimensions)) + dimensions
        memory_bytes = float(row["memory_mib"]) * 2**20
        link, link_bytes_per_s = row["link"], float(row["link_gb_per_s"]) * 1e9
    else:
        form = f"tpu:{name}:{_FORMS[row['dimensions']]}"
        if len(dimensions) != int(row["dimensions"]):
            count = row["dimensions"]
            refuse(f"a slice of {name} has {count} dimensions, such as {form}")
        if chips > 1 and (dimensions[0] % 2 or dimensions[1] % 2):
            refuse(
                "a host has 2x2 chips, so the first two numbers must be even; a single chip is "
                f"tpu:{name}:{'x'.join('1' * len(dimensions))}"
            )
        if chips > int(row["chips_per_pod"]):
            pod = f"a pod of {name} has {int(row['chips_per_pod']):,}"
            refuse(f"has {chips:,} chips; {pod}")
        memory_bytes = float(row["usable_gib_per_device"]) * 2**30
        link = "inter-chip interconnect"
        # Of all links of the chip, in one direction: Google's page of v5e has had 1600 Gbit/s, and
        # now has 400 GB/s in both directions.
        link_bytes_per_s = float(row["link_gbit_per_s_per_chip"]) * 1e9 / 8
        link_bytes_per_s /= devices_per_chip(row["kind"])
    kind = row["kind"]
    return Target(text, platform, kind, dimensions, int(memory_bytes), link, link_bytes_per_s, row)


def target_of_kind(device_kind: str, num_devices: int) -> Target | None:
    """Return the target with this number of devices of a kind, None if there is no such one."""
    for platform in _EXAMPLES:
        if (row := _row_of(device_kind, platform)) is None:
            continue
        if platform == "gpu":
            return parse_target(f"gpu:{row['name']}:{num_devices}")
        chips = max(1, num_devices // devices_per_chip(row["kind"]))
        side = 2 if chips % 4 == 0 else 1
        rest = ["1"] * (int(row["dimensions"]) - 2)
        try:
            shape = "x".join([str(side), str(chips // side), *rest])
            return parse_target(f"tpu:{row['name']}:{shape}")
        except BadInput:  # of part of a host, for example
            return None
    return None


def split_targets(names: str) -> list[str]:
    """Return names that commas separate.

    Raises:
      BadInput: a name is given twice.
    """
    listed = names.split(",")
    if not all(listed):
        raise BadInput(f"--target={names}: must name machines; --target=list shows all")
    if twice := [name for name in listed if listed.count(name) > 1]:
        raise BadInput(f"--target={names}: names {twice[0]} twice")
    return listed


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
        axis = min(growing, key=lambda i: (dimensions[i], -i))
        if target.platform == "gpu":
            axis = growing[-1]
        dimensions[axis] = min(2 * dimensions[axis], target.dimensions[axis])
        sizes.append(tuple(dimensions))
    machine = f"{target.platform}:{target.specs['name']}"
    return [parse_target(f"{machine}:{'x'.join(map(str, size))}") for size in sizes]


def l2_bytes(device_kind: str) -> int | None:
    """Return the size of a GPU's L2 cache by its name in JAX; None if the table has none."""
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


def has_fp8(device: Any) -> bool:
    """Return whether a JAX device multiplies 8-bit floating point, or is a CPU, for tests.

    NVIDIA's GPUs do from Ada on, TPUs if a peak of it is known.
    """
    if (capability := compute_capability(device)) is not None:
        return capability >= 8.9
    return device.platform == "cpu" or find_peak(device.device_kind, "fp8") is not None


def most_link_bytes_per_s(device_kind: str, to_host: bool) -> float:
    """Return what a device's link to the host, or all to others, carry at most in one direction.

    Of a device that the tables lack it is the most of any TPU, or of any GPU.
    """
    platform = "tpu" if device_kind.startswith("TPU") else "gpu"
    row = _row_of(device_kind, platform)
    rows = [row] if row else [*_rows(platform).values()]
    if to_host:
        return max(float(row["host_gb_per_s"]) for row in rows) * 1e9
    if platform == "gpu":
        names = ("link_gb_per_s", "bridge_gb_per_s")
        return max(float(row[name] or 0) for row in rows for name in names) * 1e9
    return max(
        # Two devices of a chip exchange through no link.
        find_bandwidth(row["kind"]) or 0.0
        if devices_per_chip(row["kind"]) > 1
        else float(row["link_gbit_per_s_per_chip"]) * 1e9 / 8
        for row in rows
    )


def _row_of(device_kind: str, platform: str = "gpu") -> dict[str, str] | None:
    kind, rows = without_maker(device_kind), _rows(platform).values()
    return next((row for row in rows if without_maker(row["kind"]) == kind), None)


@functools.cache
def _rows(platform: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in read_table(__file__, f"{platform}s.csv")}


def environment(target: Target) -> dict[str, str]:
    """Return the variables that a process needs before it imports JAX."""
    variables = {"JAX_PLATFORMS": "cpu"}
    if target.platform == "tpu":
        variables |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": target.specs["accelerator_type"],
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            # Else libtpu takes a lock and lets one process at a time in, with TPUs or without.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    return variables


def compiler_version(target: Target) -> str:
    """Return the name and version of the compiler's package.

    Raises:
      BadInput: it is not installed, for another jaxlib, or not for GPUs as old as the target's.
    """
    installed = {package: installed_version(package) for package in _COMPILERS[target.platform]}
    versions = [(package, version) for package, version in installed.items() if version]
    if not versions:
        raise BadInput(
            f"--target={target.name}: compiling for {target.platform.upper()}s needs "
            f"{' or '.join(installed)}: " + pip_command(_EXTRAS[target.platform])
        )
    [(package, version), *_], jaxlib = versions, installed_version("jaxlib")
    if target.platform == "gpu" and version != jaxlib:
        raise BadInput(
            f"--target={target.name}: {package} {version} does not go with jaxlib {jaxlib}: "
            f"pip install '{package}[with-cuda]=={jaxlib}'"
        )
    if target.platform == "gpu":
        capability = target.specs["compute_capability"]
        major, minor = map(int, capability.split("."))
        gpus = Accelerators("cuda", target.num_devices, capability=(major, minor))
        if not supports(extra := package.split("-")[1], gpus):
            raise BadInput(
                f"--target={target.name}: {package} compiles for no GPU of compute capability "
                f"{capability}; in an environment without it: "
                + pip_command(extra_for(gpus) or extra)
            )
    return f"{package} {version}"


def describe_gpu(target: Target) -> str:
    """Return XLA's description of a GPU as text (GpuTargetConfigProto), from `gpu.txtpb`."""
    specs = target.specs
    # Those that run here, or else those that the plugin was built with.
    libraries = _CUDA | cuda_versions(built=True) | cuda_versions()
    major, minor = specs["compute_capability"].split(".")
    return (
        pathlib.Path(__file__)
        .with_name("gpu.txtpb")
        .read_text()
        .format(
            **specs,
            major=major,
            minor=minor,
            shared_per_sm=int(specs["shared_kib_per_sm"]) * 1024,
            shared_per_block=int(specs["shared_kib_per_block"]) * 1024,
            bytes_per_s=int(find_bandwidth(target.kind) or 0),
            l2_bytes=l2_bytes(target.kind),
            memory_bytes=target.memory_bytes,
            dnn=libraries["cuDNN"].split("."),
            cuda=libraries["CUDA"].split("."),
        )
    )
