"""NVIDIA's libraries: where those of the driver are, and which versions of CUDA's JAX has loaded.

Both are found late: a machine without GPUs has neither.
"""

import contextlib
import ctypes
import importlib.util
import os
import pathlib
from typing import Any

_ROOT = pathlib.Path("/")
# Where containers and virtual machines have the driver's libraries, if the loader does not look
# there: Kubernetes, WSL, images without `ldconfig`, Debian, NVIDIA's operator, NixOS.
_FOLDERS = (
    *("usr/local/nvidia/lib64", "home/kubernetes/bin/nvidia/lib64", "usr/lib/wsl/lib"),
    *("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"),
    *("usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/nvidia", "run/opengl-driver/lib"),
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
)
CUDA_DRIVER, NVML = "libcuda.so.1", "libnvidia-ml.so.1"


def find_driver_library(name: str) -> pathlib.Path | None:
    """Return the file of a library of NVIDIA's driver, also without a link of its short name."""
    paths = (
        path
        for folder in _FOLDERS
        for path in sorted((_ROOT / folder).glob(f"{name.removesuffix('.1')}.*"))
    )
    return next(paths, None)


def load_driver_library(name: str) -> Any:
    """Load a library of NVIDIA's driver from where the loader looks, or else from where it is.

    Raises:
      OSError: there is none.
    """
    try:
        return ctypes.CDLL(name)
    except OSError:
        if (path := find_driver_library(name)) is None:
            raise
        return ctypes.CDLL(str(path))


def load_nvml() -> Any:
    """Return pynvml; its first call raises NVMLError if there is no library."""
    import pynvml

    # pynvml loads it by this name, and the loader then gives what is loaded.
    with contextlib.suppress(OSError):
        load_driver_library(NVML)
    return pynvml


def cuda_versions(*, built: bool = False) -> dict[str, str]:
    """Return the versions of CUDA's libraries by their names, without those that do not load.

    With `built`, those that JAX's plugin was built with. Without a plugin there are none.
    """
    from jax._src import lib  # the versions have no public name

    which, plugin = "build" if built else "get", getattr(lib, "cuda_versions", None)
    numbers = {}
    for name, key in (("CUDA", "cuda_runtime"), ("cuDNN", "cudnn"), ("cuBLAS", "cublas")):
        with contextlib.suppress(AttributeError, RuntimeError):  # no plugin, or no such library
            numbers[name] = getattr(plugin, f"{key}_{which}_version")()
    if plugin and not built:
        # As JAX does: first pip's, then the one that the loader finds.
        paths = [folder / "nccl/lib/libnccl.so.2" for folder in _pip_folders()]
        path = next(filter(pathlib.Path.exists, paths), "libnccl.so.2")
        number = ctypes.c_int()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(number))
            numbers["NCCL"] = number.value
    # 13050 is CUDA 13.5, 91201 is cuDNN 9.12.1.
    return {
        name: f"{number // 1000}.{number % 1000 // 10}"
        if name == "CUDA"
        else f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"
        for name, number in numbers.items()
    }


def shadowing_libraries() -> list[str]:
    """Return the files in folders of LD_LIBRARY_PATH that stand before those of pip's packages.

    The loader takes them first for what CUDA's libraries load themselves.
    """
    folders = _pip_folders()
    names = {path.name for folder in folders for path in folder.glob("*/lib/lib*.so*")}
    return [
        str(pathlib.Path(folder, name))
        for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if folder and not any(one in pathlib.Path(folder).resolve().parents for one in folders)
        for name in sorted(names)
        if pathlib.Path(folder, name).exists()
    ]


def _pip_folders() -> list[pathlib.Path]:
    """Return the folders of pip's packages of CUDA's libraries."""
    package = importlib.util.find_spec("nvidia")
    folders = package.submodule_search_locations if package else None
    return [*map(pathlib.Path, folders or ())]
