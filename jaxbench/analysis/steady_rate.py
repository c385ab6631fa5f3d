"""The rate of a training run: that of its steady state."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval
from jaxbench.metrics import plain


def steady_epochs(epochs: Iterable[Any]) -> list[Any]:
    """Return the complete epochs with a rate from the second on: the first one is warm-up.

    Args:
      epochs: records of epochs.
    """
    return [one for one in epochs if one.complete and one.epoch > 1 and one.images_per_s]


def steady_rate(epochs: Iterable[Any]) -> dict[str, Any]:
    """Return the median rate of the steady epochs with its interval, as a training summary has it.

    All is None, and `steady_epochs` is 0, if there is no such epoch.
    """
    rates = [epoch.images_per_s for epoch in steady_epochs(epochs)]
    median, low, high = median_interval(rates) if rates else (None, None, None)
    return {
        "images_per_s": median,
        "images_per_s_low": low,
        "images_per_s_high": high,
        "steady_epochs": len(rates),
    }


def describe_steady_rate(rate: Mapping[str, Any]) -> str:
    """Return what the rate of a run that has one is, with its interval."""
    count = rate["steady_epochs"]
    if count == 1:
        return "of one epoch, not the 1st"
    interval = "95 % interval" if count >= FEWEST_FOR_INTERVAL else "range"
    low, high = rate["images_per_s_low"], rate["images_per_s_high"]
    return f"median of {count} epochs from the 2nd on, {interval} {plain(low)} to {plain(high)}"
