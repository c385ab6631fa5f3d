"""From an encoded image to its pixels, for a random crop of training no more than it needs.

A baseline JPEG is decoded row by row from the top, so the rows below the crop need not be: its
header is changed to say that the image ends there. libturbojpeg 3, where the system has it, also
leaves out the pixels above and beside the crop. Where the crop is at least twice as large as the
result, libjpeg-turbo decodes at a half, a quarter or an eighth of the size. All other files that
image folders hold (CMYK, progressive, PNG by another name, rotated by EXIF) are decoded whole. The
result is always uint8 in the order red, green, blue.

OpenCV resizes the crops: of a crop's many sizes it is the quickest. Images that are not cropped at
random are decoded whole, and resized in `resize`. All are turned upright as EXIF says, because that
is what a viewer shows and what labels were given to; torchvision's loader does not turn them.
"""

import importlib.metadata
import re

import numpy as np

from jaxbench.data.images.crop_box import CropBox
from jaxbench.data.images.jpeg_header import JpegHeader, read_header
from jaxbench.data.images.turbojpeg import find_turbojpeg

# libjpeg-turbo's complaint about data below the last row that was asked for. It reports the first
# thing that it noticed; of corruption above that row only what looks just like this is hidden.
_CUT_SHORT = re.compile(r"^Corrupt JPEG data: \d+ extraneous bytes before marker 0xd[0-9]$")
# Blocks of 8 rows, of 16 where colour is stored at half the height.
_ROWS = 16


# Decoded it has 0.4 GB. A few bytes can claim far more.
MAX_PIXELS = 2**27
_PNG_START = b"\x89PNG\r\n\x1a\n"


class CorruptImageError(Exception):
    """The bytes cannot be decoded as an image; the message says why."""


def check_size(height: int, width: int) -> None:
    """Raise CorruptImageError for an image of more pixels than are decoded or made."""
    if height * width > MAX_PIXELS:
        raise CorruptImageError(f"{height}x{width} pixels, the limit is {MAX_PIXELS:,}")


def load_decoder() -> str:
    """Load the libraries that decode; return which decodes ordinary JPEGs, for the record.

    Raises:
      BadInput: $JAXBENCH_TURBOJPEG names no such library.
    """
    # OpenCV changes sys.path while it is imported. A process that another thread starts meanwhile
    # would inherit that, and import OpenCV's `typing` for Python's.
    import cv2  # noqa: F401

    turbojpeg = find_turbojpeg()
    if turbojpeg is not None:
        return f"libturbojpeg ({turbojpeg.path})"
    return f"simplejpeg {importlib.metadata.version('simplejpeg')}"


