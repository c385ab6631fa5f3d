"""From an encoded image to its pixels.

A JPEG of which a random crop is at least twice as large as the result is decoded at a half, a
quarter or an eighth of the size. simplejpeg decodes JPEGs, Pillow PNGs and the few JPEGs that
simplejpeg does not read. The result is always uint8 in the order red, green, blue.

OpenCV resizes the crops, because it is the quickest. Images that are not cropped at random are
resized in `resize`. All are turned upright as EXIF says, because labels were given to what a viewer
shows; torchvision's loader does not turn them.
"""

import io

import numpy as np

from jaxbench.data.images.crop import CropBox
from jaxbench.errors import first_line

# 0.4 GB when decoded. A few bytes can claim far more.
MAX_PIXELS = 2**27
_ORIENTATION = 0x0112  # EXIF's tag


class CorruptImageError(Exception):
    """The bytes cannot be decoded as an image; the message says why."""


def check_size(height: int, width: int) -> None:
    """Raise CorruptImageError for an image of more pixels than are decoded or made."""
    if height * width > MAX_PIXELS:
        raise CorruptImageError(f"{height}x{width} pixels, the limit is {MAX_PIXELS:,}")


def load_decoder() -> None:
    """Import OpenCV, before any thread or process works.

    It changes sys.path while it is imported. A process that another thread starts meanwhile would
    inherit that, and import OpenCV's `typing` for Python's.
    """
    import cv2  # noqa: F401


class Image:
    """An encoded image, as a viewer shows it; an upright JPEG is not decoded yet.

    Attributes:
      size: (height, width).

    Raises:
      CorruptImageError: the bytes cannot be decoded as an image.
    """

    def __init__(self, content: bytes):
        import simplejpeg

        if not content:
            raise CorruptImageError("an empty file")
        self._content = content
        self._pixels: np.ndarray | None = None
        try:
            self.size = simplejpeg.decode_jpeg_header(content)[:2]
        except ValueError:  # no JPEG, or one of unusual subsampling
            self._pixels = _decode_with_pillow(content)
        else:
            check_size(*self.size)
            orientation = _jpeg_orientation(content)
            if orientation != 1:
                self._pixels = _turn(_decode_jpeg(content, *self.size), orientation)
        if self._pixels is not None:
            self.size = self._pixels.shape[:2]

    def whole(self) -> np.ndarray:
        """Decode all of it; return uint8 of shape (height, width, 3), red first."""
        if self._pixels is None:
            self._pixels = _decode_jpeg(self._content, *self.size)
        return self._pixels

    def decode(self, box: CropBox, out_HxWx3: np.ndarray, *, flip: bool = False) -> None:
        """Decode a box within `size` and resize it into a contiguous uint8 array.

        Raises:
          CorruptImageError: it cannot be decoded.
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
            pixels = _decode_jpeg(self._content, *self.size, scale)
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


def _decode_jpeg(content: bytes, height: int, width: int, scale: int = 1) -> np.ndarray:
    """Decode an image of this size as it is stored, `scale` (1, 2, 4 or 8) times smaller."""
    import simplejpeg

    height, width = -(-height // scale), -(-width // scale)
    buffer = np.empty((height, width, 3), np.uint8)
    try:
        return simplejpeg.decode_jpeg(
            content, "RGB", min_height=height, min_width=width, min_factor=scale, buffer=buffer
        )
    except ValueError as error:
        raise CorruptImageError(str(error)) from error


def _decode_with_pillow(content: bytes) -> np.ndarray:
    """Decode a PNG or a JPEG as a viewer shows it."""
    import PIL.Image

    try:
        image, again = (
            PIL.Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) for _ in range(2)
        )
        check_size(image.height, image.width)
        again.verify()  # a PNG's checksums, which decoding leaves out
        image.load()
    except PIL.UnidentifiedImageError as error:
        raise CorruptImageError("no JPEG or PNG that can be decoded") from error
    except CorruptImageError:
        raise
    except Exception as error:  # Pillow raises nearly anything for corrupt files
        raise CorruptImageError(f"a corrupt JPEG or PNG: {first_line(error)}") from error
    orientation = _orientation(image)
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return _turn(np.asarray(image.convert("RGB")), orientation)


def _jpeg_orientation(content: bytes) -> int:
    # Opening an image with Pillow takes ten times longer than this, and holds Python's lock.
    at = 2
    while content[at + 4 : at + 10] != b"Exif\0\0":
        if content[at : at + 1] != b"\xff" or content[at + 1 : at + 2] == b"\xda":
            return 1  # the pixels begin
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    import PIL.Image

    try:
        return _orientation(PIL.Image.open(io.BytesIO(content), formats=("JPEG",)))
    except Exception:  # libjpeg reads some that Pillow does not
        return 1


def _orientation(image) -> int:
    """Return EXIF's 1 to 8, as stored to as shown; 1 if it is missing or unreadable."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if value in range(1, 9) else 1


def _turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Return an image upright that was stored in one of EXIF's eight orientations."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image)
