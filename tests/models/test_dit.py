"""DiT: its schedules of noise, what it draws, what modulates it, and refusals.

tests/integration/test_published_networks.py compares it with diffusers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.models.dit import DitConfig, draw
from tests.conftest import config_of, program_of, records, refusal


def test_schedules_leave_as_much_of_the_latents_as_published():
    linear, cosine = (
        DitConfig(noise_schedule=name).signal_shares() for name in ("linear", "cosine")
    )
    # Ho et al.'s ends, and half of the variance where Nichol and Dhariwal plot it.
    assert (linear[0], linear[-1]) == pytest.approx((0.9999, 4.036e-5), rel=1e-3)
    assert cosine[0] > 0.9999 and 0.45 < cosine[500] < 0.5 and cosine[-1] < 1e-6
    for shares in (linear, cosine, DitConfig(noise_levels=2).signal_shares()):
        assert (np.diff(shares) < 0).all() and (shares > 0).all()


@pytest.mark.device
def test_draws_are_an_examples_own_and_have_the_stated_distributions():
    config = DitConfig(noise_levels=10, class_dropout=0.25)
    keys_B = jax.random.split(jax.random.key(0), 4000)
    draws = jax.device_get(draw(keys_B, (2, 2, 4), config))
    some = jax.device_get(draw(keys_B[jnp.array([7, 3])], (2, 2, 4), config))
    for all_of, part in zip(draws, some, strict=True):
        np.testing.assert_array_equal(part, all_of[[7, 3]])
    assert np.bincount(draws.levels_B, minlength=10) == pytest.approx(400, rel=0.2)
    assert draws.dropped_B.mean() == pytest.approx(0.25, abs=0.03)
    assert draws.noise_BxHxWxC.std() == pytest.approx(1, abs=0.02)
    # Two draws of one key are unlike each other.
    assert abs(np.corrcoef(draws.levels_B, draws.noise_BxHxWxC[:, 0, 0, 0])[0, 1]) < 0.06


@pytest.mark.device
def test_a_new_network_predicts_no_noise_and_a_trained_one_looks_at_level_and_class():
    program = program_of("dit:tiny")
    params = program.initial_state().params
    network = program.network.module
    latents = np.random.default_rng(0).normal(size=(3, 8, 8, 4)).astype("f")
    keys_B, labels_B = jax.random.split(jax.random.key(1), 3), jnp.array([0, 1, 2])

    def errors(params, labels_B, train=False):
        rows = {"keys_B": keys_B, "labels_B": labels_B}
        return network.apply({"params": params, "batch_stats": {}}, latents, train=train, **rows)[0]

    draws = draw(keys_B, (8, 8, 4), program.network.config.model)
    np.testing.assert_allclose(errors(params, labels_B), -draws.noise_BxHxWxC)
    random = np.random.default_rng(2)
    params = jax.tree.map(lambda x: x + random.normal(0, 0.3, x.shape).astype("f"), params)
    first, second = (np.asarray(errors(params, jnp.full(3, label))) for label in (0, 1))
    assert (abs(first - second).max(axis=(1, 2, 3)) > 1e-3).all()
    # With all classes dropped, in training alone, all are alike.
    program.network.config.model.class_dropout = 1.0
    evaluated, trained = (np.asarray(errors(params, labels_B, train)) for train in (False, True))
    assert (evaluated != trained).any()
    np.testing.assert_array_equal(trained, errors(params, jnp.full(3, 5), train=True))


def test_evaluations_draw_the_same_noise_on_any_number_of_devices(train):
    """Its label does not change between two evaluations, and neither does the noise."""
    fields = {"optimizer__learning_rate": 0.0, "precision": "fp64", "eval_batch_size": 24}
    losses = set()
    for devices in (1, 4):
        result = train("dit:tiny", num_devices=devices, epochs=2, **fields)
        losses |= {round(one["eval_loss"], 9) for one in records(result.run_dir.path, "epoch")}
    assert len(losses) == 1
    # A new network predicts none, and noise has a variance of 1.
    assert losses.pop() == pytest.approx(1, abs=0.05)


def test_a_dit_that_cannot_be_is_refused():
    refusal(DitConfig(width=390, heads=6).validate, told="model.width=390: no multiple of 4")
    of_images = program_of("dit:tiny", data__image_shape=(32, 32, 3))
    refusal(of_images.check, told="(32, 32, 3): Dit is for latents of 4 channels")
    odd = program_of("dit:tiny", data__image_shape=(9, 8, 4))
    refusal(odd.check, told="model.patch=2: must divide 9 and 8")
    config = config_of("dit:tiny", label_smoothing=0.1)
    refusal(config.validate, told="label_smoothing=0.1 with task='denoising'")
    other = program_of("wrn28_10:tiny", task="denoising")
    refusal(other.check, told="__call__ takes no `labels_B`, which is for networks that remove")
    told = "Dit.__call__ takes `labels_B`, which is for networks that remove noise"
    refusal(program_of("dit:tiny", task="classification").check, told=told)
