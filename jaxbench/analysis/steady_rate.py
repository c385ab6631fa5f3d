"""The rate of a training run: that of its steady state."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval

# No rate is as large; whole numbers that no float holds are larger still.
_LARGEST = 1e30


def steady_epochs(epochs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the complete epochs from the second on: the first one is warm-up.

    Epochs without a number for their rate are left out.
    """
    return [
        epoch
        for epoch in epochs
        if epoch.get("complete") is True
        and _is_number(epoch.get("epoch"))
        and epoch["epoch"] > 1
        and _is_number(epoch.get("images_per_s"))
    ]


def steady_rate(epochs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median rate of the steady epochs with its interval, as a training summary has it.

    All is None, and `steady_epochs` is 0, where there is no such epoch.
    """
    rates = [epoch["images_per_s"] for epoch in steady_epochs(epochs)]
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
    return f"median of {count} epochs from the 2nd on, {interval} {low:,.1f} to {high:,.1f}"


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value < _LARGEST
