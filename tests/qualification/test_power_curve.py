"""Images/s and energy by power limit: which limits are taken, set, and written."""

import contextlib
import csv
import types

import pytest

from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry import nvml
from jaxbench.qualification import power_curve
from tests import fake_nvml
from tests.fake_nvml import Board, Cuda, Nvml


@pytest.fixture
def board(monkeypatch):
    board = Board()
    fake_nvml.install(monkeypatch, Nvml([board]), Cuda([0x0F]))
    monkeypatch.setattr(power_curve, "cuda_ordinals", lambda _: {"gpu0": 0})
    return board


@pytest.mark.parametrize("given", [["x"], ["0"], ["-3"], ["200", ""], ["2.5"]])
def test_watts_are_whole_numbers(given):
    with pytest.raises(BadInput, match="whole numbers of watts"):
        power_curve.parse_watts(given)


def test_a_limit_that_is_named_twice_is_refused():
    with pytest.raises(BadInput, match="--power_limits=200,0200: name each limit once"):
        power_curve.parse_watts(["200", "0200"])


def test_limits_that_a_board_does_not_take_are_refused(board):
    assert power_curve.parse_watts(["100", "400"]) == [100, 400]
    [limit] = power_curve.check_power_limits([100, 400], [])
    assert limit == nvml.PowerLimit("0000:0F:00.0", 400_000, 100_000, 400_000)
    with pytest.raises(BadInput, match="takes 100 to 400 W"):
        power_curve.check_power_limits([100, 401], [])


def test_each_limit_is_a_row(bench, board, monkeypatch, output):
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
    bench.power_limits = [200, 300]
    power_curve.measure(bench, 40.0)
    assert [limit.current_mw for limit in restored] == [400_000]
    with open(bench.folder / "power_curve.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["power_limit_w"] for row in rows] == ["200", "300"]
    assert [row["images_per_s"] for row in rows] == ["800.0", "1200.0"]
    assert [row["energy_j_per_image"] for row in rows] == ["", "37.5"]
    assert "1,200" in output.getvalue()
