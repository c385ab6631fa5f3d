"""From an encoded image to its pixels.

simplejpeg decodes JPEGs, Pillow all else and the few JPEGs that simplejpeg does not read. The
result is always uint8 in the order red, green, blue: transparency is dropped, 16 bits become the
upper 8, and of several pictures in a file the first one counts.

For a random crop the rows below it need not be decoded, and a crop of at least twice the result's
size is decoded at a half, a quarter or an eighth of the size.

A JPEG of which libjpeg only warns is decoded, as by Pillow, OpenCV, TensorFlow and torchvision, and
the warning is noted. If rows below a crop are left out, damage in them is not noted, nor any that
only leaves bytes over at the end of the file. A JPEG that is cut is corrupt, as for all of them but
OpenCV, which may make up its rest.

OpenCV resizes random crops, because it is the quickest. Pillow resizes all else, one way for both
feeds (`centre_crop`): its bilinear filter averages if it shrinks, OpenCV has no such filter. All
are turned upright as EXIF says, because labels were given to what a viewer shows; torchvision's
loader does not turn them.
"""

import io
import math
import re
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxbench.errors import first_line
from jaxbench.terminal import printable

# What Pillow may read, and the endings of such files.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
SUFFIXES = (".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".webp", ".bmp")
_NAMES = "JPEG, PNG, WebP or BMP"
# 0.4 GB when decoded. A few bytes can claim far more.
MAX_PIXELS = 2**27
# What libjpeg says of rows that it did not decode. It reports the first fault only.
_ROWS_LEFT_OUT = re.compile(r"^Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9$")
# Each thread's buffer for pixels that are resized next: fresh memory can take a fifth as long as
# decoding. A larger image than this gets its own, for a thread would hold it to the end.
_BUFFER = threading.local()
_MAX_BUFFER_BYTES = 2**24
# Of a random crop: tries, the smallest fraction of the image's area, the largest aspect ratio.
_TRIES, _MIN_AREA, _MAX_ASPECT = 10, 0.08, 4 / 3
NUM_CROP_DRAWS = 2 * _TRIES + 2
# The usual evaluation: the shorter side to 256 for a centre crop of 224.
_RESIZE_PER_CROP = 256 / 224


class CorruptImageError(Exception):
    """The bytes cannot be decoded as an image; the message says why."""


def check_size(height: int, width: int) -> None:
    """Raise CorruptImageError for an image of more pixels than are decoded or made."""
    if height * width > MAX_PIXELS:
        raise CorruptImageError(f"{height}x{width} pixels, the limit is {MAX_PIXELS:,}")


class CropBox(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def draw_crop_box(draws_22: Sequence[float], height: int, width: int) -> CropBox:
    """Return a box of random area and aspect ratio (Szegedy et al. 2015), as for ImageNet.

    Its area is 8 to 100 % of the image's, its width / height 3/4 to 4/3, evenly by its logarithm.
    It is the first of ten tries that fits, else the largest centred one of those ratios. Draws are
    evenly from [0, 1): ten areas, ten ratios, the position.
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


def load_decoder() -> None:
    """Import OpenCV, before any thread or process works.

    It changes sys.path while it is imported. A process that another thread starts meanwhile would
    inherit that, and import OpenCV's `typing` for Python's.
    """
    import cv2  # noqa: F401


class Image:
    """An encoded image, as a viewer shows it; an upright JPEG is not decoded yet.

    Raises:
      CorruptImageError: the bytes cannot be decoded as an image.
    """

    def __init__(self, content: bytes):
        import simplejpeg

        if not content:
            raise CorruptImageError("an empty file")
        self._content = content
        self.warning = ""  # what libjpeg warns of, once the image is decoded
        self._pixels: np.ndarray | None = None
        try:
            self.size = simplejpeg.decode_jpeg_header(content, strict=False)[:2]  # height, width
            check_size(*self.size)
            self._height_at, header_bytes = _read_header(content)
            if (orientation := _orientation(content, header_bytes)) != 1:
                self._pixels = _upright(self._decode_jpeg(), orientation)
        except (ValueError, KeyError):  # no JPEG, or one of unusual subsampling or colours
            self._pixels = _decode_with_pillow(content)
        if self._pixels is not None:
            self.size = self._pixels.shape[:2]

    def whole(self) -> np.ndarray:
        """Decode all of it; return uint8 of shape (height, width, 3), red first."""
        if self._pixels is None:
            self._pixels = self._decode_jpeg().copy()
        return self._pixels

    def _decode_jpeg(self, scale: int = 1, bottom: int | None = None) -> np.ndarray:
        """Decode a JPEG as it is stored, `scale` (1, 2, 4 or 8) times smaller.

        The next call of this thread overwrites the result. Rows from `bottom` on may be left out.
        A JPEG of which libjpeg warns is decoded by Pillow, all of it at full size.
        """
        import simplejpeg

        content, (height, width) = self._content, self.size
        rows = height
        if bottom is not None and self._height_at:
            # Colours stored at half the height are mixed with those of the next row.
            rows = min(height, bottom + scale)
        if rows < height:  # its header is to say that the image ends there
            content = bytearray(content)
            content[self._height_at : self._height_at + 2] = rows.to_bytes(2, "big")
        height, width = (-(-side // scale) for side in (rows, width))
        buffer_HxWx3 = _buffer(height, width)
        try:
            return simplejpeg.decode_jpeg(
                content,
                "RGB",
                min_height=height,
                min_width=width,
                min_factor=scale,
                buffer=buffer_HxWx3,
            )
        except ValueError as error:  # an error, which Pillow meets too, or only a warning
            if rows < self.size[0] and _ROWS_LEFT_OUT.match(str(error)):
                return buffer_HxWx3
            pixels_HxWx3 = _decode_with_pillow(self._content, upright=False)
            self.warning = str(error)
            return pixels_HxWx3

    def decode_box(
        self, box: CropBox, out_HxWx3: np.ndarray, *, flip: bool = False, all_rows: bool = False
    ) -> None:
        """Decode a box within `size` and resize it into a contiguous uint8 array.

        With `all_rows` all damage is noted in `warning`, also that of rows below the box. Raise
        CorruptImageError if it cannot be decoded.
        """
        import cv2

        out_height, out_width = out_HxWx3.shape[:2]
        # How many times smaller it may be decoded without being smaller than needed.
        scale = 1
        while scale < 8 and min(box.height // out_height, box.width // out_width) >= 2 * scale:
            scale *= 2
        # To whole pixels of the smaller image: a box between two of them would be shifted.
        box = CropBox(*(number // scale * scale for number in box))
        pixels = self._pixels
        if pixels is None:
            pixels = self._decode_jpeg(scale, None if all_rows else box.top + box.height)
            if not self.warning:
                box = CropBox(*(number // scale for number in box))
        part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        # Averaging avoids aliasing if both sides shrink a lot. It takes as long as decoding, so not
        # if one side shrinks by a little more than 2.
        shrinks = min(part.shape[0] / out_height, part.shape[1] / out_width) >= 2
        method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        try:
            cv2.resize(part, (out_width, out_height), dst=out_HxWx3, interpolation=method)
        except cv2.error as error:
            raise CorruptImageError(str(error).strip().splitlines()[-1]) from error
        if flip:
            cv2.flip(out_HxWx3, 1, dst=out_HxWx3)

    def decode_centre(self, out_HxWx3: np.ndarray, *, flip: bool = False) -> None:
        """Write its centre, as `centre_crop` says, into a uint8 array.

        Raise CorruptImageError if it cannot be decoded or brought to that size.
        """
        pixels_HxWx3 = self._decode_jpeg() if self._pixels is None else self._pixels
        cropped_HxWx3 = centre_crop(pixels_HxWx3, *out_HxWx3.shape[:2])
        out_HxWx3[:] = cropped_HxWx3[:, ::-1] if flip else cropped_HxWx3


def describe_warnings(warnings: Mapping[str, str]) -> list[str]:
    """Return what to say of {image: libjpeg's warning}."""
    if not warnings:
        return []
    image, warning = next(iter(warnings.items()))
    return [
        f"{len(warnings):,} image(s) are decoded although libjpeg warns of them, first "
        + printable(f"{image}: {warning}")
    ]


def _decode_with_pillow(content: bytes, upright: bool = True) -> np.ndarray:
    """Decode an image of any format that is read, as a viewer shows it, or as it is stored."""
    import PIL.Image
    import PIL.ImageOps

    try:
        image, copy = (PIL.Image.open(io.BytesIO(content), formats=_FORMATS) for _ in range(2))
        check_size(image.height, image.width)
        copy.verify()  # a PNG's checksums, which decoding leaves out
        image.load()
        image = PIL.ImageOps.exif_transpose(image) if upright else image
    except PIL.UnidentifiedImageError as error:
        raise CorruptImageError(f"no {_NAMES} that can be decoded") from error
    except CorruptImageError:
        raise
    except Exception as error:  # Pillow raises nearly anything for corrupt files
        raise CorruptImageError(f"a corrupt {_NAMES}: {first_line(error)}") from error
    image.info.pop("transparency", None)  # Pillow would warn that it is dropped
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return np.asarray(image.convert("RGB"))


def _buffer(height: int, width: int) -> np.ndarray:
    """Return an array of pixels, in the memory that this thread's previous one has."""
    size = height * width * 3
    if size > _MAX_BUFFER_BYTES:
        return np.empty((height, width, 3), np.uint8)
    if not hasattr(_BUFFER, "pixels") or _BUFFER.pixels.size < size:
        _BUFFER.pixels = np.empty(size, np.uint8)
    return _BUFFER.pixels[:size].reshape(height, width, 3)


def _read_header(content: bytes) -> tuple[int, int]:
    """Return where a JPEG's header states its height, and where the header ends.

    The first is 0 if all rows must be decoded: unless the pixels follow row by row, from the top,
    in one scan without restarts (before a restart libjpeg says of damage what it says of rows that
    are left out), of one or three channels (simplejpeg converts four only if nothing is left out).
    """
    at, height_at, channels, restarts = 2, 0, 0, False
    while content[at : at + 1] == b"\xff" and at + 9 < len(content):
        marker = content[at + 1]
        if marker == 0xDA:  # a scan begins
            by_row = channels in (1, 3) and content[at + 4] == channels and not restarts
            return (height_at if by_row else 0), at
        restarts |= marker == 0xDD
        if marker in (0xC0, 0xC1):  # sequential, by Huffman's codes
            height_at, channels = at + 5, content[at + 9]
        # 0xFF may be repeated before a marker.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return 0, len(content)


def _orientation(content: bytes, header_bytes: int) -> int:
    """Return EXIF's 1 to 8 of a JPEG, as stored to as shown; 1 if it is missing or unreadable."""
    import PIL.Image

    if content.find(b"Exif\0\0", 0, header_bytes) < 0:
        return 1  # opening an image takes far longer
    try:
        return PIL.Image.open(io.BytesIO(content), formats=("JPEG",)).getexif().get(0x0112, 1)
    except Exception:  # libjpeg reads some that Pillow does not
        return 1


def _upright(pixels_HxWx3: np.ndarray, orientation: int) -> np.ndarray:
    """Return an image as shown, given EXIF's number of how it is stored; others turn nothing."""
    if orientation in (5, 6, 7, 8):
        pixels_HxWx3 = pixels_HxWx3.swapaxes(0, 1)
    down = -1 if orientation in (3, 4, 7, 8) else 1
    right = -1 if orientation in (2, 3, 6, 7) else 1
    return pixels_HxWx3[::down, ::right].copy()


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
        round((side - crop) / 2.0)
        for side, crop in zip(resized_HxWx3.shape, (height, width), strict=False)
    )
    return resized_HxWx3[top : top + height, left : left + width]


def shrink(content: bytes, side: int, quality: int) -> bytes:
    """Return a JPEG whose shorter side has `side` pixels; the same bytes if it has no more.

    So are those of which libjpeg warns, for a run is to know it. `quality` is libjpeg's, 1 to 100.
    Raise CorruptImageError if the image cannot be decoded.
    """
    import simplejpeg

    image = Image(content)
    pixels_HxWx3 = image.whole()  # a copy must not hide that its original is corrupt
    if image.warning or min(image.size) <= side:
        return content
    smaller_HxWx3 = _resize_to_cover(pixels_HxWx3, side, side)
    return simplejpeg.encode_jpeg(smaller_HxWx3, quality=quality, colorsubsampling="420")


def _resize_to_cover(pixels_HxWx3: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image resized until it just covers height x width."""
    import PIL.Image

    old_height, old_width = pixels_HxWx3.shape[:2]
    if old_width * height <= old_height * width:
        size = (width, int(width * old_height / old_width))  # truncated, as torchvision does
    else:
        size = (int(height * old_width / old_height), height)
    check_size(size[1], size[0])
    image = PIL.Image.fromarray(pixels_HxWx3)
    # Its `box` would resize only the crop, but differs by a level of grey: it is kept in float32.
    return np.asarray(image.resize(size, PIL.Image.Resampling.BILINEAR))
