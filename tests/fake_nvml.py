"""NVIDIA's two libraries, stood in for function by function where ctypes would load them.

nvidia-ml-py itself is the real one: its structs, constants, argument types and error classes are
used as on a machine with GPUs. What the functions do, their units and what they return where a
board has no such sensor are NVML's (https://docs.nvidia.com/deploy/nvml-api/) and the CUDA driver
API's.
"""

import ctypes
import dataclasses
import os
from collections.abc import Callable

import pynvml


@dataclasses.dataclass
class Board:
    """An A100-like board. None: it has no such sensor. `before` is called in every function."""

    bus: int = 0x0F
    load: int | None = 97
    memory_used: int | None = 30 * 2**30
    memory_total: int = 80 * 2**30
    sm_clock: int | None = 1410
    memory_clock: int | None = 1593
    temperature: int | None = 61
    fan: int | None = None  # boards cooled from outside have none
    power_mw: int | None = 398_250
    energy_mj: Callable[[], int] | None = lambda: 1_234_567_890
    reasons: int | None = 0
    limit_mw: int | None = 400_000
    default_limit_mw: int | None = 400_000
    ecc_mode: bool | None = True
    mig: bool | None = False
    ecc: dict[int, int] | None = None  # {error type: volatile count}; None: no ECC memory
    pcie_replays: int | None = 0
    remapped_rows: tuple[int, int, int, int] | None = None
    pids: tuple[int, ...] = ()
    error: int = pynvml.NVML_SUCCESS
    before: Callable[[], None] = lambda: None


class Nvml:
    """libnvidia-ml.so.1. `missing` are functions that this driver does not have."""

    def __init__(self, boards: list[Board], missing: tuple[str, ...] = ()):
        self._boards = boards
        self._missing = missing
        self.initialized = 0

    def __getattr__(self, name: str) -> Callable:
        if name.startswith("nvml") and name not in self._missing:
            method = getattr(type(self), f"_{name}", None)
            if method is not None:
                return lambda *args: method(self, *args)
        raise AttributeError(name)  # as ctypes does

    def _nvmlInitWithFlags(self, flags):
        self.initialized += 1
        return pynvml.NVML_SUCCESS

    def _nvmlDeviceGetHandleByPciBusId_v2(self, address, handle):
        domain, bus, device = address.value.decode().split(":")
        assert int(domain, 16) == 0 and device == "00.0"
        for number, board in enumerate(self._boards, 1):
            if board.bus == int(bus, 16):
                ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = number
                return pynvml.NVML_SUCCESS
        return pynvml.NVML_ERROR_NOT_FOUND

    def _give(self, handle, out, attribute):
        board = self._boards[ctypes.cast(handle, ctypes.c_void_p).value - 1]
        board.before()
        if board.error:
            return board.error
        value = getattr(board, attribute)
        if value is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        if out is not None:
            out._obj.value = value() if callable(value) else value
        return pynvml.NVML_SUCCESS

    def _board(self, handle):
        return self._boards[ctypes.cast(handle, ctypes.c_void_p).value - 1]

    def _nvmlDeviceGetUtilizationRates(self, handle, out):
        code = self._give(handle, None, "load")
        if not code:
            out._obj.gpu, out._obj.memory = self._board(handle).load, 40
        return code

    def _nvmlDeviceGetMemoryInfo(self, handle, out):
        code = self._give(handle, None, "memory_used")
        if not code:
            board = self._board(handle)
            out._obj.used, out._obj.total = board.memory_used, board.memory_total
            out._obj.free = board.memory_total - board.memory_used
        return code

    def _nvmlDeviceGetClockInfo(self, handle, kind, out):
        names = {pynvml.NVML_CLOCK_SM: "sm_clock", pynvml.NVML_CLOCK_MEM: "memory_clock"}
        return self._give(handle, out, names[kind.value])

    def _nvmlDeviceGetTemperatureV(self, handle, out):
        assert out._obj.version == pynvml.nvmlTemperature_v1
        assert out._obj.sensorType == pynvml.NVML_TEMPERATURE_GPU
        code = self._give(handle, None, "temperature")
        if not code:
            out._obj.temperature = self._board(handle).temperature
        return code

    def _nvmlDeviceGetTemperature(self, handle, sensor, out):
        assert sensor.value == pynvml.NVML_TEMPERATURE_GPU
        return self._give(handle, out, "temperature")

    def _nvmlDeviceGetFanSpeed(self, handle, out):
        return self._give(handle, out, "fan")

    def _nvmlDeviceGetPowerUsage(self, handle, out):
        return self._give(handle, out, "power_mw")

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle, out):
        return self._give(handle, out, "energy_mj")

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle, out):
        return self._give(handle, out, "reasons")

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle, out):
        return self._give(handle, out, "limit_mw")

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle, out):
        return self._give(handle, out, "default_limit_mw")

    # The clocks of a board that computes are its highest.
    _nvmlDeviceGetMaxClockInfo = _nvmlDeviceGetClockInfo

    def _nvmlDeviceGetEccMode(self, handle, current, pending):
        pending._obj.value = 0
        return self._give(handle, current, "ecc_mode")

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetMigMode(self, handle, current, pending):
        pending._obj.value = 0
        return self._give(handle, current, "mig")

    def _nvmlDeviceGetTotalEccErrors(self, handle, error_type, counter, out):
        assert counter.value == pynvml.NVML_VOLATILE_ECC
        code = self._give(handle, None, "ecc")
        if not code:
            out._obj.value = self._board(handle).ecc[error_type.value]
        return code

    def _nvmlDeviceGetPcieReplayCounter(self, handle, out):
        return self._give(handle, out, "pcie_replays")

    def _nvmlDeviceGetRemappedRows(self, handle, *outs):
        code = self._give(handle, None, "remapped_rows")
        if not code:
            for out, value in zip(outs, self._board(handle).remapped_rows, strict=True):
                out._obj.value = value
        return code

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, out):
        pids = self._board(handle).pids
        enough, count._obj.value = count._obj.value >= len(pids), len(pids)
        if not enough:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for place, pid in enumerate(pids if out else ()):
            out[place].pid = pid
        return pynvml.NVML_SUCCESS


class Cuda:
    """libcuda.so.1. `buses`: the boards that this process sees, in its own order."""

    def __init__(self, buses: list[int]):
        self._buses = buses

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        if not 0 <= ordinal < len(self._buses):
            return 101  # CUDA_ERROR_INVALID_DEVICE
        device._obj.value = ordinal
        return 0

    def cuDeviceGetPCIBusId(self, buffer, length, device):
        address = f"0000:{self._buses[device.value]:02X}:00.0".encode()
        assert length > len(address)
        buffer.value = address
        return 0


def install(monkeypatch, nvml: Nvml | None, cuda: Cuda | None, folder: str = "") -> None:
    """Has both be found, or not (None), where the system's loader would be asked.

    Those of a folder are found by their path, and by their short name once they are loaded.
    """
    genuine, loaded = ctypes.CDLL, set()

    def load(name, *args, **kwargs):
        short = f"{os.path.basename(name).partition('.so')[0]}.so.1"
        if short in ("libnvidia-ml.so.1", "libcuda.so.1"):
            library = nvml if "nvidia" in short else cuda
            if folder and name == short and short not in loaded:
                library = None
            if library is None:
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            loaded.add(short)
            return library
        return genuine(name, *args, **kwargs)

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(pynvml, "CDLL", load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
