"""Finds the largest batch that fits in memory."""

from collections.abc import Callable
from typing import NamedTuple

# The first stride away from a guess; each is twice as long as the one before.
_FIRST_STRIDE = 0.02
# So many plans tell all that they can.
_MOST_PLANS = 2


class Trial(NamedTuple):
    """What became of a batch.

    Attributes:
      fits: whether it ran.
      needed_bytes: what the compiler plans for it, None where it did not come so far.
      limit_bytes: what there is, None where nobody knows.
    """

    fits: bool
    needed_bytes: float | None = None
    limit_bytes: float | None = None


def largest_batch(
    try_batch: Callable[[int], Trial], start: int, unit: int
) -> tuple[int | None, int | None]:
    """Finds the largest multiple of `unit` that fits, if all smaller ones fit.

    The first two trials tell how the plan grows with the batch; the search goes on where it meets
    the limit, strides from there until the answer lies between two trials, and halves.

    Args:
      try_batch: tries a batch for real.
      start: where to begin, a multiple of `unit`.
      unit: what batches must be multiples of.

    Returns:
      The largest that fits (None: not even `unit` does) and the smallest tried that does not.
    """
    planned: dict[int, float] = {}
    limit_bytes = None
    low, high = 0, None
    # Strides lead away from `start`, later from the last guess, as long as all trials end alike.
    batch, stride, outcomes = start, start, set()
    while True:
        trial = try_batch(batch)
        limit_bytes = trial.limit_bytes or limit_bytes
        if trial.needed_bytes is not None:
            planned[batch] = trial.needed_bytes
        outcomes.add(trial.fits)
        if trial.fits:
            low = max(low, batch)
        else:
            high = batch if high is None else min(high, batch)
        if high is not None and high - low <= unit:
            return low or None, high
        guess = _guess(planned, limit_bytes, unit) if len(planned) <= _MOST_PLANS else None
        if guess is not None and low < guess and (high is None or guess < high):
            batch, outcomes = guess, set()
            stride = max(unit, int(_FIRST_STRIDE * guess))
        elif high is None:
            batch, stride = batch + stride, 2 * stride
        elif len(outcomes) == 1:
            stride = stride if trial.fits else -stride
            batch, stride = _nearer(batch + stride, (low + high) // 2, batch), 2 * abs(stride)
        else:
            batch = (low + high) // 2
        batch = max(batch // unit * unit, low + unit)


def _nearer(one: int, other: int, to: int) -> int:
    return min(one, other, key=lambda place: abs(place - to))


def _guess(planned: dict[int, float], limit_bytes: float | None, unit: int) -> int | None:
    """The batch whose plan meets the limit, by the line through the two largest plans."""
    if limit_bytes is None or not planned:
        return None
    batches = sorted(planned)[-2:]
    if len(batches) == 1:
        # All of it as if it grew with the batch: too small a guess rather than too large a one.
        per_image, constant = planned[batches[0]] / batches[0], 0.0
    else:
        small, large = batches
        per_image = (planned[large] - planned[small]) / (large - small)
        constant = planned[large] - per_image * large
    if per_image <= 0:
        return None
    return max(unit, int((limit_bytes - constant) / per_image) // unit * unit)
