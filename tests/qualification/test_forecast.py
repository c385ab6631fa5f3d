"""Forecasts: predictions of a card that are written before it, and their score."""

import json
import re

import pytest

from jaxbench.cards.figures import STANDARD
from jaxbench.hardware.targets.target import parse_target
from jaxbench.modes.predictions import Predictor
from jaxbench.qualification import forecast
from jaxbench.qualification.networks import make_config
from tests.cards import made

RESNET50 = STANDARD._replace(networks=STANDARD.networks[:1])
HOW = {"module": "jaxbench.forecast"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The text of a forecast of ResNet-50, as if it was made before the cards of these tests."""
    path = tmp_path_factory.mktemp("forecast") / "made.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "STANDARD", RESNET50)
        assert forecast.make_forecast("gpu:h100:4,gpu:titanx", str(path), lambda _: None) == 8
    return re.sub("# date: .*", "# date: 2026-01-02T03:04:05+00:00", path.read_text())


@pytest.fixture
def made_forecast(tmp_path, written):
    path = tmp_path / "made.csv"
    path.write_text(written)
    return path


def write_card(folder, of_predicted, forecasts, **fields):
    """Writes a card with this many times the predicted rate."""
    [one] = [row for row in forecasts if row.batch == 256 and row.precision == "bf16"]
    networks = made.networks(of_predicted * one.images_per_s, others=False)
    return one, made.write(folder, made.judged(networks, **fields))


def test_a_forecast_has_what_describe_predicts(made_forecast):
    about, rows = forecast.read_forecast(str(made_forecast))
    assert about["preset"] == "standard-1" and about["calibration"].startswith("sha256 ")
    expected = [(p, batch) for p in STANDARD.precisions for batch in (256, 128)]
    assert [(row.precision, row.batch) for row in rows[:4]] == expected
    target = parse_target("gpu:h100:4")
    config = make_config(STANDARD.networks[0], "bf16", 1)
    described = Predictor(config, [target]).predict(target, batch_size=256)["predicted"]
    assert rows[0].images_per_s == pytest.approx(described["images_per_s"], rel=1e-4)
    assert rows[0].low_80 == pytest.approx(described["images_per_s_low"], rel=1e-4)
    assert rows[0].high_90 == pytest.approx(described["images_per_s_90_high"], rel=1e-4)
    # A cell that is not predicted has the reason.
    old = rows[4]
    assert (old.target, old.images_per_s) == ("gpu:titanx", None)
    assert "no bf16 units" in old.not_predicted


def test_the_score_of_cards(made_forecast, run_cli, tmp_path):
    _, rows = forecast.read_forecast(str(made_forecast))
    one, _ = write_card(tmp_path / "good", 1.1, rows)
    write_card(tmp_path / "bad", 0.1, rows, created_at="2025-03-04T05:06:07+00:00")
    done = run_cli("score", "made.csv", "good", "bad", "--json", **HOW)
    score = json.loads(done.stdout)
    good, bad = score["rows"]
    assert (good["ratio"], good["inside_80"], good["inside_90"]) == (
        pytest.approx(1.1),
        True,
        True,
    )
    assert bad["ratio"] == pytest.approx(0.1) and not (bad["inside_80"] or bad["inside_90"])
    assert score["median_error"] == pytest.approx((9 + 1 - 1 / 1.1) / 2)
    assert (score["judged"], score["inside_80"], score["not_measured"]) == (2, 1, 7)
    assert done.stderr == (
        "jaxbench: bad: is older (2025-03-04T05:06:07+00:00) than the forecast\n"
    )
    done = run_cli("score", "made.csv", "good", env={"COLUMNS": "120"}, **HOW)
    text = " ".join(done.stdout.split())
    assert (
        f"gpu:h100:4 resnet50 bf16 256 {one.images_per_s:,.0f}" in text and "1.10 yes yes" in text
    )
    assert "1 of 1 measured rates were predicted: median error 9.09 %, 1 of 1 inside the 80" in text
    assert "not measured: 7 of 8 rates" in text and done.stderr == ""


def test_a_forecast_is_never_overwritten(made_forecast, refused):
    arguments = ("make", "--target=gpu:h100", "--out=made.csv")
    refused(*arguments, told="--out=made.csv: must be a new .csv file", **HOW)


def test_what_is_no_forecast_or_no_card_of_it_is_one_line(made_forecast, refused, tmp_path):
    _, rows = forecast.read_forecast(str(made_forecast))
    write_card(tmp_path / "card", 1.0, rows)
    write_card(tmp_path / "copy", 1.0, rows)
    write_card(tmp_path / "other", 1.0, rows, kind="NVIDIA H200")
    write_card(tmp_path / "preset", 1.0, rows, preset="cpu-1")
    made.write(tmp_path / "untrue", made.judged(made.networks(mfu=1.9)))
    made.write(tmp_path / "none", made.judged(made.skipped("networks")))
    text = made_forecast.read_text()
    (tmp_path / "undated.csv").write_text(text.replace("# date", "# day"))
    (tmp_path / "open.csv").write_text(text.replace(f",{rows[0].high_90}", ",", 1))
    for arguments, told in (
        ((), "give make or score"),
        (("scroe",), "did you mean 'score'?"),
        (("make",), "give --target and --out"),
        (("make", "--target=gpu:h101", "--out=a.csv"), "must name a GPU"),
        (("make", "--target=gpu:h100", "--out=a/b.csv"), "in a folder that exists"),
        (("score", "made.csv", "card", "--out=a.csv"), "--out: is not for score"),
        (("score", "made.csv"), "give a forecast and cards"),
        (("score", "nowhere.csv", "card"), "nowhere.csv: no forecast"),
        (("score", "card/card.json", "card"), "no forecast: line 1: no column 'target'"),
        (("score", "undated.csv", "card"), "it lacks a date"),
        (("score", "open.csv", "card"), "or an interval"),
        (("score", "made.csv", "nowhere"), "nowhere"),
        (("score", "made.csv", "card", "copy"), "copy: is a copy of another card"),
        (("score", "made.csv", "other"), "other: is of 4 x NVIDIA H200, the forecast of 4 x NVID"),
        (("score", "made.csv", "untrue"), "untrue: mfu"),
        (("score", "made.csv", "preset"), "preset: is of cpu-1, the forecast of standard-1"),
        (("score", "made.csv", "none"), "none: measured no rate that is in made.csv"),
    ):
        refused(*arguments, told=told, **HOW)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("preset: standard-1", "preset: ", "lacks a date, its preset"),
        (",bf16,128,", ",bf16,256,", "two rows of one rate"),
        ("{rate},", "nan,", "images_per_s"),
    ],
)
def test_a_damaged_forecast_is_one_line(made_forecast, refused, old, new, told):
    rate = forecast.read_forecast(str(made_forecast))[1][0].images_per_s
    text = made_forecast.read_text()
    shown = re.search(rf"bf16,256,({rate:g}[^,]*),", text)[1]
    made_forecast.write_text(text.replace(old.format(rate=shown), new, 1))
    refused("score", str(made_forecast), "card.json", told=told, **HOW)
