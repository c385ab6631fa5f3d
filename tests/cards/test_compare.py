"""Cards side by side, and over a fleet."""

import json

import pytest
from msgspec.structs import replace

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card import measured
from jaxbench.cards.compare import compare_cards, compare_fleet, compare_two, describe_cards
from jaxbench.cards.expected import spread_of
from tests.cards import made
from tests.conftest import refusal


def test_two_cards_by_their_ratios():
    first = made.card()
    second = made.card(made.ceilings([700, 712, 730, 660]), made.networks(9_000.0))
    ratios = {str(one): ratio for one, _, ratio in compare_two(first, second)}
    assert ratios["images_per_s, network resnet50, precision bf16, batch 256"] == 0.9
    assert not any(name.startswith("mfu") for name in ratios)  # it follows from the rate


def test_cards_without_a_common_figure():
    cards = [made.card(), made.card(parts=(made.skipped("soak"),))]
    for compare in (compare_cards, lambda cards: [*describe_cards(cards)]):
        for some in (cards, cards[1:] * 3):
            refusal(compare, some, told="no figure in common")


def test_control_characters_of_a_card_do_not_reach_the_terminal():
    cards = [made.card(host="a\x1b[2J"), made.card(kind="b\x07")]
    for lines in (describe_cards(cards), describe_cards(cards[:1] * 3)):
        assert all(line.isprintable() for line in lines)


def fleet(*odd, count=10):
    """Cards of equal machines; {number: card} in place of some."""
    cards = made.fleet(count)
    for number, other in odd:
        cards[number] = other
    return cards


def outliers(cards):
    return {
        (str(one.figure), own.node, own.device)
        for one in compare_fleet(cards)
        for own in one.outliers or ()
    }


def test_an_outlier_is_found_among_ten():
    assert outliers(fleet()) == set()
    slow = made.card(made.ceilings([700, 700, 650, 700]), host="node8")
    assert outliers(fleet((7, slow))) == {("matmul_bf16_tflops", "node8 (card 8)", 2)}
    node = made.card(made.networks(9_000.0), host="node8")
    found = outliers(fleet((7, node)))
    # What follows from the rate is no second one.
    assert {figure.partition(",")[0] for figure, *_ in found} == {"images_per_s"}
    assert {(node, device) for _, node, device in found} == {("node8 (card 8)", None)}


def test_little_is_no_outlier():
    """However well the others agree."""

    def found(tflops, interval):
        figure = measured("matmul_bf16_tflops", Estimate(tflops, *interval), device=2)
        odd = made.card(replace(made.ceilings(), figures=(figure,)))
        return outliers([*[made.card()] * 9, odd])

    assert not found(694.0, (693.0, 695.0))
    assert not found(650.0, (600.0, 701.0))
    assert found(650.0, (600.0, 699.0)) and found(650.0, ())


def test_spread_and_median_of_a_fleet():
    rates = (9_000.0, 10_000.0, 11_000.0)
    cards = [made.card(made.networks(rate, others=False)) for rate in rates]
    found = compare_fleet(cards)
    [rate] = [one for one in found if one.figure.name == "images_per_s"]
    # Three nodes are too few for outliers; their twelve devices are not.
    assert rate.outliers is None
    [matmul] = [one for one in found if one.figure.name == "matmul_bf16_tflops"]
    assert matmul.n == 12 and matmul.outliers == []
    [rate] = [line.split() for line in describe_cards(cards) if line.startswith("images_per_s")]
    assert rate == ["images_per_s", "3", "10,000", "22.2%"]
    told = "figures have fewer than 5 values: no outliers are looked for"
    assert any(told in line for line in describe_cards(cards))


def test_of_counts_and_drift_there_is_no_ratio():
    differences = compare_two(made.card(), made.card())
    without = {one.name for one, _, ratio in differences if ratio is None}
    counts = {"errors_before", "errors_after", "rounds", "mismatches"}
    assert without == counts | {"drift_percent", "throttled_share"}  # nothing was throttled


def test_the_table_of_two_cards_fits_a_console_and_says_first_what_differs(snapshot):
    other = made.networks(9_000.0)
    cards = [made.card(), made.card(other, preset="cpu-1", kind="NVIDIA H200", host="other")]
    cards[0].environment["versions"] = {"jax": "0.10.2"}
    cards[1].environment["versions"] = {"jax": "0.12.0"}
    lines = [*describe_cards(cards)]
    assert max(map(len, lines[5:])) <= 80
    assert "\n".join(lines) == snapshot


def test_the_widest_rows_of_two_cards_fit_a_console_by_device(snapshot):
    figures = tuple(
        figure
        for device in range(2)
        for figure in (
            measured("dispatch_latency_s", Estimate(1.234e-6, 1e-6, 3e-6), device=device),
            measured("matmul_bf16_tflops", Estimate(1234.5, 1200.0, 1300.0), device=device),
        )
    )
    card = made.card(replace(made.ceilings(), figures=figures))
    lines = [*describe_cards([card, card])]
    assert max(map(len, lines)) <= 80
    at = lines.index("ceilings, device 0:")
    assert "\n".join(lines[at : at + 6]) == snapshot


