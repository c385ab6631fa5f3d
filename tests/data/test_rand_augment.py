"""RandAugment's operations against PIL's; what is drawn, and for whom."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from jaxbench.data.augment import example_keys
from jaxbench.data.rand_augment import OPERATIONS, operate, rand_augment

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
def test_pixels_are_those_of_pil(name, by_pil):
    for image in (NOISY, DULL):
        expected = np.asarray(by_pil(Image.fromarray(image)), np.int32)
        difference = np.abs(made(name, image).astype(np.int32) - expected)
        # PIL rounds its smoothed and its grey image in other ways, by one level, times 0.9.
        assert difference.max() <= 1 and np.mean(difference > 0) < 0.6
        assert name == "solarize" or (expected != image).any()


def test_batch_layout():
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


def test_cutout_and_solarize_add():
    image = np.full((224, 224, 3), 7, np.uint8)
    cut = made("cutout", image, place=(0.0, 0.5)) == 128
    assert cut[:40, 72:152].all() and cut.sum() == 40 * 80 * 3
    assert set(np.unique(made("solarize_add", image))) == {117}
    assert (made("solarize_add", image + 121) == 128).all()
    assert (made("solarize", image, level=0.0) == 248).all()


def test_images_are_drawn_for_by_their_own_key():
    images = jnp.asarray(RANDOM.integers(0, 255, (32, 8, 8, 3)), jnp.uint8)
    keys = example_keys(jnp.uint32(0), jnp.int32(0), jnp.arange(32, dtype=jnp.int32))
    augment = jax.jit(functools.partial(rand_augment, num_operations=2, magnitude=10))
    out = np.asarray(augment(keys, images))
    turned = np.asarray(augment(keys[::-1], images[::-1]))[::-1]
    np.testing.assert_array_equal(out, turned)
    changed = (out != np.asarray(images)).any((1, 2, 3))
    assert 20 < changed.sum() <= 32
