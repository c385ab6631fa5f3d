"""Images brought to the network's size: the same in both feeds, and what torchvision makes."""

import io
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from jaxbench.data.augment import network_inputs
from jaxbench.data.feeds.feed import UNPACK_BATCH
from jaxbench.data.images.decode import CorruptImageError, Image
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import BadInput
from jaxbench.precision import get_precision
from tests.data.encoded_images import config_of, feed_of
from tests.tfds_files import image_feature, label_feature, write_tfds

# (height, width): larger, smaller, longer, exactly SHAPE, and one side of it.
SIZES = [(375, 500), (500, 333), (91, 40), (30, 37), (40, 200), (64, 48), (64, 300), (73, 55)]
SHAPE = (64, 48, 3)


def photograph(height, width, seed):
    """Shades, edges and grain, as photographs have them."""
    generator = np.random.default_rng(seed)
    coarse = PIL.Image.fromarray(generator.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    image = np.array(coarse.resize((width, height), PIL.Image.Resampling.BICUBIC)).astype(int)
    image[height // 3 : height // 2, width // 4 : width // 2] += 60
    image += generator.integers(-12, 13, image.shape)
    return PIL.Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """JPEG, PNG, progressive JPEG and JPEG turned by EXIF of each size; no test may change them."""
    root, turned, jpeg = tmp_path_factory.mktemp("photographs"), PIL.Image.Exif(), {"quality": 92}
    turned[0x0112] = 6
    kinds = [(".jpg", jpeg), (".png", {}), (".jpg", jpeg | {"progressive": True})]
    kinds += [(".jpg", jpeg | {"exif": turned.tobytes()})]
    for split in ("train", "val"):
        for number in range(4 * len(SIZES)):
            suffix, options = kinds[number % 4]
            path = root / split / ("ape", "bee")[number % 2] / f"{number:02}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            photograph(*SIZES[number // 4], seed=number).save(path, **options)
    return root


def shown(config):
    """Returns the feed, its evaluation's examples and its first training batch's, as the step."""
    feed = feed_of(config)
    examples = []
    for data, batches in (
        (feed.eval_data, feed.eval_batches()),
        (feed.train_data, feed.train_batches(0, 1)),
    ):
        batch = jax.tree.map(lambda leaf: leaf[0], next(iter(batches)))
        examples.append(UNPACK_BATCH[feed.name](data, batch, jnp.int32(0)))
    return feed, *examples


def torchvision(path, height, width):
    """Resize(256 / 224 of the side) and CenterCrop, upright, by Pillow."""
    image = PIL.ImageOps.exif_transpose(PIL.Image.open(path)).convert("RGB")
    if image.size == (width, height):
        return np.array(image)
    need_x, need_y = round(width * 256 / 224), round(height * 256 / 224)
    if image.width / need_x <= image.height / need_y:
        new = (need_x, int(need_x * image.height / image.width))
    else:
        new = (int(need_y * image.width / image.height), need_y)
    image = image.resize(new, PIL.Image.Resampling.BILINEAR)
    left, top = int(round((new[0] - width) / 2.0)), int(round((new[1] - height) / 2.0))
    return np.array(image)[top : top + height, left : left + width]


def folder_config(root, feed, shape=SHAPE, **fields):
    count = 4 * len(SIZES)
    fields = {"random_resized_crop": False, "flip": False, "batch_size": count} | fields
    fields = {"standardization": "dataset"} | fields
    return config_of(root, feed=feed, image_shape=shape, eval_batch_size=count, **fields)


@pytest.mark.parametrize("shape", [SHAPE, (56, 56, 3)])
def test_both_feeds_show_the_same_images_and_they_are_torchvisions(photographs, shape):
    feeds = [shown(folder_config(photographs, feed, shape)) for feed in ("resident", "stream")]
    (resident, *examples), (stream, *others) = feeds
    precision = get_precision("fp32")
    for one, other in zip(examples, others, strict=True):
        assert np.array_equal(one.indices_B, other.indices_B)
        assert np.array_equal(one.labels_Bx, other.labels_Bx)
        assert np.array_equal(one.inputs_Bx, other.inputs_Bx)
    config = folder_config(photographs, "stream", shape)
    pixels = [
        np.asarray(network_inputs(of.inputs_Bx, feed.eval_data, config.data, precision))
        for feed, of in ((resident, examples[0]), (stream, others[0]))
    ]
    assert np.array_equal(*pixels)
    by_hand = np.asarray(examples[0].inputs_Bx) / 255.0
    by_hand = (by_hand - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    assert np.allclose(pixels[0], by_hand, atol=1e-5)
    paths = load_dataset(config).eval.source.files
    for index, image in zip(examples[0].indices_B, examples[0].inputs_Bx, strict=True):
        path = paths[int(index)]
        assert np.array_equal(image, torchvision(path, *shape[:2])), path


def test_tfds_images_of_the_right_size_are_the_same_decoded_early_or_on_the_fly(tmp_path):
    generator = np.random.default_rng(0)
    examples = [
        # Channels of their own ranges.
        {"image": generator.integers(0, (90, 180, 256), SHAPE, dtype=np.uint8), "label": n % 2}
        for n in range(8)
    ]
    splits = {"train": examples, "val": examples}
    write_tfds(tmp_path, "one_size", {"image": image_feature(3), "label": label_feature(2)}, splits)
    fields = {"source": "tfds", "name": "one_size", "batch_size": 8}
    (whole, one, _), (encoded, other, _) = (
        shown(folder_config(tmp_path, "stream", random_resized_crop=crop, **fields))
        for crop in (False, True)
    )
    assert np.array_equal(one.inputs_Bx[:8], other.inputs_Bx[:8])
    # What docs/howto/data.md says of the statistics.
    pixels = np.stack([example["image"] for example in examples])
    assert np.allclose(whole.eval_data["mean"], pixels.mean((0, 1, 2)))
    assert np.allclose(whole.eval_data["std"], pixels.std((0, 1, 2)))
    assert np.allclose(encoded.eval_data["mean"], (123.675, 116.28, 103.53))


def claims(size, kind):
    """A small file whose header claims size x size pixels."""
    buffer = io.BytesIO()
    photograph(40, 40, seed=0).save(buffer, kind)
    content = bytearray(buffer.getvalue())
    if kind == "JPEG":
        at = content.index(b"\xff\xc0") + 5
        content[at : at + 4] = 2 * size.to_bytes(2, "big")
    else:
        content[16:24] = 2 * size.to_bytes(4, "big")
        content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def one_a_class(root):
    """Yield the path of an image to write for each split and class."""
    for folder in ("train/ape", "train/bee", "val/ape", "val/bee"):
        (root / folder).mkdir(parents=True)
        yield root / folder / "0.png"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("JPEG", "65500x65500 pixels, the limit is 134,217,728"),
        ("PNG", r"a corrupt .*: Image size \(4290250000 pixels\) exceeds limit"),
    ],
)
def test_what_a_header_claims_is_checked_before_anything_is_decoded(
    kind, reason, tmp_path, monkeypatch
):
    import PIL.ImageFile
    import simplejpeg

    def decoded(*unused, **more):
        raise AssertionError("was to be refused by its header")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", decoded)
    monkeypatch.setattr(PIL.ImageFile.ImageFile, "load", decoded)
    content = claims(65_500, kind)
    with pytest.raises(CorruptImageError, match=f"^{reason}"):
        Image(content)
    for path in one_a_class(tmp_path):
        path.write_bytes(content)
    with pytest.raises(BadInput, match=f"0.png: cannot be decoded as an image: {reason}"):
        load_dataset(folder_config(tmp_path, "resident", batch_size=2))


def test_an_image_too_long_to_be_resized_is_corrupt(tmp_path):
    """1 x 30,000 pixels become 256 x 7,680,000."""
    for path in one_a_class(tmp_path):
        PIL.Image.new("RGB", (30_000, 1)).save(path)
    with pytest.raises(BadInput, match="as an image: 256x7680000 pixels, the limit is"):
        load_dataset(folder_config(tmp_path, "resident", (224, 224, 3), batch_size=2))
