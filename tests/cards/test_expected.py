"""What to expect of a machine: by a fleet, by published rates, by floors."""

import functools

import pytest
from msgspec.structs import replace

from jaxbench.cards.card import measured
from jaxbench.cards.check import load_fleet
from jaxbench.cards.expected import FLOORS
from jaxbench.cards.figures import FIGURES, MATMULS
from jaxbench.cards.verdict import summary_of
from tests.cards import made
from tests.conftest import refusal

RATE = "images_per_s"


fleet = functools.partial(made.fleet, 3)


def judged(card, others):
    return made.with_verdict(made.expected(card, others))


def of(card, name, **labels):
    """The figure of a name on device 0, or of all."""
    [figure] = [
        one
        for one in card.named(name)
        if one.device in (0, None) and labels.items() <= one.labels.items()
    ]
    return figure


def bases(card):
    return {one.expected.basis for one in card.figures() if one.expected}


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
    figure = of(card, RATE, **RESNET)
    expected = figure.expected
    assert (expected.basis, expected.source) == ("fleet", "3 cards")
    assert (expected.high - expected.low) / 2 / expected.expected == pytest.approx(0.02, rel=0.3)
    assert figure.comparison_text == words
    assert card.verdict.outcome == outcome
    told = words if words.startswith("slower") else "as expected (by cards of its kind)"
    assert told in summary_of(card)


@pytest.mark.parametrize(
    "others",
    [
        made.fleet(2),
        fleet(kind="NVIDIA H200"),
        fleet(load=(60.0, 0)),  # busy hosts
        [replace(one, verdict=made.judged(made.soak(errors=1)).verdict) for one in fleet()],
        [replace(one, verdict=None) for one in fleet()],
        fleet()[:1] * 3,
    ],
    ids=["two", "another kind", "busy", "failed", "not judged", "copies"],
)
def test_what_makes_no_fleet(others):
    card = judged(made.card(), others)
    assert bases(card) == {"predicted", "floor"}


def test_an_older_driver_names_the_same_machine():
    older = made.card(made.networks(9_990.0), kind="H100 80GB HBM3")
    assert of(judged(older, fleet()), RATE, **RESNET).expected.basis == "fleet"
    floors = [of(judged(card, []), "matmul_bf16_tflops") for card in (older, made.card())]
    assert floors[0].expected == floors[1].expected


def test_a_card_is_not_in_its_fleet():
    *others, last = fleet()
    assert of(judged(last, [*others, last]), RATE, **RESNET).expected.basis == "predicted"


def test_a_fleet_that_differs_too_much_tells_nothing():
    rates = (10_000.0, 3_000.0, 20_000.0)
    wild = [made.judged(made.networks(rate), host=str(rate)) for rate in rates]
    assert of(judged(made.card(), wild), RATE, **RESNET).expected.basis == "predicted"


def test_rates_of_zero_are_no_fleet():
    stopped = [made.judged(made.ceilings(triad=0.0), made.networks(9e3 + n)) for n in range(3)]
    assert of(judged(made.card(), stopped), "triad_gb_per_s").expected.basis == "floor"


def test_every_floor_is_of_a_rate_and_a_number():
    for row in FLOORS:
        number, _, quantity = row.least.partition(" ")
        assert row.metric.partition(" ")[0] in FIGURES and float(number) > 0
        assert quantity in ("", "peak") and row.source and row.date


