"""What `jaxbench doctor` checks: the machine and what is installed on it, a line each.

A new check is a function that yields `Check`s, and its place in `CHECKS`. It takes a second or two
at most.
"""

import collections
import ctypes
import math
import os
import pathlib
import platform
import resource
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psutil

from jaxbench.clock import ask
from jaxbench.errors import BadInput, first_line, jax_variable_problem
from jaxbench.hardware.accelerators import (
    NAMES,
    advice,
    check_platforms,
    extra_for,
    find_accelerators,
    installed_plugin,
    pip_command,
    unused_accelerators,
    usable_plugins,
)
from jaxbench.hardware.nvidia_libraries import (
    CUDA_DRIVER,
    cuda_versions,
    find_driver_library,
    shadowing_libraries,
)
from jaxbench.hardware.system import (
    Check,
    available_cores,
    cpu_quota,
    host_memory_bytes,
    import_tfds,
    installed_version,
    is_disturbed,
)
from jaxbench.paths import check_can_be_made

_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu")
# Less is a warning. A training run with data and checkpoints takes a few GiB of both.
_DISK_GIB, _MEMORY_GIB = 5, 2
_OPEN_FILES = 1024
# The processors' load is a mean over this time.
_BUSY_OVER_S = 0.5


def run_checks(
    checks: Iterable[Callable[..., Iterator[Check]]] | None = None, *args: Any
) -> Iterator[Check]:
    """Yield what these checks say of the arguments, each as soon as it is done; None: all."""
    for check in CHECKS if checks is None else checks:
        try:
            yield from check(*args)
        except Exception as error:  # a broken installation raises errors of any kind
            name = check.__name__.removeprefix("check_").replace("_", " ")
            state = f"{type(error).__name__}: {first_line(error)}"
            is_variable = jax_variable_problem(error)
            todo = "correct or unset it" if is_variable else "install jaxbench anew"
            yield Check(name, "problem", state, todo)


def _warn_if(is_scarce: bool, name: str, state: str, todo: str) -> Check:
    return Check(name, "warning", state, todo) if is_scarce else Check(name, "ok", state)


def check_python() -> Iterator[Check]:
    """Report the version of Python and the system."""
    system = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Check("Python", "ok", system)


def check_packages() -> Iterator[Check]:
    """Check the versions of JAX, of jaxlib, and of the plugins, which must be jaxlib's."""
    jaxlib = installed_version("jaxlib")
    for name in ("jax", "jaxlib", *filter(installed_version, _PLUGINS)):
        version = installed_version(name)
        if version is None:
            yield Check(name, "problem", "not installed", "pip install -U jax")
        elif version == jaxlib or not name.startswith("jax-"):
            platform = next((one for one in NAMES if one in name), None)
            if platform and installed_plugin(platform) not in usable_plugins():
                version += f", not used: the system shows no {NAMES[platform]}"
            yield Check(name, "ok", version)
        else:
            extra = name.split("-")[1]
            is_cuda = extra.startswith("cuda")
            todo = pip_command(extra) if is_cuda else "install the version of jaxlib"
            state = f"{version}, but jaxlib is {jaxlib}: JAX does not use it"
            yield Check(name, "problem", state, todo)


def check_data_sets() -> Iterator[Check]:
    """Check that TensorFlow Datasets, which data.source=tfds reads with, can be imported."""
    try:
        yield Check("TensorFlow Datasets", "ok", import_tfds().__version__)
    except BadInput as error:
        state, _, todo = str(error).rpartition("; ")
        yield Check("TensorFlow Datasets", "warning", state, todo)


def check_accelerators() -> Iterator[Check]:
    """Check what the system shows, and that NVIDIA's driver is not too old for JAX."""
    accelerators = find_accelerators()
    if not accelerators:
        yield Check("accelerators", "ok", "none that the system shows")
    for one in accelerators:
        todo = "" if extra_for(one) else advice(one)
        yield Check("accelerators", "problem" if todo else "ok", str(one), todo)


