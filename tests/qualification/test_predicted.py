"""A card expects of its networks what `--mode=describe` predicts there."""

import pytest
from msgspec.structs import replace

from jaxbench.cards.card import measured
from jaxbench.cli import entry_point
from jaxbench.hardware.targets.target import parse_target
from jaxbench.modes.predictions import Predictor
from jaxbench.qualification import predicted
from jaxbench.qualification.predicted import predict
from tests.cards import made

CARD = made.card()


@pytest.mark.parametrize(
    ("network", "precision", "batch"),
    [("cnn10", "fp32", 2048), ("gpt124m_synthetic", "bf16", 16)],
)
def test_a_network_is_expected_to_run_as_described(network, precision, batch):
    labels = {"network": network, "precision": precision, "batch": batch}
    expected = predict(measured("images_per_s", 1.0, **labels), CARD)
    config = entry_point.load_experiment(network, [f"--experiment.precision={precision}"])
    target = parse_target("gpu:h100:4")
    described = Predictor(config).predict(target, batch_size=batch)["predicted"]
    ends = (described["images_per_s_90_low"], described["images_per_s_90_high"])
    assert (expected.low, expected.high) == ends and expected.low < expected.expected < ends[1]
    assert "published rates" in expected.source


def test_a_card_is_kept_if_its_rates_cannot_be_predicted(monkeypatch, capsys):
    def fails(*_):
        raise TypeError("odd")

    monkeypatch.setattr(predicted, "Predictor", fails)
    predicted._predictor.cache_clear()
    labels = {"network": "cnn10", "precision": "fp32", "batch": 1024}
    assert predict(measured("images_per_s", 1.0, **labels), CARD) is None
    assert "cnn10: its rate is not predicted: TypeError('odd')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("network", "kind"),
    [("renamed", "NVIDIA H100 80GB HBM3"), ("cnn10", "NVIDIA H400"), ("cnn10:tiny", "cpu")],
)
def test_nothing_is_predicted_of_unknown_networks_and_devices(network, kind):
    labels = {"network": network, "precision": "bf16", "batch": 2048}
    card = replace(CARD, environment=CARD.environment | {"device_kind": kind})
    assert predict(measured("images_per_s", 1.0, **labels), card) is None
