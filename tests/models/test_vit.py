"""The vision transformer: its sizes by hand and as published, positions, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.errors import BadInput
from jaxbench.models.vit import ViTConfig, sincos_positions
from jaxbench.modes.describe import list_layers
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.train import build_program

SMALL = {"patch": 4, "width": 16, "depth": 2, "heads": 2}


def program_of(model, **fields):
    config = registry.load("vit_s16_synthetic")
    config.model, config.num_devices, config.precision = model, 1, "fp32"
    for name, value in fields.items():
        setattr(config, name, value)
    config.validate()
    return build_program(config, *create_training_mesh(config), steps_per_epoch=1)


def parameters(patch, width, depth, pre_logits, classes=1000):
    """Counted by hand from the shapes."""
    count = patch * patch * 3 * width + width
    attention = 4 * (width * width + width)
    mlp = width * 4 * width + 4 * width + 4 * width * width + width
    count += depth * (2 * width + attention + 2 * width + mlp) + 2 * width
    return count + pre_logits * (width * width + width) + width * classes + classes


@pytest.mark.parametrize(
    ("width", "heads", "published", "expected"),
    [(384, 6, 22_050_664, 22_122_472), (768, 12, 86_567_656, 87_006_184)],
)
def test_parameters_are_the_published_ones(width, heads, published, expected):
    """Published with a class token and learned positions of 197 tokens, and without pre_logits."""
    model = ViTConfig(width=width, heads=heads, pre_logits=False)
    assert parameters(16, width, 12, False) == published - width - 197 * width
    assert program_of(model).num_parameters() == published - 198 * width
    assert parameters(16, width, 12, True) == expected
    assert program_of(ViTConfig(width=width, heads=heads)).num_parameters() == expected


def test_arithmetic_counts_have_attention_s_two_products():
    """As in the docstring of jaxbench/models/vit.py, and the layers' counts add up to it."""
    tokens, width, depth = 14 * 14, 384, 12
    macs = tokens * 16 * 16 * 3 * width + width * width + width * 1000
    macs += depth * (4 * tokens * width**2 + 8 * tokens * width**2 + 2 * tokens**2 * width)
    program = program_of(ViTConfig())
    assert program.forward_macs == macs == 4_574_174_208
    layers = {row["layer"]: row for row in list_layers(program)}
    assert sum(row["forward_macs_per_image"] for row in layers.values()) == macs
    assert layers["block1"]["forward_macs_per_image"] == 2 * tokens**2 * width
    assert layers["block12"]["output_shape"] == [tokens, width]


def test_remat_does_not_change_what_is_counted():
    fields = {"remat": "blocks", "precision": "bf16"}
    kept, again = (
        program_of(ViTConfig(**SMALL), precision="bf16"),
        program_of(ViTConfig(**SMALL), **fields),
    )
    assert kept.analysis == again.analysis and not again.analysis.warnings(
        again.config, again.precision
    )
    assert kept.num_parameters() == again.num_parameters()


def test_an_image_takes_every_patch_and_its_place():
    program = program_of(ViTConfig(**SMALL))
    params = program.abstract_train_state().params
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape), params)
    forward = jax.jit(
        lambda images: program.model.apply(
            {"params": params, "batch_stats": {}}, images, train=False
        )[0]
    )
    image = random.normal(size=(1, 12, 8, 3)).astype(np.float32)
    swapped = image.copy()
    swapped[:, :4], swapped[:, 4:8] = image[:, 4:8], image[:, :4]
    batch = np.concatenate([image, swapped, image[:, ::-1]])
    logits = np.asarray(forward(batch))
    assert np.isfinite(logits).all()
    for other in (1, 2):
        assert np.abs(logits[other] - logits[0]).max() > 1e-3


def test_positions():
    """Sines and cosines of the column, then of the row; neighbours are alike, rows are told."""
    positions = np.asarray(sincos_positions(3, 5, 16, jnp.float32)).reshape(3, 5, 16)
    speeds = 10_000.0 ** -(np.arange(4) / 3)
    for row, column in ((0, 0), (2, 0), (1, 4)):
        angles = column * speeds, row * speeds
        expected = [turn(angle) for angle in angles for turn in (np.sin, np.cos)]
        np.testing.assert_allclose(positions[row, column], np.concatenate(expected), atol=1e-6)


def test_a_new_head_says_nothing():
    config = registry.load("vit_cifar10:tiny")
    config.num_devices = 1
    program = build_program(config, *create_training_mesh(config), steps_per_epoch=1)
    params = program.initial_state().params
    assert not params["head"]["kernel"].any() and params["block1"]["query"]["kernel"].any()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"width": 390}, "model.width=390: no multiple of 4 and of 6 heads"),
        ({"patch": 15}, "model.patch=15: must divide 224 and 224"),
        ({"attention": "cudnn"}, "cudnn|cuDNN"),
    ],
)
def test_what_cannot_be_built_is_refused(model, message):
    with pytest.raises(BadInput, match=message):
        program_of(ViTConfig(**model)).check()


def test_remat_of_blocks_is_for_networks_that_have_them():
    config = registry.load("resnet50:tiny")
    config.remat = "blocks"
    with pytest.raises(BadInput, match="remat='blocks' with ResNetConfig: only transformers"):
        config.validate()


def test_the_recipe_is_what_was_published():
    config = registry.load("vit_s16")
    optimizer, data = config.optimizer, config.data
    assert (config.batch_size, config.epochs, config.label_smoothing) == (1024, 90, 0)
    assert (data.rand_augment, data.mixup, data.flip) == ((2, 10), 0.2, True)
    # Decoupled from the learning rate it is 1e-4.
    assert (optimizer.learning_rate, optimizer.weight_decay) == (0.001, 1e-4 / 0.001)
    assert (optimizer.weight_decay_on, optimizer.max_gradient_norm) == ("kernels", 1)
    steps_per_epoch = 1_281_167 // 1024
    assert abs(optimizer.warmup_epochs * steps_per_epoch - 10_000) < 10
