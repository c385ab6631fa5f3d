"""What rates, times and energies come to in money."""

import math
from typing import Any

S_PER_HOUR, J_PER_KWH = 3600.0, 3.6e6


def rate_per_price(images_per_s: float, usd_per_hour: float) -> float:
    """Returns images/s for each USD/h."""
    return images_per_s / usd_per_hour


def usd_per_million_images(images_per_s: float, usd_per_hour: float) -> float:
    return usd_per_hour / S_PER_HOUR * 1e6 / images_per_s


def usd(time_s: float, usd_per_hour: float) -> float:
    """Returns what a time costs; infinite if it never ends."""
    return time_s / S_PER_HOUR * usd_per_hour


def training_s(epochs: float, images_per_epoch: int, images_per_s: float) -> float:
    """Returns how long so many epochs take at a rate, evaluations and compiling left out."""
    return epochs * images_per_epoch / images_per_s


def electricity_usd(energy_j: float, usd_per_kwh: float) -> float:
    return energy_j / J_PER_KWH * usd_per_kwh


def first_at_target(
    evaluations: list[dict[str, Any]], score: str, target: float
) -> dict[str, Any] | None:
    """Returns the first evaluation whose score is at or above the target, None if there is none.

    Args:
      evaluations: `epoch` records in order.
      score: the key of the figure, such as `eval_top1`.
      target: as a share, 0.94 for 94 %.
    """
    return next((record for record in evaluations if record[score] >= target), None)


def time_to_target_s(
    evaluations: list[dict[str, Any]], score: str, target: float
) -> tuple[float, int | None]:
    """Returns seconds from the run's start to the first evaluation at the target, and its epoch.

    Infinite, and None, where a run never gets there.
    """
    record = first_at_target(evaluations, score, target)
    if record is None:
        return math.inf, None
    return record["elapsed_s"], record["epoch"]
