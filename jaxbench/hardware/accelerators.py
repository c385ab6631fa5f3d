"""Find the accelerators that the system shows, without JAX, and how to install JAX for them."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import pkgutil
import re

from jaxbench.clock import ask
from jaxbench.errors import BadInput
from jaxbench.hardware.nvidia_libraries import load_nvml
from jaxbench.hardware.system import search_file
from jaxbench.terminal import warn

# The extras for NVIDIA GPUs, best first, with the oldest driver and the lowest compute capability:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
# https://docs.jax.dev/en/latest/installation.html
_CUDA = {"cuda13": ((580,), (7, 5)), "cuda12": ((525, 60, 13), (5, 2))}
NAMES = {"cuda": "NVIDIA GPU", "tpu": "TPU"}
_ROOT = pathlib.Path("/")
# Google's other PCI devices are disks and network cards, of these classes.
_GOOGLE, _NOT_TPUS = "0x1ae0", ("0x01", "0x02")
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Accelerators:
    """The accelerators of one platform that the system shows."""

    platform: str  # cuda or tpu
    count: int
    driver: str | None = None  # the version of NVIDIA's, if it is known
    capability: tuple[int, int] | None = None  # the lowest compute capability, if it is known

    def __str__(self) -> str:
        driver = f" (driver {self.driver})" if self.driver else ""
        return f"{self.count} {NAMES[self.platform]}{'s' * (self.count > 1)}{driver}"


def ask_nvml() -> Accelerators:
    """Ask NVIDIA's management library; without it, or if it hangs, nothing is known."""
    try:
        return ask("NVML", _ask_nvml)
    except TimeoutError as error:
        warn(f"jaxbench: {error}")
        return Accelerators("cuda", 0)


def _ask_nvml() -> Accelerators:
    nvml = load_nvml()
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


def find_accelerators() -> list[Accelerators]:
    """Return the NVIDIA GPUs and TPUs that the system shows to this process.

    NVML is asked if the files show a GPU, or may hide one (WSL).
    """
    accelerators = []
    # /proc shows the driver inside containers, too, that were given no GPU.
    gpus = len([*_ROOT.glob("dev/nvidia[0-9]*")])
    if gpus or (_ROOT / "dev/dxg").exists():
        listed = ask_nvml()
        if count := gpus or listed.count:
            driver = listed.driver or nvidia_driver()
            accelerators.append(Accelerators("cuda", count, driver, listed.capability))
    if _has_tpu_files() and (tpus := _count_tpus()):
        accelerators.append(Accelerators("tpu", tpus))
    return accelerators


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's kernel driver, None without it."""
    path = _ROOT / "proc/driver/nvidia/version"
    return search_file(path, r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)")


def unused_accelerators(platform: str) -> list[str]:
    """Return the warning that JAX uses the CPU although there is an accelerator.

    No warning for a user who chose the CPU, simulated devices, or hid the GPUs.
    """
    chosen = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_NUM_CPU_DEVICES")
    simulated = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if platform != "cpu" or chosen or simulated:
        return []
    hidden = "cuda" if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") else ""
    return [
        f"JAX uses the CPU, but the machine has {one}: {advice(one)}"
        for one in find_accelerators()
        if one.platform != hidden
    ]


def check_platforms() -> None:
    """Raise BadInput if JAX_PLATFORMS asks for accelerators that JAX has no plugin for.

    Or if JAX does not take the names as they are written. Other platforms, and plugins that find no
    device, are JAX's to judge.
    """
    given = os.environ.get("JAX_PLATFORMS", "")
    asked = [name.strip("\"' ").lower() for name in given.split(",")]
    meant = ",".join(filter(None, asked))
    if given not in ("", meant) and {*filter(None, asked)} <= {*NAMES, "cpu", "gpu", "rocm"}:
        raise BadInput(f"JAX_PLATFORMS={given}: JAX does not know this spelling: write {meant!r}")
    for name in asked:
        platform = "cuda" if name == "gpu" and not installed_plugin("rocm") else name
        if platform not in NAMES or installed_plugin(platform):
            continue
        shown = {one.platform: one for one in find_accelerators()}
        # Of several platforms JAX leaves out those that the machine does not have.
        if platform in shown or len(asked) == 1:
            one = shown.get(platform, Accelerators(platform, 0))
            machine = str(one) if one.count else f"no {NAMES[platform]} that the system shows"
            raise BadInput(
                f"JAX_PLATFORMS={','.join(asked)}: JAX has no plugin for {NAMES[platform]}s; the "
                f"machine has {machine}: {advice(one)}"
            )


