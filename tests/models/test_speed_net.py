"""The network of the speed run, and what the rest of the program does for it."""

import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.clock import Clock
from jaxbench.config import DataConfig
from jaxbench.data.augment import evaluation_views
from jaxbench.data.sources import synthetic
from jaxbench.errors import BadInput
from jaxbench.models.speed_net import SpeedNetConfig, _gelu, identity_first, whitening_kernel
from jaxbench.modes.runner import PreparedRun, prepare_run
from jaxbench.records.writers.console import Console
from jaxbench.tasks import get_task, sums_by_name
from jaxbench.training.prediction import predict_views
from tests.conftest import config_of, program_of, refusal
from tests.data.encoded_images import write_folder
from tests.micro import SmallConfig
from tests.models.speed_net import TINY, config_with, images


@pytest.mark.parametrize(("width", "scale"), [(256, 1 / 256), (64, 1 / 128)])
def test_logits_are_scaled_by_the_root_of_the_width_to_the_published_256th(width, scale):
    network = SpeedNetConfig(channels=(4, 4, width)).create(
        num_classes=10, dtype=jnp.float32, param_dtype=jnp.float32, norm_axis=None
    )
    generator = np.random.default_rng(0)
    images = generator.normal(size=(2, 16, 16, 3)).astype(np.float32)
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), images, train=False))
    variables = jax.tree.map(
        lambda leaf: np.abs(generator.normal(size=leaf.shape)).astype(np.float32), shapes
    )

    how = {"train": False, "capture_intermediates": lambda module, _: module.name == "head"}
    logits, seen = jax.jit(lambda *args: network.apply(*args, **how))(variables, images)
    [unscaled] = seen["intermediates"]["head"]["__call__"]
    assert np.abs(unscaled).min() > 0
    np.testing.assert_allclose(logits, np.asarray(unscaled) * scale, rtol=1e-6)


def test_whitened_patches_are_uncorrelated():
    """Of smooth pictures, whose neighbouring pixels are alike."""
    noise = np.random.default_rng(0).normal(size=(300, 16, 16, 3)).astype(np.float32)
    smooth = noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2) + noise.mean(-1, keepdims=True)
    kernel = whitening_kernel(smooth)
    assert kernel.shape == (2, 2, 3, 24) and np.array_equal(kernel[..., 12:], -kernel[..., :12])
    out = jax.lax.conv_general_dilated(
        smooth, kernel[..., :12], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    out = np.asarray(out, np.float64).reshape(-1, 12)
    assert out.T @ out / len(out) == pytest.approx(np.eye(12), abs=0.01)
    before = smooth[:, :15, :15].reshape(-1, 3)
    assert abs(np.corrcoef(before, rowvar=False)[0, 1]) > 0.1


def test_convolutions_begin_by_handing_their_inputs_on():
    x = jax.random.normal(jax.random.key(0), (2, 5, 5, 3))
    kernel = identity_first(jax.random.key(1), (3, 3, 3, 8), jnp.float32)
    out = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert np.array_equal(out[..., :3], x)
    # The others as PyTorch draws them: evenly up to the root of 1 / inputs.
    others = np.asarray(identity_first(jax.random.key(1), (3, 3, 8, 512), jnp.float32)[..., 8:])
    assert 0.98 / np.sqrt(72) < np.abs(others).max() <= 1 / np.sqrt(72)
    narrow = identity_first(jax.random.key(1), (3, 3, 8, 4), jnp.float32)
    assert np.array_equal(narrow[1, 1], np.eye(8, 4)) and narrow.sum() == 4


def test_the_record_of_2025_is_as_published():
    """Its steps, rates of a summed loss, and FLOPs; and SiLU in place of all but one GELU."""
    base_program = program_of("cifar10_speedrun94", steps_per_epoch=25)
    program = program_of("cifar10_speedrun94_2025", steps_per_epoch=32)
    config, base = program.network.config, base_program.network.config
    config.validate()
    assert program.network.analysis.training_flops == base_program.network.analysis.training_flops
    images, base_images = config.num_steps(32) * 1536, base.num_steps(25) * 2000
    assert (images, base_images) == (243 * 1536, 400_000)
    # Published with the gradients of the whitening layer, which are not computed: its kernel rests.
    flops = 6 * program.network.analysis.forward_macs
    assert flops - program.network.analysis.training_flops == 4 * 12 * 24 * 31**2
    assert images * flops == pytest.approx(0.2648e15, rel=1e-3)
    assert base_images * flops == pytest.approx(0.2837e15, rel=1e-3)
    optimizer = config.optimizer
    rates = optimizer.bias_learning_rate, optimizer.head_learning_rate
    assert rates == pytest.approx((0.0573 * 1536, 0.5415 * 1536), rel=1e-3)
    assert optimizer.weight_decay == pytest.approx(1.0418e-6 * 1536, rel=1e-3)
    assert config.data.brightness == pytest.approx(0.1399 * 64, rel=0.01)
    assert round(config.model.whitening_bias_epochs * 32) == 7  # 0.19 epochs, rounded up
    # SiLU is a function that the program calls; GELU stands in its place.
    for each, gelus, silu in ((base_program, 7, False), (program, 1, True)):
        text = str(each.network.trace.forward.jaxpr)
        assert (len(re.findall(r"\berfc?\b", text)), "logistic" in text) == (gelus, silu)


def test_the_activation_is_the_published_one_and_has_gradients_in_fp16():
    x = np.array([-3, -1, -0.25, 0, 0.5, 2])
    want = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x]
    np.testing.assert_allclose(_gelu(jnp.asarray(x, jnp.float32)), want, atol=1e-6)
    slopes = jax.vmap(jax.grad(_gelu))(jnp.array([-60000, -300, 300, 60000], jnp.float16))
    np.testing.assert_array_equal(slopes, [0, 0, 1, 1])


