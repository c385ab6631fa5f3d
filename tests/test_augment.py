"""Augmentation: what it does to pixels, and that only the example decides it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.data.augment import crop_and_flip, example_keys, normalize


@pytest.fixture
def images():
    generator = np.random.default_rng(0)
    return jnp.asarray(generator.integers(0, 256, (64, 8, 8, 3)), jnp.uint8)


def varied(images, indices, *, seed=0, epoch=0, padding=2, fill="reflect", flip=True):
    keys = example_keys(jnp.uint32(seed), jnp.int32(epoch), jnp.asarray(indices, jnp.int32))
    return np.asarray(crop_and_flip(keys, images, padding=padding, fill=fill, flip=flip))


def test_every_result_is_a_crop_of_the_padded_image_perhaps_mirrored(images):
    out = varied(images, range(64))
    seen = set()
    for image, result in zip(np.asarray(images), out, strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        matches = [
            (top, left, mirrored)
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
            if np.array_equal(
                padded[top : top + 8, left : left + 8][:, :: -1 if mirrored else 1], result
            )
        ]
        assert matches
        seen.add(matches[0])
    # 64 draws out of 50 possible outcomes.
    assert len(seen) > 25
    assert 16 < sum(mirrored for _, _, mirrored in seen) * 64 / len(seen) < 48


def test_the_example_decides_not_its_place_in_the_batch(images):
    order = np.random.default_rng(1).permutation(64)
    straight = varied(images, range(64))
    shuffled = varied(images[order], order)
    assert np.array_equal(straight[order], shuffled)


def test_epochs_and_seeds_vary_it(images):
    base = varied(images, range(64))
    assert not np.array_equal(base, varied(images, range(64), epoch=1))
    assert not np.array_equal(base, varied(images, range(64), seed=1))


def test_black_fill_is_black(images):
    out = varied(images + 1, range(64), fill="black", flip=False)
    assert (out == 0).any()
    assert (varied(jnp.maximum(images, 1), range(64), fill="reflect", flip=False) > 0).all()


def test_the_draws_do_not_depend_on_the_precision(images):
    narrow = varied(images, range(64))
    with jax.enable_x64(True):
        wide = varied(images, range(64))
    assert np.array_equal(narrow, wide)


def test_normalized_pixels_have_mean_0_and_deviation_1(images):
    pixels = np.asarray(images, np.float64)
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    out = normalize(images, jnp.float32(mean), jnp.float32(std), jnp.bfloat16)
    assert out.dtype == jnp.bfloat16
    out = np.asarray(normalize(images, jnp.float32(mean), jnp.float32(std), jnp.float32))
    assert out.mean((0, 1, 2)) == pytest.approx(np.zeros(3), abs=1e-5)
    assert out.std((0, 1, 2)) == pytest.approx(np.ones(3), abs=1e-5)
