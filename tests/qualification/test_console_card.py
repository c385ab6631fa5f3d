"""The card on a console of 80 columns."""

from msgspec.structs import replace

from jaxbench.qualification.console_card import card_lines
from tests.cards import made


def test_a_card_fits_80_columns_and_has_its_figures():
    lines = [*card_lines(made.judged())]
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "lab (4 x NVIDIA H100 80GB HBM3), preset standard-1" in text
    assert "matrix products in bf16 [TFLOP/s] 700.0 700.0 to 700.0 71%" in text
    assert "all_reduce, 256 MiB 375.0" in text
    assert "resnet50 bf16 256 10,000 6.2% 8.8% 0.2000" in text
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
    text = "\n".join(card_lines(made.judged()))
    assert "shortest call [us]" in text and "9.900 to 10.10" not in text and "10.00" in text


def test_a_busy_host_says_what_to_do():
    lines = [*card_lines(made.judged(load=(40.0, 0)))]
    place = lines.index("verdict: INCONCLUSIVE")
    assert "end it, and measure again" in lines[place + 1]
    assert "the host was busy: 40, limit 10" in lines[place + 2]


def test_a_card_that_took_too_long_says_so():
    card = made.judged()
    late, in_time = (
        "\n".join(card_lines(replace(card, minutes_taken=share * card.minutes_asked)))
        for share in (4.0, 1.1)
    )
    assert "this is 300% longer than asked for" in late and "longer" not in in_time
