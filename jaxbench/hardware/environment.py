"""Describe what a run runs on: versions, devices, host, code."""

import contextlib
import hashlib
import math
import pathlib
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import psutil

from jaxbench.files import DOCUMENT_BYTES, open_regular
from jaxbench.hardware.accelerators import ask_nvml, nvidia_driver
from jaxbench.hardware.distorters import distorters
from jaxbench.hardware.nvidia_libraries import cuda_versions
from jaxbench.hardware.system import (
    available_cores,
    cpu_quota,
    host_memory_bytes,
    installed_version,
    search_file,
)
from jaxbench.hardware.telemetry.nvml import cuda_ordinals, describe_boards
from jaxbench.parallel.mesh import local_devices
from jaxbench.xla.variables import relevant_variables

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
_PACKAGES = (
    *("jaxbench", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu"),
    *("flax", "optax", "orbax-checkpoint", "numpy", "tensorflow-datasets"),
)


def describe_environment(devices: Sequence[jax.Device]) -> dict[str, Any]:
    """Return the facts needed to reproduce a figure; unknown ones are None.

    Only GPUs have `boards` and versions of CUDA's libraries.
    """
    here = [device for device in devices if device in jax.local_devices()]  # none of a target
    boards = describe_boards(cuda_ordinals(here))
    settings = jax.config.values
    cache = settings["jax_enable_compilation_cache"] and settings["jax_compilation_cache_dir"]
    versions = {name: v for name in _PACKAGES if (v := installed_version(name))}
    return {
        "versions": versions | (cuda_versions() if devices[0].platform == "gpu" else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": platform.node(),
        "backend": devices[0].platform,
        "devices": [{"id": device.id, "kind": device.device_kind} for device in devices],
        "device_kind": ", ".join(sorted({device.device_kind for device in devices})),
        "num_devices": len(devices),
        "num_processes": jax.process_count(),
        "num_local_devices": len(local_devices(devices)),
        "driver": nvidia_driver() or (ask_nvml().driver if boards else None),
        **({"boards": boards} if boards else {}),
        "variables": relevant_variables(),
        "distorters": distorters(),
        # What fp32 means on this run: null is the backend's default, TF32 on Ampere and later.
        "matmul_precision": settings["jax_default_matmul_precision"],
        # Its folder; null if it is off.
        "compile_cache": cache or None,
        "git": describe_git(),
        "cpu": search_file("/proc/cpuinfo", r"^model name\s*:\s*(.+)$")
        or platform.processor()
        or None,
        "cpu_cores": available_cores(),
        # Cores whose time the container may use; it can be less than one.
        "cpu_quota": quota if (quota := cpu_quota()) < math.inf else None,
        "host_memory_bytes": host_memory_bytes()[0],
    }


def describe_code() -> dict[str, str]:
    """Return the versions that must be the same on all hosts of a run."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("[!.]*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        # What cannot be read is not imported.
        with (
            contextlib.suppress(OSError),
            open_regular(path, "rb", most_bytes=DOCUMENT_BYTES) as file,
        ):
            digest.update(file.read())
    return {
        "jax": jax.__version__,
        "jaxbench's source (SHA-256)": digest.hexdigest()[:12],
    }


def host_peak_memory_bytes() -> int:
    """Return the peak resident memory of this process on the host.

    Without Linux's /proc it is at least that of the process that started this one, from which
    `ru_maxrss` continues.
    """
    if kib := search_file("/proc/self/status", r"^VmHWM:\s*(\d+) kB$"):
        return int(kib) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def process_memory_bytes() -> int:
    """Return the resident memory of this process on the host now, without its children."""
    return psutil.Process().memory_info().rss


def private_memory_bytes() -> int:
    """Return the private memory of this process: on Linux what RLIMIT_DATA limits.

    Elsewhere its resident memory.
    """
    info = psutil.Process().memory_info()
    return getattr(info, "data", info.rss)


def describe_git() -> dict[str, Any] | None:
    """Return the commit of jaxbench's checkout or `git archive`; None for an installed wheel."""
    here = pathlib.Path(__file__).resolve()

    def git(*args):
        # Without a lock of the index, which a killed process would leave behind.
        command = ["git", "--no-optional-locks", "-C", str(here.parent), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10)

    try:
        # An environment inside somebody else's repository is not jaxbench's checkout.
        if git("ls-files", "--error-unmatch", here.name).returncode:
            return _archived()
        commit = git("rev-parse", "HEAD").stdout.strip()
        dirty = bool(git("status", "--porcelain", "--untracked-files=no").stdout.strip())
    except FileNotFoundError:  # no git
        return _archived()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"commit": commit, "dirty": dirty} if commit else None


def _archived() -> dict[str, Any] | None:
    """Return the commit that `git archive` wrote into a file, as sent to rented machines."""
    path = _PACKAGE / "commit.txt"
    commit = path.read_text().strip() if path.exists() else ""
    return {"commit": commit, "dirty": False} if re.fullmatch("[0-9a-f]{40,64}", commit) else None
