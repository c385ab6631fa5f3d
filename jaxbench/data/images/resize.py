"""Images brought to the network's size, one way for both feeds: torchvision's reference evaluation.

The image is decoded whole and upright, its shorter side is resized to 256/224 of the crop's, and
the centre is cut out. Pillow resizes: bilinear, averaging where it shrinks. OpenCV has no such
filter; it resizes only training's random crops, which `decode` describes.
"""

import numpy as np

from jaxbench.data.images.decode import CorruptImageError, Image, check_size

# The usual evaluation: the shorter side to 256 for a centre crop of 224.
_RESIZE_PER_CROP = 256 / 224


def centre_crop(pixels_HxWx3: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the centre of an image, uint8 of shape (height, width, 3).

    An image that has this size already is returned whole, so that a folder of 32x32 images is not
    cut and enlarged. Of any other, roundings included, the result is torchvision's `Resize` and
    `CenterCrop`. For a crop that is not square the image is resized until it covers 256/224 of both
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


def shrink(
    content: bytes, side: int, quality: int, *, compare: bool = False
) -> tuple[bytes, float | None]:
    """Return a JPEG whose shorter side has `side` pixels; the same bytes where it has no more.

    With `compare` also its PSNR in dB against the smaller image that was encoded; None where
    nothing was encoded or compared. `quality` is libjpeg's, 1 to 100.

    Raises:
      CorruptImageError: the image cannot be decoded.
    """
    import cv2
    import simplejpeg

    pixels_HxWx3 = Image(content).whole()  # a copy must not hide that its original is corrupt
    if min(pixels_HxWx3.shape[:2]) <= side:
        return content, None
    smaller_HxWx3 = _resize_to_cover(pixels_HxWx3, side, side)
    made = simplejpeg.encode_jpeg(smaller_HxWx3, quality=quality, colorsubsampling="420")
    return made, float(cv2.PSNR(smaller_HxWx3, simplejpeg.decode_jpeg(made))) if compare else None


def _resize_to_cover(pixels_HxWx3: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image resized until it just covers height x width."""
    from PIL import Image as pillow

    own_height, own_width = pixels_HxWx3.shape[:2]
    if own_width * height <= own_height * width:
        size = (width, int(width * own_height / own_width))  # truncated, as torchvision does
    else:
        size = (int(height * own_width / own_height), height)
    try:
        check_size(size[1], size[0])
    except CorruptImageError as error:
        raise CorruptImageError(f"{own_height}x{own_width} pixels become {error}") from error
    image = pillow.fromarray(pixels_HxWx3)
    # Its `box` would resize the crop alone, but differs by a level of grey: it is kept in float32.
    return np.asarray(image.resize(size, pillow.Resampling.BILINEAR))