@pytest.mark.parametrize("fields", [{"data__feed": "stream"}, {"replicas": "independent"}])
def test_every_way_to_train_begins_with_the_same_whitening(tmp_path, fields):
    config = config_with(num_devices=2, **fields)
    with prepare_run(config, None, Console()) as job:
        kernels = jax.device_get(job.place_train_state().params)["whitening"]["kernel"]
    expected = whitening_kernel(images()[:100])
    for kernel in kernels.reshape(-1, *expected.shape):
        assert np.array_equal(kernel, expected)


def test_processes_meet_before_the_first_of_them_sends_what_images_tell(monkeypatch):
    """It may be their first collective, which with gloo waits 30 s for the last of them."""
    done = []

    def send(params):
        done.append("sent")
        return params

    monkeypatch.setattr("jaxbench.parallel.processes.barrier", done.append)
    monkeypatch.setattr("jaxbench.modes.runner.broadcast_arrays", send)
    mesh = types.SimpleNamespace(process=(0, 2))
    dataset = synthetic.load(DataConfig(train_examples=128, eval_examples=50))
    run = PreparedRun(config_with(), Clock(), None, mesh, [], dataset, None, None, None)
    assert run.params_from_images is run.params_from_images
    assert list(run.params_from_images) == ["whitening"]
    assert done == ["the parameters from images", "sent"]


def test_whitening_by_images_that_are_not_in_memory_is_refused(tmp_path):
    write_folder(tmp_path / "images")
    config = config_with(
        data__source="folder",
        data__path=str(tmp_path / "images"),
        data__eval_split="val",
        data__feed="stream",
        data__flip_order="random",
        data__crop_padding=0,
        data__random_resized_crop=True,
        data__num_classes=2,
        batch_size=16,
    )
    with pytest.raises(BadInput, match="decoded on the fly"):
        prepare_run(config, str(tmp_path / "run"), Console()).__enter__()
    assert not (tmp_path / "run").exists()


