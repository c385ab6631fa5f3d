"""Augmentation: what it does to pixels, and that only the example decides it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from jaxbench.batch_layout import BatchLayout
from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.augment import (
    color_jitter,
    crop_and_flip,
    dropout_keys,
    example_keys,
    example_windows,
    mixup,
    normalize,
    per_image_standardization,
)
from jaxbench.data.rand_augment import OPERATIONS, operate, rand_augment
from tests.conftest import refusal

pytestmark = pytest.mark.device


@pytest.fixture
def images():
    generator = np.random.default_rng(0)
    return jnp.asarray(generator.integers(0, 256, (64, 8, 8, 3)), jnp.uint8)


def keys_of(indices, seed=0, epoch=0):
    return example_keys(jnp.uint32(seed), jnp.int32(epoch), jnp.asarray(indices, jnp.int32))


@jax.jit
def _cropped(images, indices, seed, epoch):
    data = DataConfig(crop_padding=2, padding_mode="reflect", flip=True)
    keys_B = example_keys(seed, epoch, indices)
    return crop_and_flip(example_windows(keys_B, seed, epoch, indices, data), images, data)


def cropped(images, indices):
    return np.asarray(_cropped(images, np.asarray(indices, np.int32), np.uint32(0), np.int32(0)))


def test_every_result_is_a_crop_of_the_padded_image_perhaps_flipped(images):
    out = cropped(images, range(64))
    seen = set()
    for image, result in zip(np.asarray(images), out, strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        matches = [
            (top, left, flipped)
            for top in range(5)
            for left in range(5)
            for flipped in (False, True)
            if np.array_equal(
                padded[top : top + 8, left : left + 8][:, :: -1 if flipped else 1], result
            )
        ]
        assert matches
        seen.add(matches[0])
    # 64 draws out of 50 possible outcomes.
    assert len(seen) > 25
    assert 16 < sum(flipped for _, _, flipped in seen) * 64 / len(seen) < 48


def test_alternating_flips_each_image_in_every_other_epoch():
    indices = jnp.arange(64, dtype=jnp.int32)

    def flipped(epoch, seed=0, order=indices, flip_order="alternating"):
        keys_B = keys_of(order, seed, epoch)
        data = DataConfig(crop_padding=2, flip=True, flip_order=flip_order)
        windows = example_windows(keys_B, jnp.uint32(seed), jnp.int32(epoch), order, data)
        return np.asarray(windows.flipped_B)

    first = flipped(0)
    assert np.array_equal(first, flipped(0, flip_order="random")) and 16 < first.sum() < 48
    for epoch in range(1, 5):
        assert np.array_equal(flipped(epoch), first ^ (epoch % 2 == 1))
        assert not np.array_equal(flipped(epoch), flipped(epoch, flip_order="random"))
    assert np.array_equal(flipped(3, order=indices[::-1]), flipped(3)[::-1])
    assert not np.array_equal(flipped(0, seed=1), first)


def test_the_draws_do_not_depend_on_the_precision(images):
    narrow = cropped(images, range(64))
    with jax.enable_x64(True):
        wide = cropped(images, range(64))
    assert np.array_equal(narrow, wide)


def test_brightness_and_contrast_are_drawn_from_their_ranges():
    """A picture in the middle greys, so that nothing is cut off at 0 or 255."""
    pixels = np.linspace(118, 138, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
    images = jnp.asarray(np.tile(pixels, (200, 1, 1, 1)), jnp.uint8)
    keys = keys_of(range(400))

    def moments(out):
        out = np.asarray(out, np.float64)
        # By channel, the deviation of each channel about its own mean.
        return out.mean((1, 2)), out.std((1, 2))

    mean, std = moments(images)
    how = {"dtype": jnp.float32}
    shifted, same = moments(color_jitter(keys, images, brightness=30, contrast=(1, 1), **how))
    shift = (shifted - mean)[:, 0]
    assert np.abs(same - std).max() < 1e-3
    assert -30 <= shift.min() < -25 and 25 < shift.max() <= 30 and abs(shift.mean()) < 3
    kept, stretched = moments(color_jitter(keys, images, brightness=0, contrast=(0.5, 1.5), **how))
    factor = (stretched / std)[:, 0]
    assert np.abs(kept - mean).max() < 1e-3
    assert 0.5 <= factor.min() < 0.55 and 1.45 < factor.max() <= 1.501
    # Shift and factor are drawn apart from each other.
    assert abs(np.corrcoef(shift, factor)[0, 1]) < 0.2
    assert color_jitter(keys, images, brightness=0, contrast=(1, 1), **how) is images
    far = np.asarray(color_jitter(keys, images, brightness=200, contrast=(0, 5), **how))
    assert far.min() == 0 and far.max() == 255


def test_standardized_images_have_mean_0_and_deviation_1_each(images):
    out = np.asarray(per_image_standardization(images, jnp.float32, jnp.float32))
    assert out.mean((1, 2, 3)) == pytest.approx(np.zeros(64), abs=1e-5)
    assert out.std((1, 2, 3)) == pytest.approx(np.ones(64), abs=1e-5)
    for half in (jnp.bfloat16, jnp.float16):
        flat = per_image_standardization(jnp.full((1, 8, 8, 3), 9, jnp.uint8), jnp.float32, half)
        assert flat.dtype == half and not np.asarray(flat, np.float32).any()
        assert normalize(images, jnp.float32(0), jnp.float32(1), half).dtype == half


def test_every_use_of_an_example_has_draws_of_its_own():
    """Crop, flip and dropout once shared keys: dropout of layer 0 went with the crop."""
    keys = keys_of(range(4))
    used = {
        tuple(np.asarray(jax.random.key_data(jax.random.fold_in(key, use))).tolist())
        for key in keys
        for use in range(4)
    }
    for key in dropout_keys(keys):
        for layer in range(4):
            data = jax.random.key_data(jax.random.fold_in(key, layer))
            assert tuple(np.asarray(data).tolist()) not in used


def test_mixup_mixes_neighbours_by_their_own_shares():
    images = np.random.default_rng(0).integers(0, 256, (6, 2, 2, 3)).astype(np.uint8)
    labels = jnp.arange(6, dtype=jnp.int32)
    mixed, mixture = mixup(keys_of(range(6)), images, labels, 0.2, jnp.float32)
    share = np.asarray(mixture.weight_B)[:, None, None, None]
    other = images[[1, 0, 3, 2, 5, 4]]
    np.testing.assert_allclose(mixed, share * images + (1 - share) * other, rtol=1e-5)
    assert mixture.other_labels_B.tolist() == [1, 0, 3, 2, 5, 4]
    assert len(set(share.ravel().tolist())) == 6
    # A device that has only the last four of them mixes the same.
    part, _ = mixup(keys_of(range(2, 6)), images[2:], labels[2:], 0.2, jnp.float32)
    np.testing.assert_array_equal(part, mixed[2:])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_mixups_shares_are_the_larger_part_of_a_beta_draw(alpha):
    images, labels = jnp.zeros((20_000, 1, 1, 1), jnp.uint8), jnp.zeros(20_000, jnp.int32)
    _, mixture = mixup(keys_of(range(20_000)), images, labels, alpha, jnp.float32)
    drawn = np.random.default_rng(0).beta(alpha, alpha, 20_000)
    expected = np.sort(np.maximum(drawn, 1 - drawn))
    shares = np.sort(np.asarray(mixture.weight_B))
    assert shares[0] >= 0.5 and shares[-1] <= 1
    assert np.abs(shares - expected).max() < 0.02


def test_pairs_of_mixup_stay_on_one_device():
    config = registry.load("vit_cifar10:tiny")
    config.data.mixup, config.batch_size = 0.2, 36
    config.gradient_accumulation_steps = 3
    assert BatchLayout.create(config, 6).batch_per_device == 6
    told = "in 3 parts each in pairs, which data.mixup mixes; the nearest that do: 24 and 48"
    refusal(BatchLayout.create, config, 4, told=told)


@pytest.mark.parametrize(
    ("experiment", "field", "value", "told"),
    [
        ("unet256", "rand_augment", (2, 10), "data.rand_augment=(2, 10) with task='segm"),
        ("unet256", "mixup", 0.2, "data.mixup=0.2 with task='segmentation'"),
        ("quickstart", "rand_augment", (2, 10), "for 3 channels, not 1"),
        ("cnn10", "rand_augment", (2,), "must be (operations,magnitude)"),
        ("cnn10", "rand_augment", (1.5, 10), "must be (operations,magnitude)"),
        ("cnn10", "rand_augment", (2, 11), "within [0, 10]"),
    ],
)
def test_augmentation_that_cannot_be_is_refused(experiment, field, value, told):
    config = registry.load(experiment)
    setattr(config.data, field, value)
    refusal(config.validate, told=told)


RANDOM = np.random.default_rng(0)
# Smooth pictures with some noise; the second one's channels do not reach 0 or 255.
SLOPE = np.add.outer(np.arange(40), np.arange(36))[..., None] * np.array([3.0, 2.0, 1.0])
NOISY = np.clip(SLOPE + RANDOM.normal(0, 20, SLOPE.shape), 0, 255).astype(np.uint8)
DULL = (60 + NOISY * 0.4).astype(np.uint8)


@functools.cache
def operation(level):
    return jax.jit(functools.partial(operate, level=level))


def made(name, image, level=1.0, sign=1.0, place=(0.5, 0.5)):
    which, place = jnp.int32(OPERATIONS.index(name)), jnp.array(place, jnp.float32)
    out = operation(level)(jnp.asarray(image), which, jnp.float32(sign), place)
    assert out.dtype == jnp.uint8
    return np.asarray(out)


def enhanced(kind):
    return lambda image: getattr(ImageEnhance, kind)(image).enhance(1.9)


@pytest.mark.parametrize(
    ("name", "by_pil"),
    [
        ("autocontrast", ImageOps.autocontrast),
        ("equalize", ImageOps.equalize),
        ("invert", ImageOps.invert),
        ("posterize", lambda image: ImageOps.posterize(image, 4)),
        ("solarize", lambda image: ImageOps.solarize(image, 256)),
        ("color", enhanced("Color")),
        ("contrast", enhanced("Contrast")),
        ("brightness", enhanced("Brightness")),
        ("sharpness", enhanced("Sharpness")),
    ],
)
def test_rand_augments_pixels_are_those_of_pil(name, by_pil):
    for image in (NOISY, DULL):
        expected = np.asarray(by_pil(Image.fromarray(image)), np.int32)
        difference = np.abs(made(name, image).astype(np.int32) - expected)
        # PIL rounds its smoothed and its grey image in other ways, by one level, times 0.9.
        assert difference.max() <= 1 and np.mean(difference > 0) < 0.6
        assert name == "solarize" or (expected != image).any()


def test_rand_augment_moves_pixels_as_pil():
    ones = np.full((224, 224, 3), 7, np.uint8)
    ones[100, 60] = 200

    def place_of(out):
        return [int(place) for place in np.argwhere(out[..., 0] == 200)[0]]

    assert place_of(made("translate_x", ones, sign=-1)) == [100, 160]
    assert place_of(made("translate_y", ones)) == [0, 60]
    assert place_of(made("translate_y", ones, level=0.5)) == [50, 60]
    assert place_of(made("shear_x", ones)) == [100, 30]
    assert place_of(made("shear_y", ones, sign=-1)) == [118, 60]
    # 30 degrees about the middle of the image.
    y, x = np.array([100, 60]) - 111.5
    cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
    near = np.array([-sin * x + cos * y, cos * x + sin * y]) + 111.5
    assert np.abs(np.array(place_of(made("rotate", ones))) - near).max() <= 1
    for name in ("translate_x", "shear_y", "rotate"):
        out = made(name, np.full_like(ones, 7))
        assert set(np.unique(out)) == {7, 128}


def test_rand_augments_cutout_and_solarize_add():
    image = np.full((224, 224, 3), 7, np.uint8)
    cut = made("cutout", image, place=(0.0, 0.5)) == 128
    assert cut[:40, 72:152].all() and cut.sum() == 40 * 80 * 3
    assert set(np.unique(made("solarize_add", image))) == {117}
    assert (made("solarize_add", image + 121) == 128).all()
    assert (made("solarize", image, level=0.0) == 248).all()


def test_rand_augment_draws_for_images_by_their_own_key():
    images = jnp.asarray(RANDOM.integers(0, 255, (32, 8, 8, 3)), jnp.uint8)
    keys = example_keys(jnp.uint32(0), jnp.int32(0), jnp.arange(32, dtype=jnp.int32))
    augment = jax.jit(functools.partial(rand_augment, num_operations=2, magnitude=10))
    out = np.asarray(augment(keys, images))
    turned = np.asarray(augment(keys[::-1], images[::-1]))[::-1]
    np.testing.assert_array_equal(out, turned)
    changed = (out != np.asarray(images)).any((1, 2, 3))
    assert 20 < changed.sum() <= 32