def with_devices(card, devices):
    """The card of a node with so many devices, which does as much with each of them."""
    part = card.part("networks")
    figures = [
        replace(
            one,
            value=one.value * devices / 4 if one.name == RATE else one.value,
            value_low=None,
            value_high=None,
            labels=one.labels | {"batch": one.labels["batch"] * devices // 4},
        )
        for one in part.figures
    ]
    parts = [replace(part, figures=tuple(figures)) if p is part else p for p in card.parts]
    environment = card.environment | {"num_devices": devices}
    return replace(card, parts=tuple(parts), environment=environment)


def test_nodes_of_several_sizes_are_compared_by_device():
    card = judged(made.card(made.networks(10_010.0)), [with_devices(one, 8) for one in fleet()])
    figure = of(card, RATE, **RESNET)
    assert figure.expected.basis == "fleet" and figure.comparison == "as expected"
    # What a collective carries depends on how many take part.
    links = [one.expected for one in card.named("bus_gb_per_s") if one.expected]
    assert {one.basis for one in links} == {"floor"}


def test_without_a_fleet_published_rates_and_floors_tell():
    card = judged(made.card(), [])
    expected = of(card, RATE, **RESNET).expected
    assert expected.basis == "predicted" and expected.low < 10_000 < expected.high
    assert "published rates" in expected.source
    assert of(card, RATE, network="cnn10", precision="bf16").expected is None
    matmul = of(card, "matmul_bf16_tflops")
    floor = matmul.expected
    assert (floor.basis, floor.high) == ("floor", None)
    assert floor.low == pytest.approx(0.65 * made.PEAK_TFLOPS) and "mamf-finder" in floor.source
    assert matmul.comparison == "as expected"
    assert of(card, "copy_gb_per_s").expected.low == 0.75 * made.PEAK_GB_PER_S
    assert of(card, "h2d_gb_per_s").expected is None
    # The floor of a link is the same for any number of devices.
    for count in (2, 4, 8):
        card = judged(with_devices(made.card(), count), [])
        assert of(card, "bus_gb_per_s", collective="all_reduce").expected.low == 280


@pytest.mark.parametrize(("side", "basis"), [(4096, "floor"), (2048, None)])
def test_a_floor_is_for_large_products(side, basis):
    """The search may have ended early, or found little memory."""
    part = made.ceilings()
    sides = tuple(measured("matmul_side", side, device=device) for device in made.DEVICES)
    card = judged(made.card(replace(part, figures=part.figures + sides)), [])
    for figure in card.part("ceilings").figures:
        if figure.name in MATMULS:
            assert (figure.expected and figure.expected.basis) == basis
    assert of(card, "copy_gb_per_s").expected.basis == "floor"


def test_the_floor_of_an_h200_is_that_of_its_chip():
    figures = [
        of(judged(made.card(kind=f"NVIDIA {kind}"), []), "matmul_bf16_tflops").expected
        for kind in ("H200", "H100 80GB HBM3")
    ]
    assert figures[0].low == figures[1].low == pytest.approx(0.65 * made.PEAK_TFLOPS)


def test_a_machine_that_nobody_knows_has_no_expectation():
    card = judged(made.card(kind="NVIDIA H400"), [])
    assert not bases(card) and summary_of(card) == "no expectation"


def test_processors_are_a_fleet_by_their_name():
    def cpus(model):
        cards = fleet(backend="cpu", kind="cpu")
        return [replace(one, environment=one.environment | {"cpu": model}) for one in cards]

    card = replace(cpus("AMD EPYC")[0], parts=made.card(made.networks(9_990.0)).parts)
    assert bases(made.expected(card, cpus("AMD EPYC"))) == {"fleet"}
    assert not bases(made.expected(card, cpus("Intel Xeon")))


def test_the_cards_of_a_folder(tmp_path, capsys):
    for number, card in enumerate([*fleet(), made.judged(made.networks(1e9))]):
        made.write(tmp_path / f"n{number}", card)
    made.alter(tmp_path / "n1" / "card.json", lambda c: c.update(preset="x"), digest=False)
    assert [one.environment["hostname"] for one in load_fleet(str(tmp_path))] == ["node1", "node3"]
    error = capsys.readouterr().err
    assert "altered or damaged: its digest is not that of its content" in error
    assert "images_per_s, network resnet50, precision bf16, batch 256: 1e+09" in error
    none = str(tmp_path / "none")
    assert refusal(load_fleet, none) == f"--fleet={none}: there is no card in it"
    # Those of the checkout.
    assert all(one.preset == "cpu-1" for one in load_fleet(None))
