"""Devices to compile for, made by XLA's compilers for TPUs and GPUs without such a device.

A process makes those of one kind, in an environment that is set before JAX is imported: see
`environment`.
"""

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from jaxbench.errors import BadInput, first_line
from jaxbench.hardware.accelerators import pip_command
from jaxbench.hardware.system import installed_version
from jaxbench.hardware.targets.target import Target

# The compilers' packages; any of them will do. They need no such device.
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin")}
_EXTRAS = {"tpu": "tpu", "gpu": "cuda12"}
# What a description of a GPU names where no cuDNN is installed.
_CUDNN = "9.8.0"
# As protocol buffers word it: line, column, reason.
_BAD_FIELD = re.compile(r"Error parsing text-format \S+ (\d+):\d+: (.*?)\.?$", re.MULTILINE)
# XLA's limits that all NVIDIA GPUs share, and the form of its description of one
# (GpuTargetConfigProto as text).
_GPU = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_per_sm}
  shared_memory_per_block_optin: {shared_per_block}
  threads_per_core_limit: {threads_per_sm}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  core_count: {sms}
  fpus_per_core: {fpus_per_sm}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bytes_per_s}
  l2_cache_size: {l2_bytes}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: {dnn[0]} minor: {dnn[1]} patch: {dnn[2]} }}
device_description_str: "{kind}"
"""


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
      BadInput: it is not installed, or for another jaxlib.
    """
    installed = {package: installed_version(package) for package in _COMPILERS[target.platform]}
    versions = [(package, version) for package, version in installed.items() if version]
    if not versions:
        raise BadInput(
            f"--target={target.name}: compiling for it needs {' or '.join(installed)}: "
            + pip_command(_EXTRAS[target.platform])
        )
    [(package, version), *_], jaxlib = versions, installed_version("jaxlib")
    if target.platform == "gpu" and version != jaxlib:
        raise BadInput(
            f"--target={target.name}: {package} {version} does not go with jaxlib {jaxlib}: "
            f"pip install '{package}[with-cuda]=={jaxlib}'"
        )
    return f"{package} {version}"


def create_devices(target: Target, bytes_per_s: float | None) -> tuple[Any, ...]:
    """Return the JAX devices of a target; they can be compiled for, and run nothing.

    Args:
      target: the machine.
      bytes_per_s: its memory bandwidth, for the description of a GPU; None where it is not known.

    Raises:
      BadInput: the compiler does not know a machine of this size, or not all fields of a GPU's
        description.
    """
    from jax.experimental import topologies

    compiler = compiler_version(target)
    with _output_of_cpp() as output:
        try:
            how = _tpu(target) if target.platform == "tpu" else _gpu(target, bytes_per_s)
            return tuple(topologies.get_topology_desc(**how).devices)
        except Exception as error:
            # XLA names the field of a description that it does not know on stderr alone.
            output.seek(0)
            unknown = _BAD_FIELD.search(output.read().decode(errors="replace"))
            why = f"line {unknown[1]}: {unknown[2]} ({compiler})" if unknown else first_line(error)
            raise BadInput(f"--target={target.name}: {why}") from error


@contextlib.contextmanager
def _output_of_cpp() -> Iterator[Any]:
    """Have what is written to stderr inside the `with` go into a file."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _gpu(target: Target, bytes_per_s: float | None) -> dict[str, Any]:
    hosts, gpus = target.dimensions
    description = target.specs.get("description") or describe_gpu(target, bytes_per_s)
    return {"platform": "cuda", "topology": f"1x{hosts}x{gpus}", "target_config": description}


def _tpu(target: Target) -> dict[str, Any]:
    size = "x".join(map(str, target.dimensions))
    how = {"platform": "tpu", "topology_name": f"{target.specs['name']}:{size}"}
    if target.specs["chip_config"]:
        # libtpu's default for v4 has two devices a chip; JAX on a v4 has one.
        how["chip_config_name"] = target.specs["chip_config"]
    if math.prod(target.dimensions) == 1:
        # A single chip is no whole host.
        how["chips_per_host_bounds"] = (1, 1, 1)
    return how


def describe_gpu(target: Target, bytes_per_s: float | None) -> str:
    """Return XLA's description of a GPU as text (GpuTargetConfigProto)."""
    specs = target.specs
    installed = filter(None, map(installed_version, ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")))
    major, _, minor = specs["compute_capability"].partition(".")
    return _GPU.format(
        kind=target.kind,
        major=major,
        minor=minor,
        sms=specs["sms"],
        fpus_per_sm=specs["fpus_per_sm"],
        threads_per_sm=specs["threads_per_sm"],
        shared_per_sm=int(specs["shared_kib_per_sm"]) * 1024,
        shared_per_block=int(specs["shared_kib_per_block"]) * 1024,
        bytes_per_s=int(bytes_per_s or 0),
        l2_bytes=int(float(specs["l2_mib"]) * 2**20),
        clock_ghz=specs["clock_ghz"],
        memory_bytes=target.memory_bytes,
        dnn=next(installed, _CUDNN).split("."),
    )
