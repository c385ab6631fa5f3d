"""From an encoded image to the crop that the network sees, decoding no more than needed.

A baseline JPEG is decoded row by row from the top, so what lies below the crop need not be: its
header is made to say that the image ends there; libturbojpeg 3, where the system has it, also
leaves out what lies above and beside it. Where the crop is at least twice as large as the result,
libjpeg-turbo decodes at a half, a quarter or an eighth of the size. Everything else that is met in
image folders (CMYK, progressive, PNG by another name, rotated by EXIF) is decoded whole. Only
pixels of uint8 and order red, green, blue come out.
"""

import importlib.metadata
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxbench.data.images.turbojpeg import find_turbojpeg

# The usual evaluation: the shorter side to 256 for a centre crop of 224.
RESIZE_PER_CROP = 256 / 224
# The random windows of ImageNet training.
_TRIES, _LEAST_AREA, _WIDEST = 10, 0.08, 4 / 3
NUM_WINDOW_DRAWS = 2 * _TRIES + 2
# libjpeg-turbo's complaint about what lies below the last row that was asked for. It says the
# first thing that it noticed; of damage above that row only what looks just like this is hidden.
_CUT_SHORT = re.compile(r"^Corrupt JPEG data: \d+ extraneous bytes before marker 0xd[0-9]$")
_JPEG = b"\xff\xd8\xff"
# Blocks of 8 rows, of 16 where colour is stored at half the height.
_ROWS = 16


class CorruptImageError(Exception):
    """The bytes cannot be decoded as an image; the message says why."""


class Window(NamedTuple):
    """A rectangle of an image, in its own pixels."""

    top: int
    left: int
    height: int
    width: int


class _Header(NamedTuple):
    """What is needed of a JPEG's header.

    Attributes:
      height, width: pixels as stored.
      size_at: where the height stands in the bytes; 0 where rows cannot be left out.
      scan_at: where the pixels begin.
      unit: columns that are stored together, 8 or a multiple.
      plain: whether libjpeg-turbo's own interface can decode it.
      orientation: EXIF's, 1 is upright.
    """

    height: int
    width: int
    size_at: int
    scan_at: int
    unit: int
    plain: bool
    orientation: int


def load_decoder() -> str:
    """Loads the libraries that decode; says in words which takes ordinary JPEGs, for the record.

    Raises:
      BadInput: $JAXBENCH_TURBOJPEG names no such library.
    """
    # OpenCV changes sys.path while it is imported: a process that was started meanwhile by another
    # thread would take that over, and find OpenCV's `typing` for Python's.
    import cv2  # noqa: F401

    turbojpeg = find_turbojpeg()
    if turbojpeg is not None:
        return f"libturbojpeg ({turbojpeg.path})"
    return f"simplejpeg {importlib.metadata.version('simplejpeg')}"


