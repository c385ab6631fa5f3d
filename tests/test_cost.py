"""Prices, and what they come to: the published article's own figures from its rows."""

import math

import pytest

from jaxbench import economics as cost
from jaxbench.errors import BadInput
from jaxbench.prices import find_price, load_prices
from jaxbench.published import load_published

IMAGENET = 1_281_167
TPU, AWS, RESERVED = (
    "Google Cloud TPU v2-8, on demand",
    "AWS p3.8xlarge, on demand",
    "AWS p3.8xlarge, reserved 12 months",
)


def usd_per_hour(offer):
    return find_price(offer, load_prices()).usd_per_hour


@pytest.mark.parametrize(
    ("hardware", "offer", "published"),
    [("4x TPU v2", TPU, 476), ("4x V100", AWS, 256), ("4x V100", RESERVED, 374)],
)
def test_the_articles_images_per_second_for_a_dollar_an_hour(hardware, offer, published):
    [row] = [
        row
        for row in load_published("throughput")
        if row["hardware"].startswith(hardware)
        and row["data"] == "synthetic"
        and row["framework"] == "TensorFlow 1.7"
    ]
    # The article prints prices with one decimal: 8.4 stands for 8.35 to 8.45.
    low, high = (
        cost.rate_per_price(row["images_per_s"], usd_per_hour(offer) + off) for off in (0.05, -0.05)
    )
    assert low - 0.5 <= published <= high + 0.5


def test_the_articles_cost_to_accuracy():
    found = {}
    for row in load_published("time_to_accuracy"):
        time_s = cost.training_s(row["epochs"], IMAGENET, row["images_per_s"])
        price = usd_per_hour(row["offer"])
        found[row["offer"], row["epochs"]] = time_s / 3600, cost.usd(time_s, price)
        if row["usd_published"] is not None:
            assert round(cost.usd(time_s, price)) == row["usd_published"]
    assert found[TPU, 64] == pytest.approx((8.146, 54.58), abs=0.01)
    assert found[TPU, 86] == pytest.approx((10.946, 73.34), abs=0.01)
    # What the article draws and does not print.
    assert found[AWS, 84] == pytest.approx((10.530, 128.46), abs=0.01)
    assert found[RESERVED, 84] == pytest.approx((10.530, 88.45), abs=0.01)


def test_money_and_energy():
    assert cost.usd_per_million_images(1000, 3.6) == pytest.approx(1.0)
    assert cost.usd(1800, 3.0) == 1.5 and cost.usd(math.inf, 3.0) == math.inf
    assert cost.electricity_usd(7.2e6, 0.25) == 0.5


def test_the_first_evaluation_at_or_above_a_target_counts():
    evaluations = [
        {"epoch": epoch, "eval_top1": top1, "elapsed_s": 10.0 * epoch}
        for epoch, top1 in enumerate((0.5, 0.94, 0.9, 0.95), 1)
    ]
    assert cost.time_to_target_s(evaluations, "eval_top1", 0.94) == (20.0, 2)
    assert cost.time_to_target_s(evaluations, "eval_top1", 0.941) == (40.0, 4)
    assert cost.time_to_target_s(evaluations, "eval_top1", 0.96) == (math.inf, None)


HEADER = "offer,hardware,devices,usd_per_hour,date,source\n"


def test_a_users_prices_come_first(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text(HEADER + f'mine,1x H200,1,3.5,2026-11,"invoice"\n"{TPU}",v2-8,4,4.5,2026,web\n')
    prices = load_prices(str(own))
    assert find_price("mine", prices)[1:] == ("1x H200", 1, 3.5, "2026-11", "invoice")
    assert find_price(TPU, prices).usd_per_hour == 4.5
    assert find_price(AWS, prices).usd_per_hour == 12.2
    with pytest.raises(BadInput, match="no such offer; there are .*did you mean 'mine'"):
        find_price("mien", prices)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("offer,usd_per_hour\nx,1\n", "has no column hardware, devices, date, source"),
        ("", "has no column offer"),
        (HEADER + "x,y,1,,2026,web\n", "line 2 has no usd_per_hour"),
        (HEADER + "x,y,1,2.5,,\n", "line 2 has no date, source"),
        (HEADER + "x,y,one,2.5,2026,web\n", "line 2: invalid literal"),
        (HEADER + "x,y,1,nan,2026,web\n", "usd_per_hour=nan must be more than 0"),
        (HEADER + "x,y,1,-1,2026,web\n", "usd_per_hour=-1 must be more than 0"),
        (HEADER + "x,y\n", "line 2 has no usd_per_hour, date, source"),
    ],
)
def test_a_price_without_all_that_belongs_to_it_is_refused(tmp_path, text, told):
    own = tmp_path / "own.csv"
    own.write_text(text)
    with pytest.raises(BadInput, match=told):
        load_prices(str(own))
    with pytest.raises(BadInput, match="No such file"):
        load_prices(str(tmp_path / "none.csv"))
