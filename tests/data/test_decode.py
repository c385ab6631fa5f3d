"""Decoding windows of images: the same pixels as decoding all, odd files, corrupt files."""

import contextlib
import io

import cv2
import hypothesis
import numpy as np
import PIL.Image
import pytest
from hypothesis import strategies as st

from jaxbench.data.images.decode import (
    CorruptImageError,
    CropBox,
    Image,
    centre_crop,
    draw_crop_box,
    shrink,
)
from tests.data.encoded_images import psnr_db
from tests.strategies import damaged


def decode_box(content, box, height, width, exact=False):
    out = np.empty((height, width, 3), np.uint8)
    image = Image(content)
    if exact:  # all of it at full size first
        image.whole()
    image.decode_box(box, out)
    return out


def picture(height, width, channels=3):
    """Smooth colours and edges: JPEG's noise would hide what is looked for."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [np.sin(x / (7 + c) + y / (11 - c)) * 60 + 128 for c in range(channels)]
    image = np.stack(waves, -1)
    image[height // 3 : height // 2, width // 4 : width // 2] += 60
    return np.clip(image, 0, 255).astype(np.uint8)


def encode(image, extension=".jpg", *options):
    return cv2.imencode(extension, image, options)[1].tobytes()


def with_exif(content, orientation, magic=42):
    """The JPEG with an Exif segment in front."""
    tiff = b"II" + magic.to_bytes(2, "little") + (8).to_bytes(4, "little")
    entry = (0x0112).to_bytes(2, "little") + (3).to_bytes(2, "little")
    entry += (1).to_bytes(4, "little") + orientation.to_bytes(4, "little")
    body = b"Exif\0\0" + tiff + (1).to_bytes(2, "little") + entry + bytes(4)
    return content[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + content[2:]


def with_odd_scan(content):
    """As phones write it: the scan says that it has no frequencies, and yet is not progressive."""
    at = content.index(b"\xff\xda")
    at += 5 + 2 * content[at + 4]
    return content[:at] + bytes(2) + content[at + 2 :]


# JPEGs of which libjpeg warns.
WARNED = {
    "an odd scan": with_odd_scan,
    "bytes before the end": lambda jpeg: jpeg[:-2] + b"more" * 9 + jpeg[-2:],
    "a new version": lambda jpeg: jpeg.replace(b"JFIF\0\1", b"JFIF\0\5"),
    "a restart is missing": lambda jpeg: jpeg.replace(b"\xff\xd3", b"", 1),
}


@pytest.mark.parametrize("subsampling", ["444", "411", "440", "422", "420"])
@pytest.mark.parametrize("progressive", [0, 1])
def test_a_window_is_decoded_smaller_only_where_it_shrinks(subsampling, progressive):
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{subsampling}")
    options = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    content = encode(picture(203, 150), ".jpg", *options)
    generator = np.random.default_rng(0)
    for _ in range(60):
        box = draw_crop_box(generator.random(22).tolist(), 203, 150)
        for side in (80, 12):
            fast = decode_box(content, box, side, side)
            exact = decode_box(content, box, side, side, exact=True)
            if min(box.height, box.width) < 2 * side:
                assert np.array_equal(fast, exact), box
            else:
                assert psnr_db(fast, exact) > 20, box


@pytest.mark.parametrize("subsampling", ["444", "411", "440", "422", "420"])
@pytest.mark.parametrize("side", [80, 24, 12])
def test_rows_below_a_window_change_none_of_its_pixels(subsampling, side):
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{subsampling}")
    noise = np.random.default_rng(0).integers(0, 256, (103, 120, 3), dtype=np.uint8)
    content = encode(noise, ".jpg", cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor)
    content = content[:2] + b"\xff" * 3 + content[2:]  # a marker may be filled up
    out, expected = np.empty((2, side, side, 3), np.uint8)
    image = Image(content[:-2] + bytes(20) + content[-2:])
    image.decode_box(CropBox(1, 1, 80, 100), out)
    assert not image.warning  # so rows are left out
    for bottom in range(81, 104):
        box = CropBox(1, 1, bottom - 1, 100)
        decode_box(encode(np.zeros_like(noise)), box, side, side)  # what the thread decoded before
        Image(content).decode_box(box, out)
        Image(content).decode_box(box, expected, all_rows=True)
        assert np.array_equal(out, expected), box


def test_rows_below_a_window_are_not_decoded():
    """So damage there is not met, unless the file ends in it."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    content = bytearray(encode(noise))
    content[-9000:-100] = bytes(8900)
    box, out = CropBox(10, 0, 60, 200), np.empty((60, 200, 3), np.uint8)
    image = Image(bytes(content))
    image.decode_box(box, out)
    assert not image.warning
    assert np.array_equal(out, Image(encode(noise)).whole()[10:70])
    assert image.whole().shape == noise.shape and image.warning
    content[4000:4002] = b"\xff\xd0"
    image = Image(bytes(content))
    image.decode_box(box, out)
    assert image.warning  # there is damage in the window, too