def advice(accelerators: Accelerators) -> str:
    """Return what to do so that JAX uses accelerators: in most cases a command of pip."""
    extra = extra_for(accelerators)
    if extra is None:
        return (
            "JAX needs an NVIDIA driver of 525.60.13 or later and GPUs of compute capability 5.2 "
            "or higher"
        )
    plugin = installed_plugin(accelerators.platform)
    if plugin and (extra == "tpu" or extra in plugin):
        return f"{plugin} is installed, but JAX does not use it; see jaxbench doctor"
    return pip_command(extra)


def extra_for(accelerators: Accelerators) -> str | None:
    """Return the extra of jaxbench that brings JAX for accelerators, None if none does."""
    if accelerators.platform == "tpu":
        return "tpu"
    return next((extra for extra in _CUDA if supports(extra, accelerators)), None)


def supports(extra: str, gpus: Accelerators) -> bool:
    """Return whether an extra for NVIDIA GPUs is for their driver and compute capability."""
    oldest_driver, lowest_capability = _CUDA[extra]
    driver = tuple(map(int, re.findall(r"\d+", gpus.driver or ""))) or (math.inf,)
    return driver >= oldest_driver and (gpus.capability or (math.inf,)) >= lowest_capability


def pip_command(extra: str) -> str:
    """Return the command that installs jaxbench with an extra: from its checkout, or by name."""
    if not (_CHECKOUT / "setup.cfg").is_file():
        return f"pip install 'jaxbench[{extra}]'"
    here = "." if pathlib.Path.cwd() == _CHECKOUT else str(_CHECKOUT)
    return f"pip install -e '{here}[{extra}]'"


def _has_tpu_files() -> bool:
    return any([*_ROOT.glob(f"dev/{name}[0-9]*")] for name in ("accel", "vfio/"))


def _count_tpus() -> int:
    """Return the number of PCI devices that are TPUs."""
    count = 0
    for vendor in _ROOT.glob("sys/bus/pci/devices/*/vendor"):
        if search_file(vendor, r"(\S+)") == _GOOGLE:
            device_class = search_file(vendor.with_name("class"), r"(\S+)") or ""
            count += not device_class.startswith(_NOT_TPUS)
    return count


def installed_plugin(platform: str) -> str | None:
    """Return the name of JAX's plugin for a platform, None if none is installed."""
    if platform == "tpu":
        library = os.environ.get("TPU_LIBRARY_PATH")
        return library or ("libtpu" if importlib.util.find_spec("libtpu") else None)
    return next((name for name in _jax_plugins() if platform in name), None)


def usable_plugins() -> list[str]:
    """Return the plugins that may find an accelerator on this machine.

    A TPU is absent only if nothing hints at one (a device file, a PCI device or a variable), an
    NVIDIA GPU only if it has no device file. For other accelerators an installed plugin is enough.
    """
    may_have_cuda = any(_ROOT.glob("dev/nvidia*")) or (_ROOT / "dev/dxg").exists()
    plugins = [name for name in _jax_plugins() if "cuda" not in name or may_have_cuda]
    # The two that are excepted are set by JAX if it sees no TPU, and by importing libtpu.
    hint = r"(CLOUD_|LIB)?TPU_(?!SKIP_MDS_QUERY$|LIBRARY_PATH$)|JAX_FORCE_TPU_INIT$|MEGASCALE_"
    if any(re.match(hint, name) for name in os.environ) or _has_tpu_files() or _count_tpus():
        plugins.append(installed_plugin("tpu") or "")
    return [*filter(None, (*plugins, os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS")))]


def _jax_plugins() -> list[str]:
    """Return the names of the plugins that JAX would load, libtpu apart."""
    # Where JAX looks, too.
    package = importlib.util.find_spec("jax_plugins")
    folders = package.submodule_search_locations if package else ()
    names = [module.name for module in pkgutil.iter_modules(folders)]
    return names + [point.value for point in importlib.metadata.entry_points(group="jax_plugins")]
