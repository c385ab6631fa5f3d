"""The layers of networks: as papers count them, as they are traced, and what a step does."""

import pytest

from jaxbench.cli import entry_point
from jaxbench.hardware.targets.target import parse_target
from jaxbench.models import transformer_block
from jaxbench.modes.predictions import Predictor, read_shape
from jaxbench.predict.model import _Table
from jaxbench.predict.networks import NETWORKS, identify, network_shape
from jaxbench.predict.prediction import setting_of

# Multiply-accumulates [1e9] and parameters [1e6], as papers and libraries print them.
_PUBLISHED = {
    "resnet18": (1.814, 11.7),
    "resnet50": (4.089, 25.6),
    "resnet152": (11.51, 60.2),
    "resnext101_32x4d": (7.98, 44.2),
    "vgg16": (15.47, 138.4),
    "inception_v3": (5.71, 23.8),
    "inception_v4": (12.25, 42.7),
    "efficientnet_b0": (0.386, 5.3),
    "mobilenet_v2": (0.30, 3.5),
    "densenet121": (2.83, 8.0),
    "convnext_tiny": (4.46, 28.6),
    "wrn28_10": (5.243, 36.5),
    "vit_s16": (4.6, 22.0),
    "gpt2": (None, 124),
    "gpt3_175b": (None, 175_000),
    "maxtext_52b": (None, 52_000),
    "llama2_7b": (None, 6740),
    "llama3_3b": (None, 3213),
    "llama3_70b": (None, 70600),
    "dit_xl2": (118.64, 675.1),
    # llm-foundry counts fixed positions too: 1.3 % of the smallest.
    "mpt_125m": (None, 125.3),
    "mpt_350m": (None, 356.0),
    "mpt_760m": (None, 760.5),
    "mpt_1b": (None, 1316),
    "mpt_3b": (None, 2652),
    "mpt_7b": (None, 6659),
    "mpt_13b": (None, 12854),
    "mpt_30b": (None, 29975),
}


@pytest.mark.parametrize("network", _PUBLISHED)
def test_public_networks_have_the_published_counts(network):
    macs, parameters = _PUBLISHED[network]
    shape = NETWORKS[network]
    if macs:
        assert shape.macs / 1e9 == pytest.approx(macs, rel=0.01)
    assert shape.weights / 1e6 == pytest.approx(parameters, rel=0.02)


@pytest.mark.parametrize(
    ("experiment", "network", "attention"),
    [
        ("resnet50:synthetic", "resnet50", None),
        ("wrn28_10", "wrn28_10", None),
        ("cnn10", "cnn10", None),
        ("vit_s16:synthetic", "vit_s16", "xla"),
        ("vit_s16:synthetic", "vit_s16", "cudnn"),
        ("gpt124m_synthetic", "gpt2", "xla"),
        ("gpt124m_synthetic", "gpt2", "cudnn"),
        ("llama:synthetic", "tinyllama_1b", "xla"),
        ("llama:synthetic", "tinyllama_1b", "cudnn"),
        ("llama:8b", "llama3_8b", "cudnn"),
        ("dit", "dit_xl2", "xla"),
        ("dit", "dit_xl2", "cudnn"),
    ],
)
def test_a_traced_network_is_the_described_one_that_rates_are_fitted_to(
    traced, experiment, network, attention
):
    shape = traced(entry_point.load_experiment(experiment), attention)
    public = network_shape(network, attention and attention == "cudnn")
    assert shape.touched == pytest.approx(public.touched, rel=0.05)
    assert shape.pooled == public.pooled
    # jaxbench's ViT averages its tokens and has no further one.
    assert shape.macs == pytest.approx(public.macs, rel=0.01)
    assert shape.kept_bytes(2) == pytest.approx(public.kept_bytes(2), rel=0.08)
    assert identify(shape.macs, shape.weights) == network and shape.family == public.family


def test_the_traced_layers_are_the_described_ones(traced, resnet50):
    layers = [sorted(shape.layers) for shape in (traced(resnet50), NETWORKS["resnet50"])]
    assert layers[0] == layers[1]


@pytest.mark.parametrize("experiment", ["gpt_bytes:tiny", "llama:tiny", "dit:tiny"])
def test_each_block_of_a_transformer_moves_as_much(experiment):
    """A sum over blocks is not computed again from all blocks before it."""
    touched = []
    for depth in (1, 2, 8):
        overrides = [f"--experiment.model.depth={depth}"]
        config = entry_point.load_experiment(experiment, overrides)
        touched.append(read_shape(config)[0].touched)
    one, two, eight = touched
    assert eight - one == pytest.approx(7 * (two - one), rel=0.01) and two > 1.2 * one


@pytest.mark.parametrize("network", ["resnet50", "gpt2"])
def test_no_step_computes_the_gradient_of_the_images(network):
    shape = NETWORKS[network]
    setting = setting_of(shape, parse_target("gpu:h100"), "bf16", 4)
    kernels = _Table([setting]).kernels
    images = shape.layers[0].macs if network == "resnet50" else 0
    assert kernels.flops @ kernels.times == 2 * 4 * (3 * shape.macs - images)


def test_fused_attention_is_traced_as_cudnns_own(monkeypatch):
    config = entry_point.load_experiment("gpt_bytes:tiny", ["--experiment.precision=bf16"])
    fused, attend = read_shape(config, "cudnn"), transformer_block.attend
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 0)
    monkeypatch.setattr(transformer_block, "attend", lambda *args: attend(*args[:4], "cudnn"))
    assert read_shape(config, "cudnn") == fused


@pytest.mark.parametrize(
    ("target", "overrides", "attention"),
    [
        ("gpu:h100", [], "cudnn"),
        ("gpu:h100", ["--experiment.model.attention=cudnn"], "cudnn"),
        ("gpu:h100", ["--experiment.model.attention=xla"], "xla"),
        ("gpu:h100", ["--experiment.precision=fp32"], "xla"),
        ("gpu:h100", ["--experiment.data.sequence_length=63"], "xla"),
        ("gpu:v100", ["--experiment.precision=fp16"], "xla"),
        ("tpu:v5e:2x2", [], "xla"),
    ],
)
def test_a_network_is_traced_with_the_attention_of_the_target(target, overrides, attention):
    overrides = ["--experiment.precision=bf16", *overrides]
    config = entry_point.load_experiment("gpt_bytes:tiny", overrides)
    shape, network = Predictor(config).trace(parse_target(target))
    assert network["attention"] == attention
    products = [layer for layer in shape.layers if layer.groups > 1]
    assert all((layer.outputs == 0) == (attention == "cudnn") for layer in products[::2])
