"""Which random rectangle of an image the network sees in training."""

import math
from collections.abc import Sequence
from typing import NamedTuple

_TRIES, _MIN_AREA, _MAX_ASPECT = 10, 0.08, 4 / 3
NUM_CROP_DRAWS = 2 * _TRIES + 2


class CropBox(NamedTuple):
    """A rectangle of an image, in its own pixels."""

    top: int
    left: int
    height: int
    width: int


def draw_crop_box(draws_22: Sequence[float], height: int, width: int) -> CropBox:
    """Return a box of random area and aspect ratio (Szegedy et al. 2015), as for ImageNet.

    Its area is 8 to 100 % of the image's, its width / height 3/4 to 4/3, evenly by its logarithm.
    It is the first of ten tries that fits, else the largest centred one of those ratios. Draws are
    evenly from [0, 1): ten areas, ten ratios, the place.
    """
    # Plain floats: one operation on an array takes as long as all of this.
    for area, ratio in zip(draws_22[:_TRIES], draws_22[_TRIES : 2 * _TRIES], strict=True):
        area = (_MIN_AREA + (1 - _MIN_AREA) * area) * height * width
        ratio = _MAX_ASPECT ** (2 * ratio - 1)
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            down, right = draws_22[2 * _TRIES :]
            return CropBox(
                int(down * (height - rows + 1)), int(right * (width - columns + 1)), rows, columns
            )
    columns = max(1, min(width, round(height * _MAX_ASPECT)))
    rows = max(1, min(height, round(width * _MAX_ASPECT)))
    return CropBox((height - rows) // 2, (width - columns) // 2, rows, columns)
