"""What `jaxbench doctor` checks: the machine and what is installed on it, a line each.

A new check is a function that yields `Check`s, and its place in `CHECKS`. It takes a second or two
at most.
"""

import collections
import math
import os
import pathlib
import platform
import resource
import shutil
import statistics
from collections.abc import Callable, Iterator

import psutil

from jaxbench.errors import BadInput, first_line, jax_variable_problem
from jaxbench.hardware.accelerators import (
    advice,
    check_platforms,
    extra_for,
    find_accelerators,
    installed_plugin,
    pip_command,
    unused_accelerators,
    usable_plugins,
)
from jaxbench.hardware.system import (
    BUSY_PERCENT,
    Check,
    available_cores,
    cpu_quota,
    host_memory_bytes,
    installed_version,
)
from jaxbench.paths import check_can_be_made

_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu")
# Less is a warning. A training run with data and checkpoints takes a few GiB of both.
_DISK_GIB, _MEMORY_GIB = 5, 2
_OPEN_FILES = 1024
# The processors' load is a mean over this time.
_BUSY_OVER_S = 0.5


def run_checks() -> Iterator[Check]:
    """Yield the checks, each as soon as it is done."""
    for check in CHECKS:
        try:
            yield from check()
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
        elif name == "libtpu" and installed_plugin("tpu") not in usable_plugins():
            yield Check(name, "ok", f"{version}, not used: the system shows no TPU")
        elif version == jaxlib or not name.startswith("jax-"):
            yield Check(name, "ok", version)
        else:
            extra = name.split("-")[1]
            is_cuda = extra.startswith("cuda")
            todo = pip_command(extra) if is_cuda else "install the version of jaxlib"
            state = f"{version}, but jaxlib is {jaxlib}: JAX does not use it"
            yield Check(name, "problem", state, todo)


def check_accelerators() -> Iterator[Check]:
    """Check what the system shows, and that NVIDIA's driver is not too old for JAX."""
    accelerators = find_accelerators()
    if not accelerators:
        yield Check("accelerators", "ok", "none that the system shows")
    for one in accelerators:
        todo = "" if extra_for(one) else advice(one)
        yield Check("accelerators", "problem" if todo else "ok", str(one), todo)


def check_devices() -> Iterator[Check]:
    """Check the variables that choose JAX's devices, and look at the devices."""
    # Imported late: without JAX the other checks still say so.
    from jaxbench.hardware.backend_flags import prepare_backend, sums_are_right, wrong_sums_text
    from jaxbench.hardware.distorters import distorters
    from jaxbench.parallel.mesh import why_no_devices

    try:
        # What jaxbench adds for CPU devices is set before JAX makes them.
        prepare_backend()
    except BadInput as error:
        state, _, todo = str(error).partition(": ")[2].rpartition("; ")
        yield Check("XLA_FLAGS", "problem", state, todo)
        return
    yield Check("XLA_FLAGS", "ok", os.environ.get("XLA_FLAGS") or "not set")
    asked = os.environ.get("JAX_PLATFORMS", "")
    try:
        check_platforms()
    except BadInput as error:
        state, _, todo = str(error).partition(": ")[2].rpartition(": ")
        yield Check("JAX_PLATFORMS", "problem", f"{asked}: {state}", todo)
        return
    yield Check("JAX_PLATFORMS", "ok", asked or "not set")
    try:
        import jax

        devices = jax.local_devices()
    except RuntimeError as error:
        reason, todo = why_no_devices(error)
        yield Check("devices", "problem", f"JAX finds none: {reason}", todo)
        return
    counts = collections.Counter(device.device_kind for device in devices)
    state = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    unused = [line.partition(": ")[2] for line in unused_accelerators(devices[0].platform)]
    yield Check("devices", "problem" if unused else "ok", state, "; ".join(unused))
    if sums_are_right():
        yield Check("sums on the CPU", "ok", "right")
    else:
        yield Check("sums on the CPU", "problem", *wrong_sums_text().split(": ", 1))
    state = "; ".join(distorting := distorters()) or "none is set"
    yield _warn_if(bool(distorting), "debugging", state, "unset it before measuring")


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
    yield _warn_if(busy_percent > BUSY_PERCENT, "load", state, todo)
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
    check_devices,
)
