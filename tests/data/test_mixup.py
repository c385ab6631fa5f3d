"""Mixup: pairs of one batch, shares from a beta distribution, the loss of both labels."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxbench.batch_layout import BatchLayout
from jaxbench.cli import registry
from jaxbench.data.augment import example_keys, mixup
from jaxbench.errors import BadInput
from jaxbench.tasks import Classification


def keys_of(indices):
    return example_keys(jnp.uint32(0), jnp.int32(0), jnp.asarray(indices, jnp.int32))


def test_neighbours_are_mixed_by_their_own_shares():
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
def test_shares_are_the_larger_part_of_a_beta_draw(alpha):
    images, labels = jnp.zeros((20_000, 1, 1, 1), jnp.uint8), jnp.zeros(20_000, jnp.int32)
    _, mixture = mixup(keys_of(range(20_000)), images, labels, alpha, jnp.float32)
    drawn = np.random.default_rng(0).beta(alpha, alpha, 20_000)
    expected = np.sort(np.maximum(drawn, 1 - drawn))
    shares = np.sort(np.asarray(mixture.weight_B))
    assert shares[0] >= 0.5 and shares[-1] <= 1
    assert np.abs(shares - expected).max() < 0.02


def test_the_loss_is_that_of_the_mixed_label():
    random = np.random.default_rng(0)
    logits, task = random.normal(size=(4, 5)), Classification()
    labels, others = np.array([0, 1, 2, 3]), np.array([1, 1, 4, 0])
    share = np.array([1, 0.7, 0.5, 0.9])
    one_hot = np.eye(5)
    target = share[:, None] * one_hot[labels] + (1 - share)[:, None] * one_hot[others]
    expected = optax.softmax_cross_entropy(logits, 0.9 * target + 0.1 / 5)
    both = [task.losses(logits, jnp.asarray(of), 0.1) for of in (labels, others)]
    np.testing.assert_allclose(share * both[0] + (1 - share) * both[1], expected, rtol=1e-5)


def test_pairs_stay_on_one_device():
    config = registry.load("vit_cifar10:tiny")
    config.data.mixup, config.batch_size = 0.2, 36
    config.gradient_accumulation_steps = 3
    assert BatchLayout.create(config, 6).batch_per_device == 6
    with pytest.raises(BadInput) as error:
        BatchLayout.create(config, 4)
    assert str(error.value) == (
        "batch_size=36 does not divide over 4 devices in 3 parts each in pairs, which data.mixup "
        "mixes; the nearest that do: 24 and 48"
    )


@pytest.mark.parametrize(
    ("spec", "field", "value", "message"),
    [
        ("unet256", "rand_augment", (2, 10), "data.rand_augment=\\(2, 10\\) with task='segm"),
        ("unet256", "mixup", 0.2, "data.mixup=0.2 with task='segmentation'"),
        ("quickstart", "rand_augment", (2, 10), "for 3 channels, not 1"),
        ("cnn10", "rand_augment", (2,), "must be \\(operations,magnitude\\)"),
        ("cnn10", "rand_augment", (1.5, 10), "must be \\(operations,magnitude\\)"),
        ("cnn10", "rand_augment", (2, 11), "within \\[0, 10\\]"),
    ],
)
def test_what_makes_no_sense_is_refused(spec, field, value, message):
    config = registry.load(spec)
    setattr(config.data, field, value)
    with pytest.raises(BadInput, match=message):
        config.validate()
