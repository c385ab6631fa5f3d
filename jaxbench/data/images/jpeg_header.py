"""The header of a JPEG: its size, and what decides how it can be decoded."""

from typing import NamedTuple

_START = b"\xff\xd8\xff"
# Markers that no length follows, none of which stands before the pixels. libjpeg goes on right
# after them: whoever takes the next bytes for a length reads another header than it does.
_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA)}


class JpegHeader(NamedTuple):
    """What decoding needs of a JPEG's header.

    Attributes:
      height, width: pixels as stored.
      size_at: where the height is in the bytes; 0 where rows cannot be left out.
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


def read_header(content: bytes) -> JpegHeader | None:
    """Return the header of an image file, None for one that is not a JPEG.

    Raises:
      ValueError: it is a JPEG and its header is corrupt.
    """
    if content[:3] != _START:
        return None
    size_at = orientation = height = width = components = 0
    factors: tuple[int, ...] = ()
    at, end = 2, len(content)
    while at + 9 < end:
        if content[at] != 0xFF:
            raise ValueError("a JPEG whose header is not one")
        marker = content[at + 1]
        if marker == 0xFF:  # filling
            at += 1
            continue
        if marker in _WITHOUT_LENGTH:
            raise ValueError("a JPEG whose header is not one")
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == 0xE1 and not orientation and content[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _exif_orientation(content[at + 10 : at + 2 + length])
        # Start of frame, all but tables (C4, C8, CC) of this range.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            width = int.from_bytes(content[at + 7 : at + 9], "big")
            if not height or not width:
                raise ValueError(f"a JPEG of {height}x{width} pixels")
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
            return JpegHeader(height, width, size_at, at, unit, plain, orientation or 1)
        if length < 2:
            break
        at += 2 + length
    raise ValueError("a JPEG without a frame")


def _plain(factors: tuple[int, ...]) -> bool:
    """Return whether it is grey, or brightness and two colours in one of the usual subsamplings."""
    if len(factors) == 1:
        return True
    return factors[1:] == (0x11, 0x11) and factors[0] in (0x11, 0x21, 0x12, 0x22, 0x41, 0x14)


def _exif_orientation(tiff: bytes) -> int:
    """Return 1 to 8; 1 where the tag is missing or unreadable."""
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
