"""The card on a console, its last lines, and the power curve's flags."""

import pytest

from jaxbench.cards.card import measured
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry import boards
from jaxbench.qualification import power_curve
from jaxbench.qualification.console_card import card_lines
from tests import fake_nvml
from tests.cards import made
from tests.fake_nvml import Board, Cuda, Nvml


def test_a_card_fits_80_columns_and_has_its_figures():
    lines = [*card_lines(made.judged())]
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "lab (4 x NVIDIA H100 80GB HBM3), preset standard-1" in text
    assert "matrix products in bf16 [TFLOP/s] 700.0 700.0 to 700.0 71%" in text
    assert "all_reduce, 256 MiB 380.0" in text
    assert "resnet50 bf16 256 10,000 9,900 to 10,100 25.0% 0.2000" in text
    assert "corruption measured 30 s 8 rounds compared bit for bit, 0 mismatches" in text
    assert lines[-1] == "verdict: PASS"


def test_what_fails_and_why_nothing_follows_stand_at_the_end():
    lines = [*card_lines(made.judged(made.corruption(mismatches=2), load=(40.0, 1)))]
    end = lines[lines.index("verdict: FAIL") :]
    assert end[1].startswith("  corruption: mismatches: 2")
    assert sum(line.startswith("  inconclusive: host: ") for line in end) == 2
    assert "meanwhile other processes took 40 % of the processor" in lines


def test_a_part_says_why_it_was_not_measured():
    lines = [*card_lines(made.judged(made.skipped("soak"), made.skipped("networks", "failed")))]
    assert "soak        skipped          there is no time" in lines
    assert "networks    failed      0 s  there is no time" in lines


def test_units_that_people_read():
    part = made.ceilings()
    figures = (*part.figures, measured("dispatch_latency_s", 8.5e-6, (8e-6, 9e-6), device=0))
    ceilings = type(part)(name="ceilings", status="measured", time_s=1.0, figures=figures)
    text = "\n".join(card_lines(made.judged(ceilings)))
    assert "shortest call [us]" in text and "8.500" in text


@pytest.mark.parametrize("given", [["x"], ["0"], ["-3"], ["200", ""], ["2.5"]])
def test_watts_are_whole_numbers(given):
    with pytest.raises(BadInput, match="whole numbers of watts"):
        power_curve.parse_watts(given)


def test_limits_that_a_board_does_not_take_are_refused(monkeypatch):
    fake_nvml.install(monkeypatch, Nvml([Board()]), Cuda([0x0F]))
    monkeypatch.setattr(power_curve, "cuda_ordinals", lambda _: {"gpu0": 0})
    assert power_curve.parse_watts(["100", "400"]) == [100, 400]
    [limit] = power_curve.check_power_limits([100, 400], [])
    assert limit == boards.PowerLimit("0000:0F:00.0", 400_000, 100_000, 400_000)
    with pytest.raises(BadInput, match="takes 100 to 400 W"):
        power_curve.check_power_limits([100, 401], [])
