"""Find the accelerators that the system shows, without JAX, and how to install JAX for them."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import pkgutil
import re
from collections.abc import Callable, Mapping

from jaxbench.errors import BadInput
from jaxbench.hardware.system import search_file

# The extras for NVIDIA GPUs, best first, with the oldest driver and the lowest compute capability:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
# https://docs.jax.dev/en/latest/installation.html
_CUDA = {"cuda13": ((580,), (7, 5)), "cuda12": ((525, 60, 13), (5, 2))}
_NAMES = {"cuda": "NVIDIA GPU", "tpu": "TPU"}
_ROOT = pathlib.Path("/")
# Google's other PCI devices are disks and network cards, of these classes.
_GOOGLE, _NOT_TPUS = "0x1ae0", ("0x01", "0x02")
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Accelerators:
    """The accelerators of one platform, cuda or tpu, that the system shows.

    `driver` is the version of NVIDIA's driver, `capability` the lowest compute capability of its
    GPUs; None if they are not known.
    """

    platform: str
    count: int
    driver: str | None = None
    capability: tuple[int, int] | None = None

    def __str__(self) -> str:
        driver = f" (driver {self.driver})" if self.driver else ""
        return f"{self.count} {_NAMES[self.platform]}{'s' * (self.count > 1)}{driver}"


def ask_nvml() -> Accelerators:
    """Ask NVIDIA's management library; without it nothing is known."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        capabilities = [tuple(nvml.nvmlDeviceGetCudaComputeCapability(one)) for one in handles]
        driver = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return Accelerators("cuda", 0)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return Accelerators("cuda", len(handles), driver, min(capabilities, default=None))


def find_accelerators(
    root: pathlib.Path = _ROOT, nvml: Callable[[], Accelerators] = ask_nvml
) -> list[Accelerators]:
    """Return the NVIDIA GPUs and TPUs that the system shows to this process.

    Args:
      root: the folder that holds dev, proc and sys.
      nvml: asked where the files show a GPU, or may hide one (WSL).
    """
    found = []
    # /proc shows the driver inside containers, too, that were given no GPU.
    gpus = len([*root.glob("dev/nvidia[0-9]*")])
    if gpus or (root / "dev/dxg").exists():
        listed = nvml()
        if count := gpus or listed.count:
            driver = listed.driver or nvidia_driver(root)
            found.append(Accelerators("cuda", count, driver, listed.capability))
    if _has_tpu_files(root) and (tpus := _count_tpus(root)):
        found.append(Accelerators("tpu", tpus))
    return found


def nvidia_driver(root: pathlib.Path = _ROOT) -> str | None:
    """Return the version of NVIDIA's kernel driver, None without it."""
    path = root / "proc/driver/nvidia/version"
    return search_file(path, r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)")


def unused_accelerators(
    platform: str,
    environ: Mapping[str, str] = os.environ,
    root: pathlib.Path = _ROOT,
    nvml: Callable[[], Accelerators] = ask_nvml,
) -> list[str]:
    """Return the warning that JAX uses the CPU although there is an accelerator.

    No warning for a user who chose the CPU, simulated devices, or hid the GPUs.
    """
    chosen = environ.get("JAX_PLATFORMS") or environ.get("JAX_NUM_CPU_DEVICES")
    simulated = "xla_force_host_platform_device_count" in environ.get("XLA_FLAGS", "")
    if platform != "cpu" or chosen or simulated:
        return []
    hidden = {"cuda"} if environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") else set()
    return [
        f"JAX uses the CPU, but the machine has {found}: {advice(found)}"
        for found in find_accelerators(root, nvml)
        if found.platform not in hidden
    ]


def check_platforms(
    environ: Mapping[str, str] = os.environ,
    root: pathlib.Path = _ROOT,
    nvml: Callable[[], Accelerators] = ask_nvml,
) -> None:
    """Raise BadInput where JAX_PLATFORMS asks for accelerators that JAX has no plugin for.

    Other platforms, and plugins that find no device, are JAX's to judge.
    """
    asked = [name.strip().lower() for name in environ.get("JAX_PLATFORMS", "").split(",")]
    for name in asked:
        platform = "cuda" if name == "gpu" and not installed_plugin("rocm") else name
        if platform not in _NAMES or installed_plugin(platform):
            continue
        shown = {found.platform: found for found in find_accelerators(root, nvml)}
        # Of several platforms JAX leaves out those that the machine does not have.
        if platform in shown or len(asked) == 1:
            found = shown.get(platform, Accelerators(platform, 0))
            machine = str(found) if found.count else f"no {_NAMES[platform]} that the system shows"
            raise BadInput(
                f"JAX_PLATFORMS={','.join(asked)}: JAX has no plugin for {_NAMES[platform]}s; the "
                f"machine has {machine}: {advice(found)}"
            )