def test_a_fleet_says_what_its_cards_do_not_share():
    cards = fleet()
    assert not any(line.startswith("different") for line in describe_cards(cards))
    cards[3].environment["versions"] = {"jax": "0.12.0"}
    assert "different JAX: None (9 cards), 0.12.0 (1 card)" in [*describe_cards(cards)]


def test_a_fleet_of_several_sizes_is_compared_by_device():
    def node(devices, rate):
        parts = [made.networks(rate * devices, others=False), made.collectives()]
        figures = [
            replace(own, labels=own.labels | {"batch": 64 * devices}) for own in parts[0].figures
        ]
        parts[0] = replace(parts[0], figures=tuple(figures))
        card = made.card(*parts, host=f"n{devices}-{rate:.0f}")
        return replace(card, environment=card.environment | {"num_devices": devices})

    cards = [node(*own) for own in ((4, 1000.0), (4, 1010.0), (8, 1001.0), (8, 990.0), (8, 700.0))]
    found = {str(one.figure): one for one in compare_fleet(cards)}
    rate = found["images_per_s, network resnet50, precision bf16, batch 64 (of a device)"]
    assert (rate.n, rate.median) == (5, 1000.0)
    assert [own.node for own in rate.outliers] == ["n8-700 (card 5)"]
    # What a collective carries depends on how many take part.
    assert not any("collective" in one.figure.labels for one in found.values())
    pair = {str(one): ratio for one, _, ratio in compare_two(cards[0], cards[2])}
    assert not any("collective" in name for name in pair)
    assert pair["images_per_s, network resnet50, precision bf16, batch 64 (of a device)"] == 1.001
    assert any(line.startswith("by device") for line in describe_cards(cards))


def test_a_fleet_begins_with_its_nodes_and_the_largest_outliers(snapshot):
    odd = [made.card(made.ceilings(500.0 + at, 2000.0), host=f"node{at}") for at in (3, 7)]
    lines = [*describe_cards(fleet((2, odd[0]), (6, odd[1]), count=13))]
    assert not any("more outliers" in line for line in lines)
    odd.append(made.card(made.ceilings(500.0, 2000.0), host="node9"))
    many = [*describe_cards(fleet((2, odd[0]), (6, odd[1]), (8, odd[2]), count=20))]
    assert max(map(len, many[24:])) <= 80
    assert "4 more outliers, nearer to their medians: --json has all" in many
    assert "\n".join([*lines, "", *many[20:]]) == snapshot


def test_spreads_by_hand():
    # Median 3, median absolute deviation 1.
    assert spread_of([1, 2, 3, 4, 100]) == pytest.approx((3, 1.4826, 3 * 1.4826))
    # Median absolute deviation 0, mean absolute deviation 0.4.
    assert spread_of([1, 1, 1, 1, 3]) == pytest.approx((1, 1.2533 * 0.4, 3 * 1.2533 * 0.4))
    # Equal values leave 2 %; few values have the sample's deviation, or what others say of it.
    assert spread_of([5, 5, 5, 5, 5]) == (5, 0, 0.1)
    assert spread_of([100, 101, 102]) == pytest.approx((101, 1, 3))
    assert spread_of([100, 101, 102], 2.0) == (101, 2.0, 6.0)


def test_a_fleet_is_of_one_kind():
    cards = [*fleet(count=2), made.card(kind="NVIDIA H200")]
    refusal(compare_fleet, cards, told="2 kinds of devices")


@pytest.fixture
def two(tmp_path):
    for name, rate in (("a", 10_000.0), ("b", 9_000.0)):
        (tmp_path / name).mkdir()
        made.write(tmp_path / name, made.judged(made.networks(rate), host=name))
    return tmp_path


def test_the_command_compares_cards(run_cli, two):
    def compare(*args):
        done = run_cli(*map(str, args), module="jaxbench.compare")
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = " ".join(compare(two / "a", two / "b" / "card.json").split())
    assert "A a (4 x NVIDIA H100 80GB HBM3), 2026-03-04T05:06:07+00:00: pass" in text
    assert "images_per_s 10,000 ±1.0% 9,000 ±1.0% 0.900" in text
    # Each card is one run of its machine.
    assert "No verdict" in text and "worse" not in text
    assert json.loads(compare("--json", two / "a", two / "b"))["verdict"] == "inconclusive"
    assert json.loads(compare("--json", *[two / "a"] * 3))["fleet"][0]["n"] == 12


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("a", "."), "is no card; give only cards"),
        ((".", "a"), "is no card; give only cards"),
        (("a", "nowhere"), "nowhere: no such file or folder"),
        (("--baseline", "a", "b"), "--baseline: is for runs"),
        (("a", "c"), "altered or damaged"),
    ],
)
def test_sides_that_cannot_be_compared(refused, two, arguments, message):
    made.alter(made.write(two / "c"), lambda c: c.update(preset="x"), digest=False)
    refused(*arguments, told=message, module="jaxbench.compare")
