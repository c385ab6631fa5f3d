"""What to expect of a machine: by a fleet, by published rates, by floors."""

import random

import pytest
from msgspec.structs import replace

from jaxbench.cards import expected
from jaxbench.cards.card import HostLoad
from jaxbench.cards.card_file import read_card
from jaxbench.cards.check import load_fleet
from jaxbench.cards.expected import expect
from jaxbench.cards.verdict import judge, summary_of
from jaxbench.errors import BadInput
from tests.cards import made

RATE = "images_per_s"


def quiet(card):
    return replace(card, verdict=judge(card))


def fleet(count=3, **fields):
    """Sound cards of one kind, which differ by 0.3 %."""
    draw = random.Random(1)
    return [
        quiet(
            made.card(
                made.ceilings([700 * (1 + draw.gauss(0, 0.003)) for _ in range(4)]),
                made.networks(10_000 * (1 + draw.gauss(0, 0.003))),
                host=f"node{number}",
                **fields,
            )
        )
        for number in range(count)
    ]


def judged(card, others):
    return replace(card, verdict=judge(card, None, expect(card, others)))


def of(card, name, **labels):
    """The figure of a name on device 0, or of all, and what was expected of it."""
    [figure] = [
        one
        for one in card.named(name)
        if one.device in (0, None) and labels.items() <= one.labels.items()
    ]
    return figure, card.expectations().get(figure.key)


RESNET = {"network": "resnet50", "precision": "bf16"}


@pytest.mark.parametrize(
    ("rate", "words", "outcome"),
    [
        (9_990.0, "as expected", "pass"),
        (9_500.0, "slower than expected by 5%", "warn"),
        (8_000.0, "slower than expected by 20%", "fail"),
        (10_600.0, "faster than expected by 6%", "pass"),
    ],
)
def test_three_cards_hold_the_fourth(rate, words, outcome):
    card = judged(made.card(made.networks(rate), host="node9"), fleet())
    figure, expected = of(card, RATE, **RESNET)
    assert (expected.basis, expected.source) == ("fleet", "3 cards")
    assert (expected.high - expected.low) / 2 / expected.expected == pytest.approx(0.02, rel=0.3)
    assert expected.judge(figure) == words
    assert card.verdict.outcome == outcome
    told = words if words.startswith("slower") else "as expected (by cards of its kind)"
    assert told in summary_of(card)


@pytest.mark.parametrize(
    "others",
    [
        fleet(2),
        fleet(kind="NVIDIA H200"),
        fleet(load=(60.0, 0)),  # busy hosts
        [replace(one, verdict=judge(made.card(made.soak(errors=1)))) for one in fleet()],
        [replace(one, verdict=None) for one in fleet()],
        fleet()[:1] * 3,
        [replace(one, environment=one.environment | {"num_processes": 2}) for one in fleet()],
    ],
    ids=["two", "another kind", "busy", "failed", "not judged", "copies", "several hosts"],
)
def test_what_makes_no_fleet(others):
    card = judged(made.card(), others)
    assert {one.basis for one in card.verdict.expected} == {"predicted", "floor"}


def test_a_card_is_not_in_its_fleet():
    *others, last = fleet(3)
    assert of(judged(last, [*others, last]), RATE, **RESNET)[1].basis == "predicted"


def test_a_fleet_that_differs_too_much_tells_nothing():
    rates = (10_000.0, 3_000.0, 20_000.0)
    wild = [quiet(made.card(made.networks(rate), host=str(rate))) for rate in rates]
    assert of(judged(made.card(), wild), RATE, **RESNET)[1].basis == "predicted"


def test_rates_of_zero_are_no_fleet():
    stopped = [quiet(made.card(made.ceilings(triad=0.0), made.networks(9e3 + n))) for n in range(3)]
    assert of(judged(made.card(), stopped), "triad_gb_per_s")[1].basis == "floor"


@pytest.mark.parametrize(
    "row, message",
    [
        (",,one,copy_gb_per_s,5,a,2026", "got `str` - at `$.nodes`"),
        (",,1,copy_gb_per_s,-5,a,2026", "least -5: must be above 0"),
        (",,1,copy_gb_per_s,5 peek,a,2026", "least 5 peek: must be"),
        (",,1,copy_gbps,5,a,2026", "metric copy_gbps: did you mean 'copy_gb_per_s'?"),
        (",,1,copy_gb_per_s", "- at `$.least`"),
    ],
)
def test_a_floor_that_is_none_is_a_line(row, message, tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "__file__", str(tmp_path / "expected.py"))
    (tmp_path / "floors.csv").write_text(f"device,link,nodes,metric,least,source,date\n{row}\n")
    with pytest.raises(BadInput) as error:
        expected.load_floors.__wrapped__()
    assert message in str(error.value)


