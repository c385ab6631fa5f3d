"""libturbojpeg 3, where the system has it: decodes a rectangle of a JPEG and nothing else of it.

simplejpeg, a requirement, holds the same library but always begins at the upper left. Here the
pixels above and beside the rectangle are only unpacked, not transformed, which saves about a fifth
of the time. The resulting pixels are the same. API: libjpeg-turbo.org, TurboJPEG 3.
"""

import ctypes
import ctypes.util
import functools
import os
import pathlib
import sys
import threading

import numpy as np

from jaxbench.errors import BadInput

# Gives its path where it is somewhere else.
_VARIABLE = "JAXBENCH_TURBOJPEG"
_DECOMPRESS, _PIXELS_RGB = 1, 0
# Colour that is stored at half the size is interpolated from its neighbours.
_CONTEXT = 2


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("left", "top", "width", "height")]


class _Scale(ctypes.Structure):
    _fields_ = [("numerator", ctypes.c_int), ("denominator", ctypes.c_int)]


class TurboJpeg:
    """The library; one decompressor and one buffer for each thread that uses it.

    Raises:
      OSError: it cannot be loaded, or is older than version 3.
    """

    def __init__(self, path: str):
        self.path = path
        self._library = library = ctypes.CDLL(path)
        handle, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        try:
            for name, arguments, result in (
                ("tj3Init", [ctypes.c_int], handle),
                ("tj3Destroy", [handle], None),
                ("tj3GetErrorStr", [handle], text),
                ("tj3DecompressHeader", [handle, text, size], ctypes.c_int),
                ("tj3SetScalingFactor", [handle, _Scale], ctypes.c_int),
                ("tj3SetCroppingRegion", [handle, _Region], ctypes.c_int),
                (
                    "tj3Decompress8",
                    [handle, text, size, ctypes.c_void_p, ctypes.c_int, ctypes.c_int],
                    ctypes.c_int,
                ),
            ):
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, result
        except AttributeError as error:
            raise OSError(str(error)) from error
        self._own = threading.local()

    def decode(
        self,
        content: bytes,
        region: tuple[int, int, int, int],
        *,
        size: tuple[int, int],
        scale: int,
        unit: int,
    ) -> np.ndarray:
        """Decode a rectangle of an image that is `scale` (1, 2, 4 or 8) times smaller.

        Args:
          content: a baseline JPEG.
          region: (top, left, height, width) in pixels of the smaller image.
          size: (height, width) of the smaller image.
          scale: how many times smaller.
          unit: columns, in pixels of the full image, that are stored together.

        Returns:
          uint8 of shape (height, width, 3): a view of the thread's buffer, which the next call
          overwrites.

        Raises:
          ValueError: the image is corrupt, in the rectangle or above it.
        """
        top, left, height, width = region
        first = max(0, (left - _CONTEXT) * scale // unit * unit // scale)
        last = min(size[1], left + width + _CONTEXT)
        upper = max(0, top - _CONTEXT)
        lower = min(size[0], top + height + _CONTEXT)
        rows, columns = lower - upper, last - first
        own = getattr(self._own, "thread", None)
        if own is None:
            own = self._own.thread = _Thread(self._library)
        if own.buffer.size < rows * columns * 3:
            own.buffer = np.empty(rows * columns * 3, np.uint8)
        pixels_HxWx3 = own.buffer[: rows * columns * 3].reshape(rows, columns, 3)
        library, handle = self._library, own.handle
        failed = (
            library.tj3DecompressHeader(handle, content, len(content))
            or library.tj3SetScalingFactor(handle, _Scale(1, scale))
            or library.tj3SetCroppingRegion(handle, _Region(first, upper, columns, rows))
            or library.tj3Decompress8(
                handle, content, len(content), pixels_HxWx3.ctypes.data, 0, _PIXELS_RGB
            )
        )
        if failed:
            raise ValueError(library.tj3GetErrorStr(handle).decode(errors="replace"))
        top, left = top - upper, left - first
        return pixels_HxWx3[top : top + height, left : left + width]


class _Thread:
    """A thread's decompressor and buffer, freed when the thread ends."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self.handle = library.tj3Init(_DECOMPRESS)
        if not self.handle:
            raise MemoryError("libturbojpeg cannot start")
        self.buffer = np.empty(0, np.uint8)

    def __del__(self):
        if self.handle:
            self._library.tj3Destroy(self.handle)


@functools.cache
def find_turbojpeg() -> TurboJpeg | None:
    """Return the library: $JAXBENCH_TURBOJPEG, else this environment's or the system's, or None.

    An empty $JAXBENCH_TURBOJPEG turns it off.

    Raises:
      BadInput: $JAXBENCH_TURBOJPEG is not the path of such a library.
    """
    named = os.environ.get(_VARIABLE)
    if named is not None:
        try:
            return TurboJpeg(named) if named else None
        except OSError as error:
            raise BadInput(f"{_VARIABLE}={named}: must be libturbojpeg 3 ({error})") from error
    folders = [pathlib.Path(sys.prefix) / "lib", pathlib.Path("/opt/libjpeg-turbo/lib64")]
    places = [str(path) for folder in folders for path in sorted(folder.glob("libturbojpeg.*"))]
    if system := ctypes.util.find_library("turbojpeg"):
        places.append(system)
    for place in places:
        try:
            return TurboJpeg(place)
        except OSError:
            continue
    return None