class Image:
    """An encoded image, as a viewer shows it; an ordinary JPEG is not decoded yet.

    Raises:
      CorruptImageError: the bytes cannot be decoded as an image.
    """

    def __init__(self, content: bytes):
        if not content:
            raise CorruptImageError("an empty file")
        self._content = content
        try:
            self._header = read_header(content)
        except ValueError as error:
            raise CorruptImageError(str(error)) from error
        # Before anything is allocated for its pixels.
        check_size(*(self._header[:2] if self._header else _png_size(content)))
        self._pixels: np.ndarray | None = None
        if self._header and self._header.orientation == 1 and self._header.size_at:
            self.size = (self._header.height, self._header.width)
        else:
            # Only decoding tells the size of such an image and how it is turned.
            self.size = self.whole().shape[:2]

    def whole(self) -> np.ndarray:
        """Decode all of it; return uint8 of shape (height, width, 3), red first."""
        if self._pixels is None:
            self._pixels = _decode_whole(self._content, self._header)
        return self._pixels

    def decode(self, box: CropBox, out_HxWx3: np.ndarray, *, mirrored: bool = False) -> None:
        """Decode a box within `size` and resize it into a contiguous uint8 array.

        Raises:
          CorruptImageError: it cannot be decoded.
        """
        import cv2

        out_height, out_width = out_HxWx3.shape[:2]
        # How many times smaller it may be decoded and still be no smaller than needed.
        scale = 1
        while scale < 8 and min(box.height // out_height, box.width // out_width) >= 2 * scale:
            scale *= 2
        # To whole pixels of the smaller image: a box between two of them would be shifted.
        box = CropBox(*(number // scale * scale for number in box))
        if self._pixels is not None:
            part = _crop(self._pixels, box)
        else:
            part = _decode_part(self._content, self._header, box, scale)
        # Averaging over what becomes one pixel, where it shrinks a lot both ways: no aliasing. It
        # takes as long as decoding, so not where one side shrinks by a little more than 2.
        shrinks = min(part.shape[0] / out_height, part.shape[1] / out_width) >= 2
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        try:
            cv2.resize(part, (out_width, out_height), dst=out_HxWx3, interpolation=how)
        except cv2.error as error:
            raise CorruptImageError(str(error).strip().splitlines()[-1]) from error
        if mirrored:
            cv2.flip(out_HxWx3, 1, dst=out_HxWx3)


def _png_size(content: bytes) -> tuple[int, int]:
    """Return the (height, width) that a PNG claims.

    Raises:
      CorruptImageError: it is none, or a part claims to be longer than the file. OpenCV asks for as
        much memory as a part claims, up to 2 GiB for a file of 100 bytes.
    """
    if content[:8] != _PNG_START or content[12:16] != b"IHDR":
        raise CorruptImageError("neither a JPEG nor a PNG")
    at = 8
    while at + 8 <= len(content) and content[at + 4 : at + 8] != b"IEND":
        at += 12 + int.from_bytes(content[at : at + 4], "big")  # length, name and checksum
    if at > len(content):
        raise CorruptImageError("a PNG that ends too soon")
    return int.from_bytes(content[20:24], "big"), int.from_bytes(content[16:20], "big")


def _crop(pixels: np.ndarray, box: CropBox) -> np.ndarray:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]


def _decode_part(content: bytes, header: JpegHeader, box: CropBox, scale: int) -> np.ndarray:
    """Decode a box, `scale` times smaller; the next call may overwrite the returned array."""
    smaller = CropBox(*(number // scale for number in box))
    turbojpeg = find_turbojpeg()
    if turbojpeg is None:
        bottom = box.top + box.height
        return _crop(_decode_upper(content, header, bottom, scale), smaller)
    size = (-(-header.height // scale), -(-header.width // scale))
    try:
        return turbojpeg.decode(content, smaller, size=size, scale=scale, unit=header.unit)
    except ValueError as error:
        raise CorruptImageError(str(error)) from error


def _decode_upper(content: bytes, header: JpegHeader, bottom: int, scale: int) -> np.ndarray:
    """Decode all rows above `bottom` and perhaps some more, `scale` times smaller."""
    import simplejpeg

    # Colour at half the height looks one row ahead.
    rows = min(header.height, -(-(bottom + 1) // (_ROWS * scale)) * _ROWS * scale)
    cut_short = rows < header.height
    if cut_short:
        content = bytearray(content)
        content[header.size_at : header.size_at + 2] = rows.to_bytes(2, "big")
    height, width = -(-rows // scale), -(-header.width // scale)
    pixels = np.empty((height, width, 3), np.uint8)
    try:
        decoded = simplejpeg.decode_jpeg(
            content, "RGB", min_height=height, min_width=width, min_factor=scale, buffer=pixels
        )
    except ValueError as error:
        if not (cut_short and _CUT_SHORT.match(str(error))):
            raise CorruptImageError(str(error)) from error
        decoded = pixels
    if decoded.shape != pixels.shape:
        raise AssertionError(f"decoded {decoded.shape}, expected {pixels.shape}")
    return decoded


def _decode_whole(content: bytes, header: JpegHeader | None) -> np.ndarray:
    """Decode any image to RGB as a viewer shows it."""
    import cv2
    import simplejpeg

    how = cv2.IMREAD_COLOR
    if header is not None:
        # In what follows the scan's beginning, these two bytes are the end of the image.
        if content.find(b"\xff\xd9", header.scan_at) < 0:
            raise CorruptImageError("Premature end of JPEG file")
        if header.plain:
            # It reports corrupt pixels, which OpenCV fills in.
            try:
                return _turn(simplejpeg.decode_jpeg(content, "RGB"), header.orientation)
            except ValueError as error:
                raise CorruptImageError(str(error)) from error
        how |= cv2.IMREAD_IGNORE_ORIENTATION
    # OpenCV turns grey and CMYK into colour, takes PNG by any name, and returns None for most
    # corrupt files.
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), how)
    except cv2.error as error:
        raise CorruptImageError(str(error).strip().splitlines()[-1]) from error
    if image is None:
        raise CorruptImageError("no image that OpenCV can decode")
    return _turn(image[..., ::-1], header.orientation if header else 1)


def _turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Return an image upright that was stored in one of EXIF's eight orientations."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image)
