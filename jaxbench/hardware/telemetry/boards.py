"""What NVML tells of boards beside the sensors: errors, processes and power limits.

Functions, units and error codes: https://docs.nvidia.com/deploy/nvml-api/
NVML has no count of Xid messages, which the driver writes into the system's log alone.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.nvml import Board, find_boards

_POWER_FLAG = "--power_limits"


def read_error_counters(ordinals: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return {device: {counter: count}}, without counters that a board does not have.

    Args:
      ordinals: see `find_boards`; nothing is read for none.

    Raises:
      Exception: NVML, or the CUDA driver, cannot be asked.
    """
    if not ordinals:
        return {}
    import pynvml

    boards = find_boards(pynvml, ordinals)
    return {board.device: _counters_of(pynvml, board.handle) for board in boards}


def _counters_of(nvml: Any, handle: Any) -> dict[str, int]:
    def ecc(kind: int) -> int:  # since the driver was loaded
        return nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)

    readers: dict[tuple[str, ...], Callable[[], Sequence[int]]] = {
        ("ecc_corrected",): lambda: [ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)],
        ("ecc_uncorrected",): lambda: [ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)],
        ("pcie_replays",): lambda: [nvml.nvmlDeviceGetPcieReplayCounter(handle)],
        (
            *("remapped_rows_corrected", "remapped_rows_uncorrected"),
            *("row_remapping_pending", "row_remapping_failed"),
        ): lambda: nvml.nvmlDeviceGetRemappedRows(handle),
    }
    found: dict[str, int] = {}
    for names, read in readers.items():
        # Boards without ECC, or older drivers, do not have all of them.
        with contextlib.suppress(nvml.NVMLError):
            found |= {name: int(count) for name, count in zip(names, read(), strict=True)}
    return found


def other_gpu_processes(ordinals: Mapping[str, int]) -> int | None:
    """Return how many processes of others compute on the boards; None where NVML does not tell.

    Inside a container NVML may give the host's process ids, none of which is this one's. JAX has
    opened the boards, so one of them is.
    """
    if not ordinals:
        return None
    import pynvml

    try:
        boards = find_boards(pynvml, ordinals)
        running = [
            {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(board.handle)}
            for board in boards
        ]
    except (pynvml.NVMLError, OSError):
        return None
    own = psutil.Process()
    tree = {own.pid, *(child.pid for child in own.children(recursive=True))}
    here = set().union(*running)
    return len(here - tree) if here & tree else max(0, len(here) - 1)


class PowerLimit(NamedTuple):
    """The power limit of one board, in milliwatts.

    Attributes:
      address: PCI address of the board.
      current_mw: the limit.
      least_mw, most_mw: what it may be set to.
    """

    address: str
    current_mw: int
    least_mw: int
    most_mw: int


def read_power_limits(ordinals: Mapping[str, int]) -> list[PowerLimit]:
    """Return the limit of each board, once it is known that this process may set it.

    Raises:
      BadInput: there are no such boards, or this process has no right to.
    """
    if not ordinals:
        raise BadInput(f"{_POWER_FLAG}: JAX uses no NVIDIA GPU, and no other device has limits")
    import pynvml

    try:
        boards = find_boards(pynvml, ordinals)
        limits = [_limit_of(pynvml, board) for board in boards]
        for board, limit in zip(boards, limits, strict=True):
            pynvml.nvmlDeviceSetPowerManagementLimit(board.handle, limit.current_mw)
    except pynvml.NVMLError_NoPermission as error:
        raise BadInput(
            f"{_POWER_FLAG}: the driver allows it to the administrator alone: run it with sudo"
        ) from error
    except (pynvml.NVMLError, OSError) as error:
        raise BadInput(f"{_POWER_FLAG}: the limits cannot be set: {error}") from error
    return limits


def _limit_of(nvml: Any, board: Board) -> PowerLimit:
    least_mw, most_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(board.handle)
    current_mw = nvml.nvmlDeviceGetPowerManagementLimit(board.handle)
    return PowerLimit(board.address, current_mw, least_mw, most_mw)


def set_power_limits(limits_mw: Mapping[str, int]) -> None:
    """Set {PCI address: limit in milliwatts}.

    Raises:
      pynvml.NVMLError: a board refuses.
    """
    import pynvml

    pynvml.nvmlInit()
    for address, limit_mw in limits_mw.items():
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(address)
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