def in_three_scans(noise):
    """A JPEG whose channels follow one another; each is encoded as a grey one."""
    planes = [encode(np.ascontiguousarray(noise[..., channel])) for channel in range(3)]
    scans = [plane[plane.index(b"\xff\xda") : -2] for plane in planes]
    frame, tables = planes[0].index(b"\xff\xc0"), planes[0].index(b"\xff\xc4")
    header = bytearray(planes[0][: frame + 10])
    header[frame + 2 : frame + 4], header[frame + 9] = (17).to_bytes(2, "big"), 3
    header += bytes([1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])
    header += planes[0][tables : planes[0].index(b"\xff\xda")]
    scans = [scan[:5] + bytes([number]) + scan[6:] for number, scan in enumerate(scans, 1)]
    return bytes(header) + b"".join(scans) + b"\xff\xd9"


@pytest.mark.parametrize("kind", ["progressive", "three scans", "CMYK", "L"])
def test_a_window_is_the_same_part_of_every_kind_of_file(kind):
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    content = in_three_scans(noise)
    if kind != "three scans":
        progressive = kind == "progressive"
        buffer, image = io.BytesIO(), PIL.Image.fromarray(noise)
        image.convert("RGB" if progressive else kind).save(buffer, "jpeg", progressive=progressive)
        content = buffer.getvalue()
    box, out = CropBox(10, 0, 60, 200), np.empty((60, 200, 3), np.uint8)
    decode_box(encode(np.zeros_like(noise)), box, 60, 200)  # what the thread decoded before
    image = Image(content)
    image.decode_box(box, out)
    assert not image.warning and np.array_equal(out, image.whole()[10:70])


@pytest.mark.parametrize("orientation", [1, 3, 9])
def test_the_pixels_of_an_image_stay_when_the_thread_decodes_another(orientation):
    content, turn = with_exif(encode(picture(60, 40)), orientation), 1 - 2 * (orientation == 3)
    expected = np.array(PIL.Image.open(io.BytesIO(content)))[::turn, ::turn]
    image = Image(content)
    if orientation == 1:
        image.whole()
    decode_box(encode(255 - picture(60, 40)), CropBox(0, 0, 60, 40), 60, 40)
    assert np.abs(image.whole().astype(int) - expected).max() <= 3


def test_windows_lie_within_the_image_and_repeat():
    for height, width in ((1, 1), (2, 300), (300, 2), (375, 500), (10, 10)):
        areas = []
        for seed in range(200):
            draws = [
                draw_crop_box(np.random.default_rng(seed).random(22), height, width)
                for _ in range(2)
            ]
            assert draws[0] == draws[1]
            top, left, rows, columns = draws[0]
            assert 0 <= top <= height - rows < height and 0 <= left <= width - columns < width
            areas.append(rows * columns / (height * width))
        if (height, width) == (375, 500):
            assert 0.08 * 0.98 < min(areas) < 0.12 and 0.85 < max(areas) <= 1
            assert abs(np.mean(areas) - 0.49) < 0.08