def draw_window(draws_22: Sequence[float], height: int, width: int) -> Window:
    """Makes a window of random area and aspect ratio (Szegedy et al. 2015).

    Its area is 8 to 100 % of the image's, its width / height 3/4 to 4/3, evenly by its logarithm.

    Args:
      draws_22: evenly from [0, 1): ten areas, ten ratios, the place.
      height, width: of the image, in pixels.

    Returns:
      The first of ten tries that fits; else the largest centred one of those ratios.
    """
    # Plain floats: an array's every operation takes as long as all of this.
    for area, ratio in zip(draws_22[:_TRIES], draws_22[_TRIES : 2 * _TRIES], strict=True):
        area = (_LEAST_AREA + (1 - _LEAST_AREA) * area) * height * width
        ratio = _WIDEST ** (2 * ratio - 1)
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            down, right = draws_22[2 * _TRIES :]
            return Window(
                int(down * (height - rows + 1)), int(right * (width - columns + 1)), rows, columns
            )
    columns = max(1, min(width, round(height * _WIDEST)))
    rows = max(1, min(height, round(width * _WIDEST)))
    return Window((height - rows) // 2, (width - columns) // 2, rows, columns)


def centre_window(height: int, width: int, out_height: int, out_width: int) -> Window:
    """The window that resizing and cutting out the centre comes to."""
    scale = min(height / out_height, width / out_width) / RESIZE_PER_CROP
    rows = max(1, min(height, round(out_height * scale)))
    columns = max(1, min(width, round(out_width * scale)))
    return Window((height - rows) // 2, (width - columns) // 2, rows, columns)


class Image:
    """An encoded image, as a viewer shows it; of an ordinary JPEG no pixel has been decoded yet.

    Args:
      content: the file's bytes.

    Raises:
      CorruptImageError: it is no image that can be decoded.
    """

    def __init__(self, content: bytes):
        if not content:
            raise CorruptImageError("an empty file")
        self._content = content
        self._header = _read_header(content)
        self._pixels: np.ndarray | None = None
        if self._header and self._header.orientation == 1 and self._header.size_at:
            self.size = (self._header.height, self._header.width)
        else:
            # Its size is that of what comes out: nothing else is sure of how it is turned.
            self.size = self.whole().shape[:2]

    def whole(self) -> np.ndarray:
        """Decodes all of it; returns uint8 of shape (height, width, 3), red first."""
        if self._pixels is None:
            self._pixels = _decode_whole(self._content, self._header)
        return self._pixels

    def decode(
        self,
        window: Window,
        out_HxWx3: np.ndarray,
        *,
        mirrored: bool = False,
        exact: bool = False,
    ) -> None:
        """Decodes a window and resizes it.

        Args:
          window: within `size`.
          out_HxWx3: uint8, contiguous; takes the result.
          mirrored: turn left and right round.
          exact: decode the whole image at full size first, for comparing.

        Raises:
          CorruptImageError: it cannot be decoded.
        """
        import cv2

        out_height, out_width = out_HxWx3.shape[:2]
        scale = _scale(window, out_height, out_width)
        # To whole pixels of the smaller image: a window between two of them would be shifted.
        window = Window(*(number // scale * scale for number in window))
        if exact or self._pixels is not None:
            cut = _cut(self.whole(), window)
        else:
            cut = _decode_part(self._content, self._header, window, scale)
        # Averaging over what becomes one pixel, where it shrinks a lot both ways: no aliasing. It
        # takes as long as decoding, so not where one side shrinks by a little more than 2.
        shrinks = min(cut.shape[0] / out_height, cut.shape[1] / out_width) >= 2
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        try:
            cv2.resize(cut, (out_width, out_height), dst=out_HxWx3, interpolation=how)
        except cv2.error as error:
            raise CorruptImageError(str(error).strip().splitlines()[-1]) from error
        if mirrored:
            cv2.flip(out_HxWx3, 1, dst=out_HxWx3)


def shrink(
    content: bytes, side: int, quality: int, *, compare: bool = False
) -> tuple[bytes, float | None]:
    """Makes a JPEG whose shorter side has `side` pixels; the same bytes where it has no more.

    Args:
      content: the encoded image.
      side: pixels.
      quality: libjpeg's, 1 to 100.
      compare: measure what the JPEG costs.

    Returns:
      The JPEG, and its PSNR in dB against the smaller image that it was made from; None where
      nothing was made or compared.

    Raises:
      CorruptImageError: the image cannot be decoded.
    """
    import cv2
    import simplejpeg

    pixels = Image(content).whole()  # a copy must not hide that its original is corrupt
    height, width = pixels.shape[:2]
    if min(height, width) <= side:
        return content, None
    size = (max(side, round(width * side / height)), max(side, round(height * side / width)))
    smaller = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    made = simplejpeg.encode_jpeg(smaller, quality=quality, colorsubsampling="420")
    return made, float(cv2.PSNR(smaller, simplejpeg.decode_jpeg(made))) if compare else None


def _scale(window: Window, out_height: int, out_width: int) -> int:
    """How many times smaller the window may be decoded and still be no smaller than the result."""
    scale = 1
    while scale < 8 and min(window.height // out_height, window.width // out_width) >= 2 * scale:
        scale *= 2
    return scale


def _cut(pixels: np.ndarray, window: Window) -> np.ndarray:
    top, left, height, width = window
    return pixels[top : top + height, left : left + width]


def _decode_part(content: bytes, header: _Header, window: Window, scale: int) -> np.ndarray:
    """Decodes a window, `scale` times smaller; the next call may overwrite what is returned."""
    smaller = Window(*(number // scale for number in window))
    turbojpeg = find_turbojpeg()
    if turbojpeg is None:
        bottom = window.top + window.height
        return _cut(_decode_upper(content, header, bottom, scale), smaller)
    size = (-(-header.height // scale), -(-header.width // scale))
    try:
        return turbojpeg.decode(content, smaller, size=size, scale=scale, unit=header.unit)
    except ValueError as error:
        raise CorruptImageError(str(error)) from error


def _decode_upper(content: bytes, header: _Header, bottom: int, scale: int) -> np.ndarray:
    """Decodes all rows above `bottom` and perhaps some more, `scale` times smaller."""
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
            content,
            "RGB",
            min_height=height,
            min_width=width,
            min_factor=scale,
            buffer=pixels,
        )
    except ValueError as error:
        if not (cut_short and _CUT_SHORT.match(str(error))):
            raise CorruptImageError(str(error)) from error
        decoded = pixels
    if decoded.shape != pixels.shape:
        raise AssertionError(f"decoded {decoded.shape}, expected {pixels.shape}")
    return decoded


def _decode_whole(content: bytes, header: _Header | None) -> np.ndarray:
    """Decodes any image to RGB as a viewer shows it."""
    import cv2
    import simplejpeg

    how = cv2.IMREAD_COLOR
    if header is not None:
        # In what follows the scan's beginning, these two bytes are the end of the image.
        if content.find(b"\xff\xd9", header.scan_at) < 0:
            raise CorruptImageError("Premature end of JPEG file")
        if header.plain:
            # It tells damage, which OpenCV fills in.
            try:
                return _turn(simplejpeg.decode_jpeg(content, "RGB"), header.orientation)
            except ValueError as error:
                raise CorruptImageError(str(error)) from error
        how |= cv2.IMREAD_IGNORE_ORIENTATION
    # OpenCV turns grey and CMYK into colour, takes PNG by any name, and returns None for most
    # damage.
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), how)
    except cv2.error as error:
        raise CorruptImageError(str(error).strip().splitlines()[-1]) from error
    if image is None:
        raise CorruptImageError("no image that OpenCV can decode")
    return _turn(image[..., ::-1], header.orientation if header else 1)


def _turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Shows an image upright that was stored by one of EXIF's eight orientations."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image)


def _read_header(content: bytes) -> _Header | None:
    """Returns None for what is not a JPEG."""
    if content[:3] != _JPEG:
        return None
    size_at = orientation = height = width = components = 0
    factors: tuple[int, ...] = ()
    at, end = 2, len(content)
    while at + 9 < end:
        if content[at] != 0xFF:
            raise CorruptImageError("a JPEG whose header is not one")
        marker = content[at + 1]
        if marker == 0xFF:  # filling
            at += 1
            continue
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == 0xE1 and not orientation and content[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _exif_orientation(content[at + 10 : at + 2 + length])
        # Start of frame, all but tables (C4, C8, CC) of this range.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            width = int.from_bytes(content[at + 7 : at + 9], "big")
            if not height or not width:
                raise CorruptImageError(f"a JPEG of {height}x{width} pixels")
            components = content[at + 9]
            # Sampling factors: horizontal in the upper half of a byte, vertical in the lower.
            factors = tuple(content[at + 11 : at + 11 + 3 * components : 3])
            sequential = marker in (0xC0, 0xC1) and _plain(factors)
            size_at = at + 5 if sequential else 0
        if marker == 0xDA:  # start of scan: pixels follow
            if not height:
                break
            # Rows come one after the other where one scan holds all components.
            if content[at + 4] != components:
                size_at = 0
            unit = 8 * (factors[0] >> 4) if len(factors) == 3 else 8
            plain = _plain(factors)
            return _Header(height, width, size_at, at, unit, plain, orientation or 1)
        if length < 2:
            break
        at += 2 + length
    raise CorruptImageError("a JPEG without a frame")


def _plain(factors: tuple[int, ...]) -> bool:
    """Whether it is grey, or brightness and two colours of one of the usual subsamplings."""
    if len(factors) == 1:
        return True
    return factors[1:] == (0x11, 0x11) and factors[0] in (0x11, 0x21, 0x12, 0x22, 0x41, 0x14)


def _exif_orientation(tiff: bytes) -> int:
    """Returns 1 to 8; 1 where nothing readable is said."""
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    if number(2, 2) != 42:  # as every TIFF begins
        return 1
    directory = number(4, 4)
    for entry in range(number(directory, 2)):
        at = directory + 2 + 12 * entry
        if at + 12 > len(tiff):
            break
        if number(at, 2) == 0x0112:
            value = number(at + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
