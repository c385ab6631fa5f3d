"""Parts that are asked for: storage, and images/s and energy by power limit."""

import contextlib
import types

import pytest

from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry import nvml
from jaxbench.qualification import power_curve, storage
from tests import fake_nvml
from tests.conftest import refusal, table
from tests.fake_nvml import Board, Cuda, Nvml


@pytest.fixture
def board(monkeypatch):
    board = Board()
    fake_nvml.install(monkeypatch, Nvml([board]), Cuda([0x0F]))
    monkeypatch.setattr(power_curve, "cuda_ordinals", lambda _: {"gpu0": 0})
    return board


@pytest.mark.parametrize("given", ["x", "0", "-3", "200,", "2.5", "200,0200"])
def test_watts_are_whole_numbers_each_once(given):
    with pytest.raises(BadInput, match=f"--power_limits={given}: .*whole numbers of watts"):
        power_curve.parse_watts(given.split(","))


def test_limits_that_a_board_does_not_take_are_refused(board):
    assert power_curve.parse_watts(["100", "400"]) == [100, 400]
    [limit] = power_curve.check_power_limits([100, 400], [])
    assert limit == nvml.PowerLimit("0000:0F:00.0", 400_000, 100_000, 400_000)
    refusal(power_curve.check_power_limits, [100, 401], [], told="takes 100 to 400 W")


def test_each_limit_is_a_row(session, board, monkeypatch, output):
    """What restores the limits is a process: see tests/integration."""
    restored = []

    @contextlib.contextmanager
    def guarded(limits):
        restored.extend(limits)
        yield

    def measure(config, workdir, *_, **__):
        watts = board.power_limit_mw // 1000
        telemetry = {"joules_per_image": watts / 8, "energy_window_long_enough": watts > 200}
        summary = {"images_per_s": 4.0 * watts, "telemetry": telemetry}
        return types.SimpleNamespace(summary=summary)

    monkeypatch.setattr(power_curve, "restored_at_end", guarded)
    monkeypatch.setattr(power_curve, "measure_throughput", measure)
    session.power_limits = [200, 300]
    power_curve.measure(session, 40.0)
    assert [limit.current_mw for limit in restored] == [400_000]
    rows = table(session.folder / "power_curve.csv")
    assert [row["power_limit_w"] for row in rows] == ["200", "300"]
    assert [row["images_per_s"] for row in rows] == ["800.0", "1200.0"]
    assert [row["energy_j_per_image"] for row in rows] == ["", "37.5"]
    assert "1,200" in output.getvalue()


def test_rates_of_every_kind_and_an_empty_folder(session, monkeypatch):
    monkeypatch.setattr(storage, "_LEAST_BYTES", 2**16)
    storage.measure(session, 0.0)
    assert [one.name for one in session.figures] == [
        *("read_cold_gb_per_s", "read_warm_gb_per_s"),
        *("checkpoint_write_gb_per_s", "checkpoint_restore_gb_per_s"),
    ]
    # Of three rounds there is no interval.
    assert all(one.value > 0 and one.value_low is None for one in session.figures)
    assert [*session.folder.iterdir()] == []


def test_a_disk_that_is_almost_full_is_left_alone(session, monkeypatch):
    monkeypatch.setattr(storage, "_SHARE_OF_DISK", 0.0)
    with pytest.raises(OSError, match="MiB free"):
        storage.measure(session, 0.0)
    assert [*session.folder.iterdir()] == []