def test_test_time_augmentation_is_the_mean_over_views_and_leaves_top1_as_it_is():
    """What the evaluation step counts, against views cut out in NumPy and shown one by one."""
    counts = {}
    for views_name in ("none", "mirror", "mirror_translate"):
        config = config_with(
            model=SmallConfig(), test_time_augmentation=views_name, data__eval_examples=32
        )
        config.optimizer.learning_rate = 0.0
        with prepare_run(config, None, Console()) as job:
            program, feed = job.program, job.feed
            state = program.place_train_state()
            # A head that has an opinion.
            state.params["head"]["kernel"] *= 30.0
            metrics = program.eval_step(state, feed.eval_data, next(feed.eval_batches()))
            counts[views_name] = program.network.unpack_eval_sums(metrics)
            state, split = jax.device_get(state), job.dataset.eval
            mean, std = job.dataset.channel_statistics
    assert set(counts["none"]) == {"loss", "count", "top1", "top5"}
    for views_name in ("mirror", "mirror_translate"):
        assert counts[views_name].keys() - counts["none"].keys() == {"top1_tta"}
        for name, value in counts["none"].items():
            # Counts are whole numbers; a sum of losses may be rounded otherwise.
            assert counts[views_name][name] == pytest.approx(value, rel=1e-6)
    pixels = split.inputs_Nx[:32]
    padded = np.pad(pixels, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    variables = {"params": state.params, "batch_stats": state.batch_stats}

    apply = jax.jit(lambda images: program.network.module.apply(variables, images, train=False)[0])

    def logits(images):
        return np.asarray(apply(((images - mean) / std).astype(np.float32)), np.float64)

    def both(images):
        return (logits(images) + logits(images[:, :, ::-1])) / 2

    translated = (both(padded[:, :-2, :-2]) + both(padded[:, 2:, 2:])) / 2
    views_of = jax.jit(evaluation_views, static_argnames="translate")
    expected = {"mirror": both(pixels), "mirror_translate": both(pixels) / 2 + translated / 2}
    for views_name, outputs in expected.items():
        assert (
            counts[views_name]["top1_tta"] == (outputs.argmax(-1) == split.labels_Nx[:32]).sum()
        ), views_name
        # Too few images for a count to tell one weight from another.
        views, weights = views_of(
            pixels.astype(np.float32), translate=views_name == "mirror_translate"
        )
        outputs_Vx = [logits(np.asarray(view)) for view in views]
        np.testing.assert_allclose(np.tensordot(weights, outputs_Vx, 1), outputs, atol=1e-5)
    task = get_task("classification", True)
    sums = sums_by_name(task.eval_sums, [8.0, 4, 2, 4, 3])
    assert {name: value.item() for name, value in task.compute(sums).items()} == {
        "loss": 2.0,
        "top1": 0.5,
        "top5": 1.0,
        "top1_tta": 0.75,
    }


def test_only_images_of_which_the_network_is_unsure_are_seen_in_views():
    """A network that is surer the farther an image's pixels are from 0."""
    generator = np.random.default_rng(0)
    images = generator.normal(size=(8, 4, 4, 1)).astype(np.float32)
    images[4] = 0.0  # an image that none is less sure of, were it not padding
    mask = np.arange(8) != 4
    weights = generator.normal(size=(16, 3)).astype(np.float32)
    seen = []

    def network(images_BxHxWxC):
        seen.append(len(images_BxHxWxC))
        return images_BxHxWxC.reshape(-1, 16) @ weights

    def predicted(fraction):
        config = config_with(
            test_time_augmentation="mirror", test_time_augmentation_fraction=fraction
        )
        return map(
            np.asarray, predict_views(network, jnp.asarray(images), jnp.asarray(mask), config)
        )

    logits, every = predicted(1.0)
    again, some = predicted(0.4)
    # Eight and their mirror images at once; eight, then the mirror images of 0.4 x 8, rounded up.
    assert seen == [16, 8, 4]
    np.testing.assert_allclose(again, logits, rtol=1e-6)
    confidence = np.max(jax.nn.softmax(logits), axis=-1)
    # Seven are real, of which three are taken.
    unsure = [row for row in np.argsort(confidence) if row != 4][:3]
    expected = logits.copy()
    expected[unsure] = every[unsure]
    np.testing.assert_allclose(some, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(every - logits).max(axis=-1)[unsure].min() > 1e-3


@pytest.mark.parametrize(
    ("experiment", "fields", "told"),
    [
        (TINY, {"model__activation": "swish"}, "must be one of gelu, silu"),
        (TINY, {"test_time_augmentation_fraction": 0.0}, "must be within [0.01, 1]"),
        ("unet256:tiny", {"test_time_augmentation": "mirror"}, "it needs classification"),
    ],
)
def test_a_speed_run_that_cannot_be_is_refused(experiment, fields, told):
    refusal(config_of(experiment, **fields).validate, told=told)
