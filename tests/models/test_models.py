"""The networks have the sizes that were published."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cards.preset import STANDARD
from jaxbench.cli import registry
from jaxbench.errors import BadInput
from jaxbench.models.cnn10 import Cnn10Config
from jaxbench.models.layers import dropout
from jaxbench.models.mnist_cnn import MnistCnnConfig
from jaxbench.models.resnet import ResNetConfig
from jaxbench.models.unet import UNetConfig
from jaxbench.models.wide_resnet import WideResNetConfig
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.precision import get_precision
from jaxbench.train import build_program
from tests.conftest import set_fields


def program_of(model, **data):
    return program_with(
        "wrn28_10", model=model, **{f"data__{name}": value for name, value in data.items()}
    )


def program_with(experiment, **fields):
    config = registry.load(experiment)
    set_fields(config, num_devices=1, **fields)
    return build_program(config, *create_training_mesh(config), steps_per_epoch=1)


def wide_resnet_parameters(depth, width, num_classes=10):
    """Counted by hand from the paper's table: convolutions, batch norms, the dense layer."""
    blocks = (depth - 4) // 6
    count, channels = 3 * 3 * 3 * 16, 16
    for group_channels in (16 * width, 32 * width, 64 * width):
        for _ in range(blocks):
            count += 2 * channels + 2 * group_channels  # two batch norms
            count += 9 * channels * group_channels + 9 * group_channels**2
            if channels != group_channels:
                count += channels * group_channels  # 1x1 projection
            channels = group_channels
    return count + 2 * channels + channels * num_classes + num_classes


@pytest.mark.parametrize(("depth", "width"), [(10, 2), (16, 4), (16, 1), (40, 2), (28, 10)])
def test_wide_resnets_of_any_size(depth, width):
    program = program_of(WideResNetConfig(depth=depth, width=width))
    # At width 1 the first group keeps its 16 channels, and strides alone ask for a projection:
    # they come with a change of channels in groups 2 and 3, so the count holds.
    assert program.num_parameters() == wide_resnet_parameters(depth, width)
    if (depth, width) == (28, 10):
        assert program.num_parameters() == 36_479_194
        assert program.forward_macs / 1e9 == pytest.approx(5.243, abs=0.001)


def test_cnn10_by_hand():
    program = program_of(Cnn10Config())
    convolutions = 3 * 64 + 2 * 64**2, 64 * 128 + 2 * 128**2, 128 * 256 + 2 * 256**2
    norms = 2 * 3 * (64 + 128 + 256)
    assert program.num_parameters() == 9 * sum(convolutions) + norms + 2570 == 1_923_914
    macs = sum(9 * size**2 * each for size, each in zip((32, 16, 8), convolutions, strict=True))
    assert program.forward_macs == macs + 2560


def test_mnist_cnn_has_1199882_parameters():
    program = program_of(MnistCnnConfig(), image_shape=(28, 28, 1))
    assert program.num_parameters() == 1_199_882


def test_resnet_50_has_25557032_parameters_and_4_089_gmac():
    program = program_of(ResNetConfig(), image_shape=(224, 224, 3), num_classes=1000)
    assert program.num_parameters() == 25_557_032
    macs = program.forward_macs
    assert macs / 1e9 == pytest.approx(4.089, abs=0.001)
    # Two operations each, and the backward pass twice the forward one.
    assert program.training_flops == 6 * macs
    assert program.training_flops / 1e9 == pytest.approx(24.54, abs=0.01)
    assert program.training_flops == STANDARD.networks[0].flops_per_image


def unet_parameters(channels, width, levels, norm):
    """Counted by hand: pairs of 3x3 convolutions, 2x2 convolutions up, a 1x1 head."""

    def pair(before, after):
        extra = after if norm == "none" else 2 * after  # a bias, or batch norm's scale and bias
        return 9 * before * after + extra + 9 * after * after + extra

    widths = [width * 2**level for level in range(levels + 1)]
    count, before = 0, channels
    for after in widths:
        count += pair(before, after)
        before = after
    for after in reversed(widths[:-1]):
        count += 4 * before * after + after + pair(2 * after, after)
        before = after
    return count + width + 1


@pytest.mark.parametrize("upsampling", ["resize", "transposed"])
def test_the_classic_unet_has_31_million_parameters(upsampling):
    assert unet_parameters(1, 64, 4, "none") == 31_030_593
    for shape, width, levels, norm in (
        ((256, 256, 1), 64, 4, "none"),
        ((64, 40, 5), 6, 3, "batch"),
    ):
        model = UNetConfig(norm=norm, width=width, levels=levels, upsampling=upsampling)
        program = program_with("unet256", data__image_shape=shape, model=model)
        program.check()
        assert program.num_parameters() == unet_parameters(shape[-1], width, levels, norm)


