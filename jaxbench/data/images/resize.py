"""Images brought to the network's size, one way for both feeds: torchvision's reference evaluation.

The image is decoded whole and upright, its shorter side is resized to 256/224 of the crop's, and
the centre is cut out. Pillow resizes: bilinear, averaging if it shrinks. OpenCV has no such
filter; it resizes only training's random crops, which `decode` describes.
"""

import numpy as np

from jaxbench.data.images.decode import Image, check_size

# The usual evaluation: the shorter side to 256 for a centre crop of 224.
_RESIZE_PER_CROP = 256 / 224


def centre_crop(pixels_HxWx3: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the centre of an image, uint8 of shape (height, width, 3).

    An image of this size is returned whole, so that a folder of 32x32 images is not cut and
    enlarged. Any other becomes, roundings included, what torchvision's `Resize` and `CenterCrop`
    make of it. For a crop that is not square the image is resized until it covers 256/224 of both
    sides.

    Raises:
      CorruptImageError: it is so long and narrow that resizing takes too many pixels.
    """
    if pixels_HxWx3.shape[:2] == (height, width):
        return pixels_HxWx3
    covered = (round(height * _RESIZE_PER_CROP), round(width * _RESIZE_PER_CROP))
    resized_HxWx3 = _resize_to_cover(pixels_HxWx3, *covered)
    top, left = (
        int(round((side - crop) / 2.0))
        for side, crop in zip(resized_HxWx3.shape, (height, width), strict=False)
    )
    return resized_HxWx3[top : top + height, left : left + width]


def shrink(content: bytes, side: int, quality: int) -> bytes:
    """Return a JPEG whose shorter side has `side` pixels; the same bytes if it has no more.

    `quality` is libjpeg's, 1 to 100.

    Raises:
      CorruptImageError: the image cannot be decoded.
    """
    import simplejpeg

    pixels_HxWx3 = Image(content).whole()  # a copy must not hide that its original is corrupt
    if min(pixels_HxWx3.shape[:2]) <= side:
        return content
    smaller_HxWx3 = _resize_to_cover(pixels_HxWx3, side, side)
    return simplejpeg.encode_jpeg(smaller_HxWx3, quality=quality, colorsubsampling="420")


def _resize_to_cover(pixels_HxWx3: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image resized until it just covers height x width."""
    from PIL import Image as pillow

    old_height, old_width = pixels_HxWx3.shape[:2]
    if old_width * height <= old_height * width:
        size = (width, int(width * old_height / old_width))  # truncated, as torchvision does
    else:
        size = (int(height * old_width / old_height), height)
    check_size(size[1], size[0])
    image = pillow.fromarray(pixels_HxWx3)
    # Its `box` would resize only the crop, but differs by a level of grey: it is kept in float32.
    return np.asarray(image.resize(size, pillow.Resampling.BILINEAR))
