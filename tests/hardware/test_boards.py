"""What NVML tells of boards beside the sensors."""

import os
import signal
import threading

import pynvml
import pytest

from jaxbench import clock
from jaxbench.hardware.accelerators import Accelerators, ask_nvml
from jaxbench.hardware.telemetry.nvml import (
    other_gpu_processes,
    read_error_counters,
)
from tests import fake_nvml
from tests.fake_nvml import Board, Cuda, Nvml

BOARDS = {"gpu0": 0, "gpu1": 1}


@pytest.fixture
def install(monkeypatch):
    def boards(*given, missing=()):
        cuda = Cuda([board.bus for board in given])
        fake_nvml.install(monkeypatch, Nvml([*given], missing), cuda)

    return boards


def test_errors_are_counted_by_their_kind(install):
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    ecc = dict(zip(kinds, (5, 1), strict=True))
    full = Board(bus=0x0F, ecc=ecc, pcie_replays=7, remapped_rows=(2, 3, 0, 1))
    install(full, Board(bus=0xB7))
    assert read_error_counters(BOARDS) == {
        "gpu0": {
            "ecc_corrected": 5,
            "ecc_uncorrected": 1,
            "pcie_replays": 7,
            "remapped_rows_corrected": 2,
            "remapped_rows_uncorrected": 3,
            "row_remapping_pending": 0,
            "row_remapping_failed": 1,
        },
        "gpu1": {"pcie_replays": 0},  # a board without ECC memory
    }
    install(full, missing=("nvmlDeviceGetRemappedRows",))
    assert set(read_error_counters({"gpu0": 0})["gpu0"]) == {
        *("ecc_corrected", "ecc_uncorrected", "pcie_replays")
    }
    assert read_error_counters({}) == {}


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ([(), ()], 0),
        ([(os.getpid(),), (os.getpid(), 7)], 1),
        ([(8, 9), (8,)], 1),  # a container's ids are not the host's: one of them is this process
        ([(8,), (8,)], 0),
    ],
)
def test_processes_of_others_are_counted_once(install, pids, others):
    install(Board(bus=0x0F, pids=pids[0]), Board(bus=0xB7, pids=pids[1]))
    assert other_gpu_processes(BOARDS) == others


def test_without_nvml_nobody_counts_processes(monkeypatch):
    fake_nvml.install(monkeypatch, None, Cuda([0x0F]))
    assert other_gpu_processes({"gpu0": 0}) is None and other_gpu_processes({}) is None


@pytest.fixture
def hanging(install):
    """Boards whose driver hangs in every call, until the test has ended."""
    end = threading.Event()
    install(Board(before=lambda: end.wait(60)), Board(bus=0xB7))
    yield
    end.set()
    clock._answers["NVML"].exception(60)


HUNG = "NVML does not answer"


def test_a_driver_that_hangs_is_given_up(hanging, monkeypatch, capsys):
    monkeypatch.setattr(clock, "_PATIENCE_S", 0.1)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=f"^{HUNG}$"):
            read_error_counters(BOARDS)
        monkeypatch.setattr(clock, "_PATIENCE_S", 1e9)  # it still hangs: no other call waits
    assert other_gpu_processes(BOARDS) is None
    assert ask_nvml() == Accelerators("cuda", 0)
    assert capsys.readouterr().err == f"jaxbench: {HUNG}\n"


def test_a_signal_is_answered_while_a_driver_hangs(hanging):
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        read_error_counters(BOARDS)