def test_every_kind_of_file_comes_out_as_the_same_picture():
    image = picture(90, 120)
    box = CropBox(10, 20, 60, 60)
    # OpenCV writes blue, green, red.
    expected = cv2.resize(image[10:70, 20:80, ::-1], (32, 32), interpolation=cv2.INTER_LINEAR)
    jpeg = encode(image, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 98)
    turned = np.ascontiguousarray(np.rot90(image, 1))
    rotated = encode(turned, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 98)
    files = {
        "jpeg": jpeg,
        "png": encode(image, ".png"),
        "exif": with_exif(rotated, 6),
    }
    for name, content in files.items():
        assert Image(content).size == (90, 120), name
        out = decode_box(content, box, 32, 32)
        assert out.dtype == np.uint8 and out.shape == (32, 32, 3)
        assert np.abs(out.astype(int) - expected).mean() < 3, name


def test_grey_and_cmyk_become_colour():
    grey = encode(picture(60, 60, 1)[..., 0])
    out = decode_box(grey, CropBox(0, 0, 60, 60), 30, 30)
    assert (out[..., 0] == out[..., 1]).all() and (out[..., 1] == out[..., 2]).all()
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.full((40, 40, 3), (200, 30, 60), np.uint8)).convert("CMYK").save(
        buffer, "JPEG", quality=98
    )
    out = decode_box(buffer.getvalue(), CropBox(0, 0, 40, 40), 20, 20)
    assert np.abs(out.reshape(-1, 3).mean(0) - (200, 30, 60)).max() < 12


@pytest.mark.parametrize("extension", ["PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "1"])
def test_other_formats_show_their_colours_without_transparency(mode, extension):
    """And Pillow's warnings, which are errors here, do not come."""
    image = PIL.Image.fromarray(picture(30, 20)).convert(mode)
    options = {"PNG": {"P": {"transparency": bytes(range(200))}}, "WEBP": {"": {"lossless": True}}}
    options = options.get(extension, {})
    buffer = io.BytesIO()
    if extension == "BMP":
        image = image.convert({"LA": "L"}.get(mode, mode))
    image.save(buffer, extension, **options.get(mode, {}), **options.get("", {}))
    assert np.array_equal(Image(buffer.getvalue()).whole(), np.asarray(image.convert("RGB")))
    with pytest.raises(CorruptImageError):
        Image(buffer.getvalue()[:-40])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pngs_of_16_bits_keep_the_upper_8(channels):
    wide = np.random.default_rng(0).integers(0, 2**16, (9, 7, channels), dtype=np.uint16)
    pixels = Image(cv2.imencode(".png", wide)[1].tobytes()).whole()
    assert np.array_equal(pixels, np.broadcast_to(wide[..., 2::-1] >> 8, (9, 7, 3)))


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (3, 2), (17, 9)])
def test_tiny_images_are_enlarged(size):
    content = encode(picture(*size))
    assert decode_box(content, CropBox(0, 0, *size), 32, 32).shape == (32, 32, 3)
    assert centre_crop(Image(content).whole(), 32, 32).shape == (32, 32, 3)