def advice(found: Accelerators) -> str:
    """Return what to do so that JAX uses accelerators: in most cases a command of pip."""
    extra = extra_for(found)
    if extra is None:
        return (
            "JAX needs an NVIDIA driver of 525.60.13 or later and GPUs of compute capability 5.2 "
            "or higher"
        )
    if plugin := installed_plugin(found.platform):
        extras = [name for name in _CUDA if name in plugin]
        if extra in extras or found.platform == "tpu":
            return f"{plugin} is installed, but JAX does not use it; see jaxbench doctor"
    return pip_command(extra)


def extra_for(found: Accelerators) -> str | None:
    """Return the extra of jaxbench that brings JAX for accelerators, None where none does."""
    if found.platform == "tpu":
        return "tpu"
    driver = tuple(map(int, re.findall(r"\d+", found.driver or "")))
    for extra, (oldest_driver, lowest_capability) in _CUDA.items():
        is_old = driver and driver < oldest_driver
        if not is_old and not (found.capability and found.capability < lowest_capability):
            return extra
    return None


def pip_command(extra: str) -> str:
    """Return the command that installs jaxbench with an extra: from its checkout, or by name."""
    if not (_CHECKOUT / "setup.cfg").is_file():
        return f"pip install 'jaxbench[{extra}]'"
    here = "." if pathlib.Path.cwd() == _CHECKOUT else str(_CHECKOUT)
    return f"pip install -e '{here}[{extra}]'"


def _has_tpu_files(root: pathlib.Path) -> bool:
    return any([*root.glob(f"dev/{name}[0-9]*")] for name in ("accel", "vfio/"))


def _count_tpus(root: pathlib.Path) -> int:
    """Return the number of PCI devices that are TPUs."""
    count = 0
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        if search_file(vendor, r"(\S+)") == _GOOGLE:
            device_class = search_file(vendor.with_name("class"), r"(\S+)") or ""
            count += not device_class.startswith(_NOT_TPUS)
    return count


def installed_plugin(platform: str) -> str | None:
    """Return the name of JAX's plugin for a platform, None where none is installed."""
    if platform == "tpu":
        library = os.environ.get("TPU_LIBRARY_PATH")
        return library or ("libtpu" if importlib.util.find_spec("libtpu") else None)
    return next((name for name in _jax_plugins() if platform in name), None)


def usable_plugins(
    environ: Mapping[str, str] = os.environ, root: pathlib.Path = _ROOT
) -> list[str]:
    """Return the plugins that may find an accelerator on this machine.

    A TPU is absent only if nothing hints at one, an NVIDIA GPU only if it has no device file. For
    other accelerators an installed plugin is enough.
    """
    may_have_cuda = any(root.glob("dev/nvidia*")) or (root / "dev/dxg").exists()
    plugins = [name for name in _jax_plugins() if "cuda" not in name or may_have_cuda]
    library = installed_plugin("tpu") if _may_have_tpu(environ, root) else None
    return [*plugins, *filter(None, (library, environ.get("PJRT_NAMES_AND_LIBRARY_PATHS")))]


def _may_have_tpu(environ: Mapping[str, str], root: pathlib.Path) -> bool:
    """Return whether anything hints at a TPU: a device file, a PCI device or a variable."""
    # The two that are excepted are set by JAX if it sees no TPU, and by importing libtpu.
    hint = r"(CLOUD_|LIB)?TPU_(?!SKIP_MDS_QUERY$|LIBRARY_PATH$)|JAX_FORCE_TPU_INIT$|MEGASCALE_"
    return (
        any(re.match(hint, name) for name in environ)
        or _has_tpu_files(root)
        or _count_tpus(root) > 0
    )


def _jax_plugins() -> list[str]:
    """Return the names of the plugins that JAX would load, libtpu apart."""
    # Where JAX looks, too.
    package = importlib.util.find_spec("jax_plugins")
    places = package.submodule_search_locations if package else ()
    names = [module.name for module in pkgutil.iter_modules(places)]
    return names + [point.value for point in importlib.metadata.entry_points(group="jax_plugins")]
