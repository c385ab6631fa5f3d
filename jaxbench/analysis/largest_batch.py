"""Where the compiler's memory estimates of some batches meet a limit."""

from collections.abc import Mapping


def estimate_largest(
    needed_bytes: Mapping[int, float], limit_bytes: float | None, unit: int
) -> int | None:
    """Return the batch whose estimate meets the limit, by the line through the largest two.

    None if the limit is not known, or memory does not grow with the batch.

    Args:
      needed_bytes: {batch: estimate of a device's memory}.
      unit: the result is a multiple of it, and no less.
    """
    if limit_bytes is None or not needed_bytes:
        return None
    # Of a single estimate, as if all of it grew with the batch: rather too small a guess.
    (small, small_bytes), (large, large_bytes) = sorted({0: 0.0, **needed_bytes}.items())[-2:]
    per_image = (large_bytes - small_bytes) / (large - small)
    if per_image <= 0:
        return None
    batch = small + int((limit_bytes - small_bytes) / per_image)
    return max(unit, batch // unit * unit)
