"""The networks have the sizes that were published."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cards.figures import STANDARD
from jaxbench.models.layers import dropout
from jaxbench.models.resnet import ResNetConfig
from jaxbench.models.unet import UNetConfig
from jaxbench.models.vit import ViTConfig
from jaxbench.models.wide_resnet import WideResNetConfig
from jaxbench.precision import get_precision
from tests.conftest import program_of, refusal


def unet(upsampling, shape, **fields):
    model = UNetConfig(upsampling=upsampling, **fields)
    return "unet256", {"data__image_shape": shape, "model": model}


CLASSIC = {"shape": (256, 256, 1), "norm": "none", "width": 64, "levels": 4}
ODD = {"shape": (64, 40, 5), "norm": "batch", "width": 6, "levels": 3}
BASE = {"width": 768, "heads": 12, "pre_logits": False}


@pytest.mark.parametrize(
    ("experiment", "fields", "parameters", "macs"),
    [
        ("wrn28_10", {}, 36_479_194, 5_243_328_768),
        # At width 1 the first group keeps its 16 channels: strides alone ask for a projection.
        ("wrn28_10", {"model": WideResNetConfig(depth=16, width=1)}, 175_066, 26_657_408),
        ("wrn28_10", {"model": WideResNetConfig(depth=40, width=2)}, 2_243_546, 327_599_360),
        ("cnn10", {}, 1_923_914, 266_013_184),
        ("mnist_cnn", {}, 1_199_882, 11_992_448),
        ("vgg_cifar10", {}, 14_982_474, 313_463_808),
        ("resnet50_synthetic", {}, 25_557_032, 4_089_184_256),
        (*unet("resize", **CLASSIC), 31_030_593, 54_534_340_608),
        (*unet("transposed", **CLASSIC), 31_030_593, 48_091_889_664),
        (*unet("resize", **ODD), 68_455, 14_945_280),
        (*unet("transposed", **ODD), 68_455, 13_286_400),
        ("cifar10_speedrun94", {}, 1_971_640, 118_147_360),
        ("vit_s16_synthetic", {}, 22_122_472, 4_574_174_208),
        # Published with a class token and learned positions of 197 tokens, without pre_logits.
        ("vit_s16_synthetic", {"model": ViTConfig(**BASE)}, 86_567_656 - 198 * 768, 17_471_649_792),
        # Of each token, as PaLM counts: those of all products' parameters, and of attention.
        ("gpt124m_synthetic", {}, 124_439_808, 1024 * (123_532_032 + 2 * 12 * 768 * 1024)),
        ("gpt124m_synthetic", {"data__num_classes": 256}, 86_039_040, 106_501_767_168),
    ],
)
def test_sizes_and_arithmetic_are_the_published_ones(experiment, fields, parameters, macs):
    analysis = program_of(experiment, **fields).network.analysis
    assert (analysis.num_parameters, analysis.forward_macs) == (
        parameters,
        macs,
    )
    # Two operations each, and the backward pass twice the forward one; whitening is not trained.
    whitening = 4 * 12 * 24 * 31**2 if "speedrun" in experiment else 0
    assert analysis.training_flops == 6 * macs - whitening
    # A card's network has the arithmetic that is said.
    said = {one.spec: one.flops_per_image for one in STANDARD.networks}
    name = experiment.replace("resnet50_synthetic", "resnet50")
    assert fields or analysis.training_flops == said.get(name, 6 * macs - whitening)


@pytest.mark.device
def test_a_resnet_begins_with_blocks_that_do_nothing():
    model = ResNetConfig(stages=(1, 1), width=4)
    block = program_of("wrn28_10", model=model).initial_state().params["stage1_block1"]
    assert not block["norm3"]["scale"].any() and block["norm2"]["scale"].all()


@pytest.mark.parametrize(
    ("experiment", "image_shape", "num_classes", "told"),
    [
        ("unet256", (256, 256, 3), 3, "2 classes"),
        ("unet256", (24, 256, 3), 2, "both sides of 24x256 must be multiples of 16"),
        ("vgg_cifar10", (16, 16, 3), 10, "no 2x2 pixels are left to pool"),
        ("cifar10_speedrun94", (8, 8, 3), 10, "no 2x2 pixels are left to pool"),
    ],
)
def test_what_a_network_cannot_be_built_for_is_refused(experiment, image_shape, num_classes, told):
    fields = {"data__image_shape": image_shape, "data__num_classes": num_classes}
    refusal(lambda: program_of(experiment, **fields).check(), told=told)


@pytest.mark.parametrize("name", ["cnn10", "mnist_cnn", "vit_cifar10", "gpt_bytes"])
def test_fp64_begins_with_the_parameters_of_fp32(name):
    drawn = {}
    for precision in ("fp32", "fp64"):
        with get_precision(precision).enabled():
            program = program_of(f"{name}:tiny", precision=precision)
            drawn[precision] = jax.device_get(program.initial_state().params)
    assert {leaf.dtype for leaf in jax.tree.leaves(drawn["fp64"])} == {np.dtype(np.float64)}
    jax.tree.map(np.testing.assert_array_equal, drawn["fp32"], drawn["fp64"])


@pytest.mark.device
def test_fp64_drops_what_fp32_drops():
    keys_B, x_Bx = jax.random.split(jax.random.key(0), 4), np.ones((4, 100))
    masks = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            x = jnp.asarray(x_Bx)
            assert x.dtype == (jnp.float64 if wide else jnp.float32)
            masks.append(np.asarray(dropout(x, 0.3, keys_B, layer=2) > 0))
    assert (masks[0] == masks[1]).all() and 0.6 < masks[0].mean() < 0.8
