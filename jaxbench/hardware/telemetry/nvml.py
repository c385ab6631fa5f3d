"""Read NVIDIA GPUs with NVML, through nvidia-ml-py: sensors, errors, processes and power limits.

Functions, units and error codes: https://docs.nvidia.com/deploy/nvml-api/
NVML has no count of Xid messages, which the driver writes only into the system's log. It is
imported late, so that it costs a machine without GPUs nothing. It may hang: the reader's `read` is
for a thread, all other functions wait for a limited time.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from jaxbench.clock import ask
from jaxbench.hardware.nvidia_libraries import CUDA_DRIVER, load_driver_library, load_nvml
from jaxbench.hardware.telemetry.readers import Reading

# NVML's reasons for clocks that are lower than asked for (nvmlClocksEventReasons).
_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
# jaxbench's own name beside sw_power_cap: somebody has set the limit below the board's default.
LOWERED_LIMIT = "power_limit_lowered"
# Functions that had another name before: older drivers know only that one.
_REASON_FUNCTIONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_TEMPERATURE_FUNCTIONS = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")


class NvmlReader:
    """Reader of the boards of CUDA devices, {device's name: its CUDA ordinal in this process}.

    The CUDA driver tells each device's board, by PCI address. So CUDA_VISIBLE_DEVICES (numbers or
    UUIDs), CUDA_DEVICE_ORDER and containers need no rules here. Where the driver does not tell,
    nothing is read rather than another board.
    """

    name = "NVML"
    reads_energy = True

    def __init__(self, ordinals: Mapping[str, int]):
        self._ordinals = ordinals
        self._boards: list[Board] | None = None

    def read(self) -> Iterator[Reading]:
        nvml = load_nvml()
        if self._boards is None:
            self._boards = find_boards(nvml, self._ordinals)
        for board in self._boards:
            yield _read_board(nvml, board)


class Board(NamedTuple):
    """The board of a device: gpu, or mig if it is sliced; its PCI address, and NVML's handle."""

    device: str
    kind: str
    address: str
    handle: Any


def cuda_ordinals(devices: Sequence[Any]) -> dict[str, int]:
    """Return {name: CUDA ordinal in this process} of JAX devices; nothing for other devices."""
    gpus = [device for device in devices if device.platform == "gpu"]
    return {f"gpu{device.id}": device.local_hardware_id for device in gpus}


def find_boards(nvml: Any, ordinals: Mapping[str, int]) -> list[Board]:
    """Return the boards of CUDA devices, each once, for {device's name: its CUDA ordinal}."""
    nvml.nvmlInit()
    boards: dict[str, Board] = {}
    for device, ordinal in ordinals.items():
        address = pci_address(ordinal)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address)
        try:
            sliced = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError:  # a board or a driver that knows no MIG
            sliced = False
        # Two slices of one board have one address: it is read, and its energy counted, once.
        boards.setdefault(address, Board(device, "mig" if sliced else "gpu", address, handle))
    return list(boards.values())


def pci_address(ordinal: int) -> str:
    """Return domain:bus:device.function of a CUDA device of this process.

    Raises:
      OSError: there is no CUDA driver, or it does not tell.
    """
    cuda = load_driver_library(CUDA_DRIVER)
    device, address = ctypes.c_int(), ctypes.create_string_buffer(32)
    code = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        or cuda.cuDeviceGetPCIBusId(address, len(address), device)
    )
    if code:
        raise OSError(f"the CUDA driver does not say which board device {ordinal} is: error {code}")
    return address.value.decode()