PICTURE = picture(120, 90)
ORIGINALS = [
    encode(PICTURE),
    encode(PICTURE, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    encode(PICTURE, ".png"),
    encode(PICTURE[..., 0]),
    with_exif(encode(PICTURE), 8),
]


@hypothesis.settings(max_examples=500)
@hypothesis.given(st.sampled_from(ORIGINALS).flatmap(damaged))
def test_a_damaged_file_is_decoded_or_corrupt(content):
    """Nothing else comes of it, and nothing hangs."""
    with contextlib.suppress(CorruptImageError):
        height, width = Image(content).size
        if height * width < 10**7:  # that few bytes may claim any number
            for rows in (height, -(-height // 2)):
                decode_box(content, CropBox(0, 0, rows, width), 16, 16)
            Image(content).whole()


def test_a_truncated_jpeg_is_corrupt_where_its_window_is_and_where_it_is_not():
    content = encode(picture(200, 200))
    for share in (0.3, 0.6, 0.9):
        with pytest.raises(CorruptImageError):
            cut = content[: int(share * len(content))]
            decode_box(cut, CropBox(100, 0, 100, 100), 50, 50)


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_shown_upright(orientation, progressive):
    """As OpenCV turns them."""
    plain = encode(picture(40, 90), ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    content = with_exif(plain, orientation)
    expected = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert Image(content).size == expected.shape[:2]
    out = decode_box(content, CropBox(0, 0, *expected.shape[:2]), *expected.shape[:2])
    assert np.abs(out.astype(int) - expected).max() <= 3


def test_exif_that_is_none_and_a_second_one_turn_nothing():
    plain = encode(picture(40, 300))
    for content in (with_exif(plain, 6, magic=0), with_exif(with_exif(plain, 6), 1)):
        assert Image(content).size == (40, 300)
        out = decode_box(content, CropBox(0, 0, 40, 300), 40, 300)
        assert np.array_equal(out, decode_box(plain, CropBox(0, 0, 40, 300), 40, 300))


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("orientation", [1, 6])
def test_what_follows_the_end_of_an_image_is_not_corrupt(orientation, progressive):
    """A film behind a photograph; a thumbnail's end in a truncated one is no end."""
    plain = encode(picture(64, 64), ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    content = with_exif(plain, orientation) + bytes(range(256)) * 100
    decode_box(content, CropBox(0, 0, 64, 64), 32, 32)
    assert shrink(content, 32, 95)[:2] == b"\xff\xd8"
    cut = with_exif(plain[:-200], orientation)
    cut = cut[:2] + b"\xff\xe2\x00\x06\xff\xd9\xff\xd9" + cut[2:]
    with pytest.raises(CorruptImageError):
        decode_box(cut, CropBox(0, 0, 64, 64), 64, 64)


@pytest.mark.parametrize("progressive", [0, 1])
def test_a_copy_does_not_hide_what_libjpeg_warns_of(progressive):
    noise = np.random.default_rng(0).integers(0, 256, (120, 120, 3), dtype=np.uint8)
    content = bytearray(encode(noise, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive))
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(40)
    assert shrink(bytes(content), 64, 95) == content
    with pytest.raises(CorruptImageError):
        shrink(bytes(content[:middle]), 64, 95)


@pytest.mark.parametrize("kind", WARNED)
@pytest.mark.parametrize("orientation", [1, 6])
def test_what_libjpeg_only_warns_of_is_decoded_and_told(kind, orientation):
    """The same pixels, at the size that a window needs; a file that is cut is corrupt."""
    plain = encode(picture(200, 160), ".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 4)
    content, sound = (with_exif(of, orientation) for of in (WARNED[kind](plain), plain))
    image = Image(content)
    assert image.size == Image(sound).size
    exact = kind != "a restart is missing"
    assert np.array_equal(image.whole(), Image(sound).whole()) or not exact
    assert image.warning
    window = Image(content)
    out = np.empty((24, 24, 3), np.uint8)
    window.decode_box(CropBox(0, 0, 100, 100), out)
    assert window.warning == image.warning
    assert psnr_db(out, decode_box(sound, CropBox(0, 0, 100, 100), 24, 24)) > 20 * exact
    with pytest.raises(CorruptImageError, match="truncated"):
        Image(content[:-300]).whole()
    Image(sound).decode_box(CropBox(0, 0, 100, 100), out)
    assert not Image(sound).warning


@pytest.mark.parametrize("factors", [(0x31, 0x11, 0x11), (0x22, 0x21, 0x11)])
def test_unusual_subsamplings_are_decoded_or_corrupt(factors):
    """simplejpeg refuses them; Pillow may know more."""
    content = bytearray(encode(picture(96, 96)))
    frame = content.index(b"\xff\xc0")
    for component, factor in enumerate(factors):
        content[frame + 11 + 3 * component] = factor
    try:
        decode_box(bytes(content), CropBox(0, 0, 90, 90), 32, 32)
    except CorruptImageError as error:
        assert "subsampling" not in str(error)


def test_a_png_that_is_cut_or_changed_is_corrupt():
    """One bit of its pixels, and a part that claims 2 GiB."""
    content = encode(picture(20, 20), ".png")
    assert Image(content + b"more").size == (20, 20)
    flipped = bytearray(content)
    flipped[len(content) - 40] ^= 1
    long = content[:33] + b"\x7f\xff\xff\xff"
    for broken in (content[:-20], bytes(flipped), long + b"tEXt", long + b"IDAT" + bytes(99)):
        with pytest.raises(CorruptImageError):
            Image(broken)