def check_cuda_libraries() -> Iterator[Check]:
    """Check, if the system shows an NVIDIA GPU, that JAX finds the libraries that it needs."""
    if not any(one.platform == "cuda" for one in find_accelerators()):
        return
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        path = find_driver_library(CUDA_DRIVER)
        todo = "install NVIDIA's driver, or give the container its GPUs: docker run --gpus=all"
        # It also makes the link of the short name that JAX asks for.
        todo = f"as root: ldconfig {path.parent}" if path else todo
        yield Check("CUDA driver", "problem", f"JAX does not find {path or CUDA_DRIVER}", todo)
    if shadowing := shadowing_libraries():
        state = f"{', '.join(shadowing[:3])} before pip's ({len(shadowing)} files)"
        yield Check("LD_LIBRARY_PATH", "warning", state, "unset it: it mixes two versions of CUDA")
    versions = cuda_versions()
    todo = pip_command("cuda12" if "cuda12" in (installed_plugin("cuda") or "") else "cuda13")
    for name, built in cuda_versions(built=True).items():
        version = versions.get(name)
        if version is None:
            yield Check(name, "problem", f"cannot be loaded; JAX was built with {built}", todo)
        # JAX refuses cuDNN of an older minor version, of the others only much older ones.
        elif name == "cuDNN" and _minor(version) < _minor(built):
            yield Check(name, "problem", f"{version}, JAX needs {built} or later", todo)
    if versions:
        state = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Check("CUDA libraries", "ok", state)


def _minor(version: str) -> list[int]:
    return [*map(int, version.split(".")[:2])]


def check_devices() -> Iterator[Check]:
    """Check the variables that choose JAX's devices, and look at the devices."""
    # Imported late: without JAX the other checks still say so.
    from jaxbench.hardware.backend_flags import prepare_backend, sums_are_right, wrong_sums_text
    from jaxbench.hardware.distorters import distorters
    from jaxbench.parallel.mesh import find_devices

    asked = os.environ.get("JAX_PLATFORMS", "")
    for name, check, subject, end in (
        # What jaxbench adds for CPU devices is set before JAX makes them.
        ("XLA_FLAGS", prepare_backend, "", "; "),
        ("JAX_PLATFORMS", check_platforms, f"{asked}: ", ": "),
    ):
        try:
            check()
        except BadInput as error:
            state, _, todo = str(error).partition(": ")[2].rpartition(end)
            yield Check(name, "problem", subject + state, todo)
            return
        yield Check(name, "ok", os.environ.get(name) or "not set")
    try:
        devices = find_devices()
    except BadInput as error:
        yield Check("devices", "problem", *str(error).rsplit("; ", 1))
        return
    counts = collections.Counter(device.device_kind for device in devices)
    state = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    unused = [line.partition(": ")[2] for line in unused_accelerators(devices[0].platform)]
    yield Check("devices", "problem" if unused else "ok", state, "; ".join(unused))
    if devices[0].platform == "cpu":
        if sums_are_right():
            yield Check("sums on the CPU", "ok", "right")
        else:
            yield Check("sums on the CPU", "problem", *wrong_sums_text().split(": ", 1))
    state = "; ".join(distorting := distorters()) or "none is set"
    yield _warn_if(bool(distorting), "debugging", state, "unset it before measuring")

    yield from run_checks((check_cached_programs,))
    if devices[0].platform == "gpu":
        yield from run_checks((check_boards, check_gpu_processes), devices)


def check_cached_programs() -> Iterator[Check]:
    """Check that the memory of a program from the compile cache is known."""
    import jax

    from jaxbench.xla.compile_cache import use_cache_of

    x_8 = jax.ShapeDtypeStruct((8,), "float32")

    def has_memory() -> bool:
        compiled = jax.jit(lambda x: x * 2 + 1).lower(x_8).compile()
        try:
            return compiled.memory_analysis() is not None
        except NotImplementedError:
            return False

    with tempfile.TemporaryDirectory() as folder, use_cache_of(folder):
        is_known = [has_memory(), has_memory()]
    state = "known, also from the cache" if all(is_known) else "unknown from the cache"
    state = state if is_known[0] else "not reported by this backend"
    todo = "give --compile_cache=off if the memory of a step matters"
    yield _warn_if(is_known == [True, False], "memory of programs", state, todo)


