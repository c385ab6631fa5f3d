"""What published rates predict of a card's networks, as `--mode=describe` does."""

import functools
from typing import Any

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card import Card, Expected, Figure
from jaxbench.cli import registry
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import target_of_kind
from jaxbench.modes.predictions import Predictor


def predict(figure: Figure, card: Card) -> Expected | None:
    """Return the 90 % interval of a network's rate; None if nothing is predicted."""
    environment, labels = card.environment, figure.labels
    target = target_of_kind(environment["device_kind"], environment["num_devices"])
    if target is None:
        return None
    try:
        predictor = _predictor(str(labels["network"]), str(labels["precision"]))
        predicted = predictor.predict(target, batch_size=int(labels["batch"]))["predicted"]
    except BadInput:  # this jaxbench cannot make the network of the card
        return None
    if predicted is None:
        return None
    text = f"{predicted['basis']['rates']} published rates"
    return Expected("predicted", text, *Estimate.of_fields(predicted, "images_per_s_90").span)


@functools.cache
def _predictor(spec: str, precision: str) -> Predictor:
    config: Any = registry.load(spec)
    config.precision = precision
    return Predictor(config)