def _read_board(nvml: Any, board: Board) -> Reading:
    handle = board.handle

    def newest(names: Sequence[str], *args: Any) -> Any:
        """Call the first of a function's names that these bindings and this driver know."""
        for name in names:
            with contextlib.suppress(nvml.NVMLError_FunctionNotFound):
                if function := getattr(nvml, name, None):
                    return function(handle, *args)
        raise nvml.NVMLError_FunctionNotFound

    def throttle_reasons() -> str:
        bits = newest(_REASON_FUNCTIONS)
        single = (1 << place for place in range(bits.bit_length()))
        names = [_REASONS.get(bit, hex(bit)) for bit in single if bits & bit]
        if "sw_power_cap" in names:
            with contextlib.suppress(nvml.NVMLError):  # a board without limits
                default_mw = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
                if nvml.nvmlDeviceGetEnforcedPowerLimit(handle) < default_mw:
                    names.append(LOWERED_LIMIT)
        return "|".join(names)

    sensors: dict[str, Callable[[], Any]] = {
        "load_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: newest(_TEMPERATURE_FUNCTIONS, nvml.NVML_TEMPERATURE_GPU),
        "fan_percent": lambda: nvml.nvmlDeviceGetFanSpeed(handle),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "throttle_reasons": throttle_reasons,
        # Last, because the moment of a reading is that of its end, and energy needs it most.
        "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
    }
    values: dict[str, Any] = {}
    errors = []
    for name, read in sensors.items():
        try:
            values[name] = read()
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            continue  # this board, or its driver, has no such sensor
        except nvml.NVMLError_GpuIsLost as error:
            errors.append(str(error))
            break
        except nvml.NVMLError as error:
            errors.append(f"{name}: {error}")
    if memory := values.pop("memory", None):
        values |= {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}
    return Reading(board.device, board.kind, values, errors)


def _ask_boards(
    ordinals: Mapping[str, int], read: Callable[[Any, Any], Any]
) -> list[tuple[Board, Any]]:
    """Return what a function of NVML and of a board's handle returns for each board.

    Raises:
      Exception: NVML, or the CUDA driver, cannot be asked.
    """
    if not ordinals:
        return []
    nvml = load_nvml()
    return ask(
        "NVML", lambda: [(one, read(nvml, one.handle)) for one in find_boards(nvml, ordinals)]
    )


def _known(nvml: Any, *functions: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what functions return, without what a board or an older driver does not have."""
    values: dict[str, Any] = {}
    for function in functions:
        with contextlib.suppress(nvml.NVMLError):
            values |= function()
    return values


def describe_boards(ordinals: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return what each board is and is set to; none if NVML or the CUDA driver cannot be asked."""

    def read(nvml: Any, handle: Any) -> dict[str, Any]:
        default_mw = nvml.nvmlDeviceGetPowerManagementDefaultLimit
        max_mhz = nvml.nvmlDeviceGetMaxClockInfo
        return _known(
            nvml,
            lambda: {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3},
            lambda: {"default_power_limit_w": default_mw(handle) / 1e3},
            lambda: {"max_sm_clock_mhz": max_mhz(handle, nvml.NVML_CLOCK_SM)},
            lambda: {"max_memory_clock_mhz": max_mhz(handle, nvml.NVML_CLOCK_MEM)},
            lambda: {"ecc": bool(nvml.nvmlDeviceGetEccMode(handle)[0])},
        )

    try:
        boards = _ask_boards(ordinals, read)
    except (load_nvml().NVMLError, OSError):
        return []
    return [
        {"device": board.device, "mig": board.kind == "mig", **values} for board, values in boards
    ]


def read_error_counters(ordinals: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return {device: {counter: count}}, without counters that a board does not have.

    Raises:
      Exception: NVML, or the CUDA driver, cannot be asked.
    """
    rows = ("remapped_rows_corrected", "remapped_rows_uncorrected")
    rows += ("row_remapping_pending", "row_remapping_failed")

    def read(nvml: Any, handle: Any) -> dict[str, int]:
        def ecc(kind: int) -> int:  # since the driver was loaded
            return nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)

        return _known(
            nvml,
            lambda: {"ecc_corrected": ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)},
            lambda: {"ecc_uncorrected": ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)},
            lambda: {"pcie_replays": nvml.nvmlDeviceGetPcieReplayCounter(handle)},
            lambda: dict(zip(rows, map(int, nvml.nvmlDeviceGetRemappedRows(handle)), strict=True)),
        )

    return {board.device: counts for board, counts in _ask_boards(ordinals, read)}


def other_gpu_processes(ordinals: Mapping[str, int]) -> int | None:
    """Return how many processes of others compute on the boards, which JAX has opened.

    None if it is unknown, as in containers: there NVML lists no processes, or the host's ids, by
    which this process does not know itself.
    """

    def read(nvml: Any, handle: Any) -> set[int]:
        return {one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}

    try:
        running = {pid for _, pids in _ask_boards(ordinals, read) for pid in pids}
    except (load_nvml().NVMLError, OSError):
        return None
    this_process = psutil.Process()
    tree = {this_process.pid, *(child.pid for child in this_process.children(recursive=True))}
    return len(running - tree) if running & tree else None