def with_devices(card, devices):
    """The card of a node with so many devices, which does as much with each of them."""
    part = card.part("networks")
    figures = [
        replace(
            one,
            value=one.value * devices / 4 if one.name == RATE else one.value,
            interval=None,
            labels=one.labels | {"batch": one.labels["batch"] * devices // 4},
        )
        for one in part.figures
    ]
    parts = [replace(part, figures=tuple(figures)) if p is part else p for p in card.parts]
    environment = card.environment | {"num_devices": devices}
    return replace(card, parts=tuple(parts), environment=environment)


def test_nodes_of_several_sizes_are_compared_by_device():
    card = judged(made.card(made.networks(10_010.0)), [with_devices(one, 8) for one in fleet()])
    figure, expected = of(card, RATE, **RESNET)
    assert expected.basis == "fleet" and expected.judge(figure) == "as expected"
    # What a collective carries depends on how many take part.
    links = [one for one in card.verdict.expected if one.name == "bus_gb_per_s"]
    assert {one.basis for one in links} == {"floor"}


def test_without_a_fleet_published_rates_and_floors_tell():
    card = judged(made.card(), [])
    figure, expected = of(card, RATE, **RESNET)
    assert expected.basis == "predicted" and expected.low < 10_000 < expected.high
    assert "published rates" in expected.source
    # No published rate is near a network of 4 million multiplications.
    assert of(card, RATE, network="cnn10", precision="bf16")[1] is None
    matmul, floor = of(card, "matmul_bf16_tflops")
    assert (floor.basis, floor.high) == ("floor", None)
    assert floor.low == pytest.approx(0.65 * made.PEAK_TFLOPS) and "mamf-finder" in floor.source
    assert floor.judge(matmul) == "as expected"
    assert of(card, "copy_gb_per_s")[1].low == 0.75 * made.PEAK_GB_PER_S
    assert of(card, "h2d_gb_per_s")[1] is None
    # The floor of a link is the same for any number of devices.
    floors = {
        of(judged(with_devices(made.card(), count), []), "bus_gb_per_s", collective="all_reduce")[
            1
        ].low
        for count in (2, 4, 8)
    }
    assert floors == {280}


def test_a_machine_that_nobody_knows_has_no_expectation():
    card = judged(made.card(kind="NVIDIA H400"), [])
    assert card.verdict.expected == () and summary_of(card) == "no expectation"


def faster(card, factor, at):
    """The recorded card as of a quiet machine that does so much more."""
    parts = [
        replace(
            part,
            figures=tuple(
                replace(
                    one,
                    value=one.value * factor,
                    interval=(one.value * factor * 0.995, one.value * factor * 1.005),
                )
                if one.name == RATE or one.name.startswith(("matmul", "copy", "scale", "triad"))
                else one
                for one in part.figures
            ),
        )
        for part in card.parts
        if part.name != "soak"
    ]
    load = HostLoad(other_cpu_percent=0.5)
    return quiet(replace(card, parts=tuple(parts), load=load, created_at=at))


@pytest.mark.parametrize(
    ("factor", "told"),
    [(1.004, "as expected"), (0.8, "7 of 7 rates slower than expected by 20%, at most")],
)
def test_three_real_cards_hold_the_fourth(recorded, factor, told):
    card = read_card(recorded)
    others = [faster(card, 1 + off, f"day {off}") for off in (-0.005, 0.0, 0.005)]
    fourth = judged(faster(card, factor, "today"), others)
    assert summary_of(fourth).startswith(told), summary_of(fourth)
    slow = [one for one in fourth.verdict.findings if one.rule == "slower_than_fleet"]
    assert {one.status for one in slow} - {"not_judged"} == {"pass" if factor > 1 else "fail"}


def test_processors_are_a_fleet_by_their_name():
    def cpus(model):
        cards = fleet(backend="cpu", kind="cpu")
        return [replace(one, environment=one.environment | {"cpu": model}) for one in cards]

    card = replace(cpus("AMD EPYC")[0], parts=made.card(made.networks(9_990.0)).parts)
    assert {one.basis for one in expect(card, cpus("AMD EPYC"))} == {"fleet"}
    assert expect(card, cpus("Intel Xeon")) == ()


def test_the_cards_of_a_folder(tmp_path, capsys):
    for number, card in enumerate([*fleet(), quiet(made.card(made.networks(1e9)))]):
        made.write(tmp_path / f"n{number}", card)
    made.alter(tmp_path / "n1" / "card.json", lambda c: c.update(preset="x"), digest=False)
    assert [one.environment["hostname"] for one in load_fleet(str(tmp_path))] == ["node0", "node2"]
    error = capsys.readouterr().err
    assert "altered or damaged: its digest is not that of its content" in error
    assert "images_per_s, network resnet50, precision bf16, batch 256: 1e+09" in error
    with pytest.raises(BadInput, match="^--fleet=.*none: there is no card in it$"):
        load_fleet(str(tmp_path / "none"))
    # Those of the checkout.
    assert all(one.preset == "cpu-1" for one in load_fleet(None))
