"""What NVML tells of boards beside the sensors."""

import os
import signal
import threading

import pynvml
import pytest

from jaxbench import clock
from jaxbench.hardware import nvidia_libraries
from jaxbench.hardware.accelerators import Accelerators, ask_nvml
from jaxbench.hardware.telemetry.nvml import (
    describe_boards,
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
        ([(os.getpid(),), (os.getpid(), 7)], 1),
        ([(os.getpid(),), ()], 0),
        # In a container NVML gives the host's ids, or none: which is this process?
        ([(8, 9), (8,)], None),
        ([(), ()], None),
    ],
)
def test_processes_of_others_are_counted_once(install, pids, others):
    install(Board(bus=0x0F, pids=pids[0]), Board(bus=0xB7, pids=pids[1]))
    assert other_gpu_processes(BOARDS) == others


def test_what_boards_are_set_to_is_recorded_and_what_they_lack_is_left_out(install):
    bare = Board(bus=0xB7, limit_mw=None, default_limit_mw=None, ecc_mode=None, mig=True)
    install(Board(bus=0x0F, limit_mw=250_000), bare)
    clocks = {"max_sm_clock_mhz": 1410, "max_memory_clock_mhz": 1593}
    power = {"power_limit_w": 250.0, "default_power_limit_w": 400.0}
    assert describe_boards(BOARDS) == [
        {"device": "gpu0", "mig": False, "ecc": True, **power, **clocks},
        {"device": "gpu1", "mig": True, **clocks},
    ]
    assert describe_boards({}) == []


def test_the_drivers_libraries_are_found_where_the_loader_does_not_look(monkeypatch, tmp_path):
    folder = tmp_path / "usr/local/nvidia/lib64"
    fake_nvml.install(monkeypatch, Nvml([Board(bus=0x0F)]), Cuda([0x0F]), folder=str(folder))
    monkeypatch.setattr(nvidia_libraries, "_ROOT", tmp_path)
    assert describe_boards({"gpu0": 0}) == []
    folder.mkdir(parents=True)
    for name in ("libnvidia-ml.so.580.65.06", "libcuda.so.1"):
        (folder / name).write_text("")
    assert [board["device"] for board in describe_boards({"gpu0": 0})] == ["gpu0"]


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
    assert other_gpu_processes(BOARDS) is None and describe_boards(BOARDS) == []
    assert ask_nvml() == Accelerators("cuda", 0)
    assert capsys.readouterr().err == f"jaxbench: {HUNG}\n"


def test_a_signal_is_answered_while_a_driver_hangs(hanging):
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        read_error_counters(BOARDS)