def test_vgg_16_has_the_paper_s_convolutions():
    program = program_with("vgg_cifar10")
    widths = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum(9 * a * b + b for a, b in zip(widths, widths[1:], strict=False))
    assert convolutions == 14_714_688  # configuration D without its dense layers
    dense = 512 * 512 + 512 + 512 * 10 + 10
    assert program.num_parameters() == convolutions + dense == 14_982_474
    assert not program.abstract_train_state().batch_stats


def test_a_zero_initialised_resnet_begins_with_blocks_that_do_nothing():
    program = program_of(ResNetConfig(stages=(1, 1), width=4))
    params = program.initial_state().params
    assert not params["stage1_block1"]["norm3"]["scale"].any()
    assert params["stage1_block1"]["norm2"]["scale"].all()
    program = program_of(ResNetConfig(stages=(1, 1), width=4, zero_init=False))
    assert program.initial_state().params["stage1_block1"]["norm3"]["scale"].all()


def xla_macs(program):
    """XLA's own count of a forward pass, of one image; it leaves out what multiplies padding."""

    def forward(variables, images_1xHxWxC):
        return program.model.apply(variables, images_1xHxWxC, train=False)[0]

    state = program.abstract_train_state()
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    image = jax.ShapeDtypeStruct((1, *program.config.data.image_shape), jnp.float32)
    return jax.jit(forward).lower(variables, image).cost_analysis()["flops"] / 2


def padded(size):
    """What XLA counts of a 3x3 convolution over size x size pixels: not the border's padding."""
    return (3 * size - 2) ** 2


def test_arithmetic_counts_agree_with_xlas():
    """What it adds are additions of batch norm and the like, 2 % at most."""
    cnn10 = (
        padded(32) * (3 * 64 + 2 * 64**2)
        + padded(16) * (64 * 128 + 2 * 128**2)
        + padded(8) * (128 * 256 + 2 * 256**2)
        + 256 * 10
    )
    assert 1 <= xla_macs(program_of(Cnn10Config())) / cnn10 < 1.02
    # Less padding, at 224 pixels.
    resnet = program_of(ResNetConfig(), image_shape=(224, 224, 3), num_classes=1000)
    assert 0.95 < xla_macs(resnet) / resnet.forward_macs < 1
    mnist = program_of(MnistCnnConfig(), image_shape=(28, 28, 1))  # pads nothing
    assert 1 <= xla_macs(mnist) / mnist.forward_macs < 1.02


def test_initial_parameters_depend_on_the_seed():
    leaves = []
    for seed in (0, 0, 1):
        state = program_with("quickstart:tiny", seed=seed).initial_state()
        leaves.append(jax.device_get(state.params["stem"]["kernel"]))
    assert (leaves[0] == leaves[1]).all()
    assert (leaves[0] != leaves[2]).any()


@pytest.mark.parametrize(
    ("spec", "image_shape", "num_classes", "message"),
    [
        ("unet256", (256, 256, 3), 3, "2 classes"),
        ("unet256", (24, 256, 3), 2, "both sides of 24x256 must be multiples of 16"),
        ("vgg_cifar10", (16, 16, 3), 10, "no 2x2 pixels are left to pool"),
    ],
)
def test_what_a_network_cannot_be_built_for_is_refused(spec, image_shape, num_classes, message):
    config = registry.load(spec)
    types = {"dtype": jnp.float32, "param_dtype": jnp.float32, "norm_axis": None}
    with pytest.raises((BadInput, ValueError), match=message):
        model = config.model.create(num_classes=num_classes, **types)
        images_BxHxWxC = jnp.zeros((1, *image_shape))
        jax.eval_shape(
            lambda images: model.init(jax.random.key(0), images, train=False), images_BxHxWxC
        )


@pytest.mark.parametrize("name", ["cnn10", "mnist_cnn", "vgg_cifar10", "vit_cifar10", "gpt_bytes"])
def test_fp64_begins_with_the_parameters_of_fp32(name):
    drawn = {}
    for precision in ("fp32", "fp64"):
        with get_precision(precision).enabled():
            program = program_with(f"{name}:tiny", precision=precision)
            drawn[precision] = jax.device_get(program.initial_state().params)
    assert {leaf.dtype for leaf in jax.tree.leaves(drawn["fp64"])} == {np.dtype(np.float64)}
    jax.tree.map(np.testing.assert_array_equal, drawn["fp32"], drawn["fp64"])


def test_fp64_drops_what_fp32_drops():
    keys_B, x_Bx = jax.random.split(jax.random.key(0), 4), np.ones((4, 100))
    masks = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            x = jnp.asarray(x_Bx)
            assert x.dtype == (jnp.float64 if wide else jnp.float32)
            masks.append(np.asarray(dropout(x, 0.3, keys_B, layer=2) > 0))
    assert (masks[0] == masks[1]).all() and 0.6 < masks[0].mean() < 0.8
