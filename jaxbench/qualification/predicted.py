"""What published rates predict of a card's networks, as `--mode=describe` does."""

import functools

from jaxbench.cards.card import Card, Expected, Figure
from jaxbench.cards.figures import PRESETS, PresetNetwork
from jaxbench.hardware.targets.target import target_of_kind
from jaxbench.modes.predictions import Predictor
from jaxbench.qualification.networks import make_config
from jaxbench.terminal import warn


def predict(figure: Figure, card: Card) -> Expected | None:
    """Return the 90 % interval of a network's rate; None if nothing is predicted."""
    environment, labels = card.environment, figure.labels
    target = target_of_kind(environment["device_kind"], environment["num_devices"])
    networks = {one.spec: one for one in PRESETS[card.preset].networks}
    network = networks.get(str(labels["network"]))
    if target is None or network is None:
        return None
    try:
        predictor = _predictor(network, str(labels["precision"]))
        predicted = predictor.predict(target, batch_size=int(labels["batch"]))["predicted"]
    except Exception as error:  # A card is worth more than what was expected of it.
        warn(f"{network.spec}: its rate is not predicted: {error!r}")
        return None
    if predicted is None:
        return None
    text = f"{predicted['basis']['rates']} published rates"
    value, low, high = (predicted[f"images_per_s_90{end}"] for end in ("", "_low", "_high"))
    return Expected("predicted", text, value, low, high)


@functools.cache
def _predictor(network: PresetNetwork, precision: str) -> Predictor:
    return Predictor(make_config(network, precision, 1))