def check_boards(devices: Sequence[Any]) -> Iterator[Check]:
    """Check that NVML answers twice and refuses no sensor, and that JAX's memory is free."""
    from jaxbench.hardware.telemetry.nvml import NvmlReader, cuda_ordinals

    reader, readings = NvmlReader(cuda_ordinals(devices)), []
    try:
        readings = ask("NVML", lambda: [*reader.read(), *reader.read()])
    except Exception as error:  # of NVML, of the loader, of time
        todo = "no telemetry: give a container NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield Check("sensors", "warning", f"NVML: {first_line(error)}", todo)
    else:
        refused = {f"{one.device} {error}" for one in readings for error in one.errors}
        state = "; ".join(sorted(refused)) or ", ".join(readings[0].values)
        todo = "telemetry lacks them: ask the administrator to allow them"
        yield _warn_if(bool(refused), "sensors", state, todo)
    values_of = {one.device: one.values for one in readings}
    for device in devices:
        name, stats = f"memory of gpu{device.id}", device.memory_stats() or {}
        if "bytes_limit" not in stats:
            todo = "unset XLA_PYTHON_CLIENT_ALLOCATOR: peaks and limits are not known"
            yield Check(name, "warning", "JAX does not report it", todo)
            continue
        # Two slices of one board have one reading.
        values = values_of.get(f"gpu{device.id}", {})
        if "memory_total_bytes" not in values:
            continue
        total_gib = values["memory_total_bytes"] / 2**30
        used_gib = (values["memory_used_bytes"] - stats.get("pool_bytes", 0)) / 2**30
        limit_gib = stats["bytes_limit"] / 2**30
        state = f"JAX takes {limit_gib:.1f} GiB, {total_gib - used_gib:.1f} of {total_gib:.1f} free"
        part = max(0.0, 0.95 * (1 - used_gib / total_gib))
        todo = f"end other programs on it, or set XLA_CLIENT_MEM_FRACTION={part:.2f}"
        yield _warn_if(limit_gib > total_gib - used_gib, name, state, todo)


def check_gpu_processes(devices: Sequence[Any]) -> Iterator[Check]:
    """Check that no other process computes on the GPUs."""
    from jaxbench.hardware.telemetry.nvml import cuda_ordinals, other_gpu_processes

    others = other_gpu_processes(cuda_ordinals(devices))
    state = f"{others} on the GPUs" if others else "none on the GPUs"
    state = "unknown, as in a container" if others is None else state
    yield _warn_if(bool(others), "other processes", state, "end them: nvidia-smi lists them")


def check_folders() -> Iterator[Check]:
    """Check that the run directories and the compile cache can be written, and their disks."""
    from jaxbench.xla.compile_cache import cache_bucket, cache_folder

    folders = {
        "runs": (lambda: pathlib.Path("runs"), "cd to another folder, or give --workdir"),
        "compile cache": (cache_folder, "give --compile_cache=FOLDER, or off"),
    }
    if bucket := cache_bucket():
        del folders["compile cache"]
        yield Check("compile cache", "ok", bucket)
    for name, (folder, todo) in folders.items():
        try:
            path = folder()
            check_can_be_made(path, name)
        except BadInput as error:
            yield Check(name, "warning", str(error).partition(": ")[2], todo)
            continue
        parent = next(one for one in (path, *path.absolute().parents) if one.exists())
        free_gib = shutil.disk_usage(parent).free / 2**30
        state = f"{path.absolute()}, {free_gib:,.1f} GiB free"
        yield _warn_if(free_gib < _DISK_GIB, name, state, "free some space")


def check_host() -> Iterator[Check]:
    """Check the processors, the memory, and whether other processes use them."""
    # By core: the other figure begins anew with each call, also what `HostReader` counts.
    busy_percent = statistics.fmean(psutil.cpu_percent(_BUSY_OVER_S, percpu=True))
    cores, quota = f"{available_cores()} of {psutil.cpu_count()}", cpu_quota()
    cores += f", of whose time the container may use {quota:g}" if quota < math.inf else ""
    yield Check("processor cores", "ok", cores)
    state = f"{busy_percent:.0f} % of the processors are in use"
    todo = "end other programs before measuring: they slow runs down"
    disturbed = is_disturbed(busy_percent, busy_percent, not find_accelerators())
    yield _warn_if(disturbed, "load", state, todo)
    total_gib, free_gib = (amount / 2**30 for amount in host_memory_bytes())
    state = f"{free_gib:,.1f} of {total_gib:,.1f} GiB available"
    yield _warn_if(free_gib < _MEMORY_GIB, "memory", state, "end other programs")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        yield Check("open files", "ok", "no limit")
    else:
        yield _warn_if(soft < _OPEN_FILES, "open files", f"{soft:,} at most", "ulimit -n 4096")


# In the order of the lines. What JAX starts must not count as the host's load.
CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    check_python,
    check_packages,
    check_host,
    check_folders,
    check_accelerators,
    check_cuda_libraries,
    check_devices,
    check_data_sets,
)
