"""The rate of a training run: that of its steady state."""

from collections.abc import Iterable
from typing import Any

from jaxbench.analysis.statistics import Estimate, estimate


def steady_epochs(epochs: Iterable[Any]) -> list[Any]:
    """Return the complete epochs with a rate from the second on: the first one is warm-up.

    Args:
      epochs: records of epochs.
    """
    return [one for one in epochs if one.complete and one.epoch > 1 and one.images_per_s]


def steady_rate(epochs: Iterable[Any]) -> Estimate:
    """Return the median images/s of the steady epochs; unknown if there is no such epoch."""
    return estimate([epoch.images_per_s for epoch in steady_epochs(epochs)])


def describe_steady_rate(rate: Estimate) -> str:
    """Return what the rate of a run that has one is, with its interval or range."""
    if rate.n == 1:
        return "of one epoch, not the 1st"
    return f"median of {rate.n} epochs from the 2nd on, {rate.ends_in_words}"
