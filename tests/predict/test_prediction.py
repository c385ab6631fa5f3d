"""Predicted rates: the networks' layers, the fit, its errors on rows left out, and refusals."""

import dataclasses
import json

import numpy as np
import pytest

from jaxbench.analysis.published import RATES, read_published_rates
from jaxbench.cli import entry_point
from jaxbench.hardware.targets.target import parse_target
from jaxbench.models import transformer_block
from jaxbench.modes import predictions
from jaxbench.modes.predictions import Predictor, read_shape
from jaxbench.predict.calibration import ANCHOR_WEIGHT, FILE, LEVELS, error_quantile, load
from jaxbench.predict.model import fit
from jaxbench.predict.networks import NETWORKS, identify, transformer
from jaxbench.predict.prediction import predict, setting_of
from jaxbench.predict.rates import Rate, read_rates
from tests.cards import made
from tests.conftest import refusal
from tests.recorded import trained

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
    "llama3_70b": (None, 70600),
}
_PRECISIONS = ("fp16", "fp32")
_RESNET = ["--experiment.precision=bf16", "--experiment.batch_size=256"]


_TRACED = {}


@pytest.fixture(autouse=True)
def traced_once(monkeypatch):
    """A network is traced once for all tests."""

    def traced(config, attention):
        key = config.name, config.precision, config.data.sequence_length, attention
        if key not in _TRACED:
            _TRACED[key] = read_shape(config, attention)
        return _TRACED[key]

    monkeypatch.setattr(predictions, "read_shape", traced)


@pytest.fixture(scope="module")
def resnet50():
    return entry_point.load_experiment("resnet50:synthetic", _RESNET)


def predicted(config, *targets, price=None, anchors=()):
    machines = [parse_target(name) for name in targets]
    predictor = Predictor(config, machines, anchors=anchors)
    return {machine.name: predictor.predict(machine, price) for machine in machines}


@pytest.mark.parametrize("network", _PUBLISHED)
def test_public_networks_have_the_published_counts(network):
    macs, parameters = _PUBLISHED[network]
    shape = NETWORKS[network]
    if macs:
        assert shape.macs / 1e9 == pytest.approx(macs, rel=0.01)
    assert shape.weights / 1e6 == pytest.approx(parameters, rel=0.02)


def test_a_traced_network_is_read_as_the_public_one_is_described(resnet50):
    (traced, _), public = read_shape(resnet50), NETWORKS["resnet50"]
    assert (traced.macs, traced.weights) == (public.macs, public.weights)
    assert traced.touched == pytest.approx(public.touched, rel=0.1)
    assert sorted(layer[:5] for layer in traced.layers) == sorted(
        layer[:5] for layer in public.layers
    )
    assert identify(traced.macs, traced.weights) == "resnet50" and traced.family == "residual"


def test_fused_attention_is_traced_as_the_public_one_is_described():
    config = entry_point.load_experiment("gpt124m_synthetic")
    fused, xla = (read_shape(config, attention)[0] for attention in ("cudnn", "xla"))
    public = transformer(12, 768, 12, 1024, vocabulary=50257, fused=True)
    assert (fused.macs, fused.weights) == (public.macs, public.weights)
    assert fused.kept_bytes(2) == pytest.approx(public.kept_bytes(2), rel=0.05)
    assert fused.kept_bytes(2) < 0.5 * xla.kept_bytes(2) and fused.touched < 0.6 * xla.touched


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


def test_the_attention_of_the_target_is_predicted():
    auto, xla, cudnn = (
        predicted(
            entry_point.load_experiment(
                "gpt124m_synthetic", [f"--experiment.model.attention={name}"]
            ),
            "gpu:h100",
        )["gpu:h100"]["predicted"]["images_per_s"]
        for name in ("auto", "xla", "cudnn")
    )
    assert auto == cudnn > 1.2 * xla


def test_long_sequences_fit_with_the_attention_that_keeps_no_weights():
    long = ["--experiment.data.sequence_length=8192", "--experiment.batch_size=8"]
    for name in ("auto", "xla"):
        attention = f"--experiment.model.attention={name}"
        config = entry_point.load_experiment("gpt124m_synthetic", [*long, attention])
        answer = predicted(config, "gpu:h100")["gpu:h100"]
        assert (answer.get("fits") is False) == (name == "xla")


def test_an_anchor_has_the_attention_of_its_device(tmp_path):
    overrides = ["--experiment.precision=fp16", "--experiment.batch_size=1024"]
    config = entry_point.load_experiment("gpt_bytes", overrides)
    macs, of = read_shape(config)[0].macs, {"precision": "fp16", "batch_size": 1024}
    run = str(trained(tmp_path / "run", 30_000.0, forward_macs_per_image=macs, config=of))
    alone = predicted(config, "gpu:h200", anchors=[run])
    beside = predicted(config, "gpu:v100", "gpu:h200", anchors=[run])
    assert alone["gpu:h200"] == beside["gpu:h200"] and alone["gpu:h200"]["predicted"]


def test_the_shipped_calibration_is_the_fit_to_the_shipped_rates():
    rates, calibration = read_rates(), load()
    again = fit(rates, start=calibration.model, steps=2)
    settings = [rate.setting for rate in rates]
    ratio = again.step_s(settings) / calibration.model.step_s(settings)
    assert np.abs(np.log(ratio)).max() < 0.01
    assert calibration.num_rates == len(rates)
    assert {rate.setting.network for rate in rates} <= set(NETWORKS)


def test_a_device_that_is_twice_as_slow_is_predicted_so():
    rates, model = read_rates(), load().model
    kind = "Quadro RTX 8000"
    slowed = [
        rate._replace(step_s=2 * rate.step_s) if rate.setting.kind == kind else rate
        for rate in rates
    ]
    of_kind = [rate.setting for rate in rates if rate.setting.kind == kind]
    others = [rate.setting for rate in rates if rate.setting.kind != kind]
    again = fit(slowed, start=model)
    assert np.median(again.step_s(of_kind) / model.step_s(of_kind)) > 1.4
    assert np.median(again.step_s(others) / model.step_s(others)) == pytest.approx(1, abs=0.05)


def test_errors_of_rows_left_out_and_what_the_intervals_hold():
    """docs/concepts/prediction.md has the same figures, by benchmarks/prediction_error.py."""
    most = {"device": (0.10, 0.27), "generation": (0.12, 0.31), "network": (0.16, 0.32)}
    for name, (median, ninth) in most.items():
        rows = load().left_out[name]
        sizes = np.abs(np.expm1([row.error for row in rows]))
        assert np.median(sizes) < median and np.quantile(sizes, 0.9) < ninth
        for level, low in zip(LEVELS, (0.7, 0.8), strict=True):
            held = [
                abs(row.error) <= error_quantile([o for o in rows if o.group != row.group], level)
                for row in rows
            ]
            assert np.mean(held) > low


def test_the_quantile_of_errors_counts_groups_alike():
    rows = [row for row in load().left_out["device"] if row.group == "Quadro RTX 8000"]
    many = [row._replace(error=0.1) for row in rows]
    few = [rows[0]._replace(group=name, error=0.5) for name in "abc"]
    assert error_quantile([*many, *few], 0.2) == 0.1
    assert error_quantile([*many, *few], 0.5) == 0.5


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"), [(2.2, 0, 858), (1.1, 0, 429), (2.3, 0, 897), (2.2, 7, 7)]
)
def test_a_training_is_predicted_for_the_steps_that_it_takes(resnet50, epochs, max_steps, steps):
    """2.2 * 390 is a little more than 858 in floating-point numbers."""
    data = dataclasses.replace(resnet50.data, train_examples=390 * 256)
    config = dataclasses.replace(resnet50, data=data, epochs=epochs, max_steps=max_steps)
    assert config.num_steps(390) == steps
    answer = predicted(config, "gpu:a100")["gpu:a100"]["predicted"]
    assert answer["training_s"] == pytest.approx(steps * answer["step_s"], rel=1e-6)


def test_a_prediction_has_intervals_a_basis_and_a_schedule(resnet50):
    config = dataclasses.replace(resnet50, epochs=3.0)
    answers = predicted(config, "gpu:a100", "gpu:h100:8", "tpu:v3:2x2")
    one = answers["gpu:a100"]["predicted"]
    assert one["images_per_s_90_low"] < one["images_per_s_low"] < one["images_per_s"]
    assert one["images_per_s"] < one["images_per_s_high"] < one["images_per_s_90_high"]
    assert one["bound_by"] in one["parts_s"] and one["origin"] == "predicted"
    assert one["step_s"] == pytest.approx(256 / one["images_per_s"])
    assert one["epoch_s"] == pytest.approx(8 * 256 / one["images_per_s"])
    assert one["training_s"] == pytest.approx(3 * one["epoch_s"])
    assert one["basis"]["network"] == "resnet50"
    # Others measured 2,375 images/s by TensorFlow with XLA there.
    assert one["images_per_s_90_low"] < 2375 < one["images_per_s_90_high"]
    for answer in answers.values():
        json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize(
    ("overrides", "target", "why"),
    [
        (["--experiment.precision=bf16"], "gpu:rtx2080ti", "no bf16 units"),
        (["--experiment.batch_size=16384"], "gpu:rtx3090", "out of memory"),
        ([], "gpu:h100:2x8", "between 2 hosts"),
        (["--experiment.remat=save_dots"], "gpu:a100", "remat=save_dots"),
        (["--experiment.replicas=independent"], "gpu:a100:2", "replicas=independent"),
        (["--experiment.precision=fp64"], "gpu:a100", "no fp64 units"),
    ],
)
def test_what_nothing_like_it_was_measured_is_not_predicted(overrides, target, why):
    config = entry_point.load_experiment("resnet50:synthetic", [*_RESNET, *overrides])
    answer = predicted(config, target)[target]
    assert answer["predicted"] is None and why in answer["not_predicted"]


def test_the_networks_of_a_card_are_anchors(resnet50, tmp_path):
    made.write(tmp_path / "card", made.judged(made.networks(4 * 1_500.0)))
    target = "gpu:h100:2"
    alone = predicted(resnet50, target)[target]["predicted"]
    for path in (tmp_path / "card", tmp_path / "card" / "card.json"):
        shifted = predicted(resnet50, target, anchors=[str(path)])[target]["predicted"]
        # The card has this network with a stated and with a larger batch.
        assert shifted["basis"]["anchor"]["rates"] >= 1
        assert shifted["images_per_s"] < 0.8 * alone["images_per_s"]
    other = entry_point.load_experiment("wrn28_10", ["--experiment.precision=fp16"])
    for config, name, told in (
        (other, target, "no rate of this network in fp16"),
        (resnet50, "gpu:a100", "measured on NVIDIA H100"),
    ):
        refusal(predicted, config, name, anchors=[str(tmp_path / "card")], told=told)
    made.write(tmp_path / "fast", made.judged(made.networks(4 * 150_000.0)))
    fast = predicted(resnet50, target, anchors=[str(tmp_path / "fast")])[target]
    assert fast["predicted"] is None and "times what is expected" in fast["not_predicted"]
    damaged = tmp_path / "card" / "card.json"
    damaged.write_text(damaged.read_text().replace("6000.0", "6001.0", 1))
    refusal(predicted, resnet50, target, anchors=[str(damaged)], told="altered or damaged")


def test_a_step_of_launches_is_not_predicted():
    config = entry_point.load_experiment("quickstart", ["--experiment.batch_size=8"])
    assert "launches" in predicted(config, "gpu:h100")["gpu:h100"]["not_predicted"]


def test_sixteen_bits_are_not_slower_on_any_gpu_with_tensor_cores():
    shape, batch = NETWORKS["vgg16"], 64
    for name in ("a100", "rtx3090", "rtx4090", "rtx5090", "rtxpro6000", "h100", "b200"):
        settings = [setting_of(shape, parse_target(f"gpu:{name}"), p, batch) for p in _PRECISIONS]
        short, long = load().model.step_s(settings)
        assert short < long, name
        assert settings[1].arithmetic == "tf32", name


def test_predictions_are_fitted_to_all_rates_but_those_marked(tmp_path):
    marked = [rate for rate in read_published_rates() if rate.not_fitted]
    assert len(read_rates()) + len(marked) == len(read_published_rates()) and len(marked) == 11
    path = tmp_path / "own.csv"
    text = RATES.read_text().splitlines()
    # A user's rows have as many of the columns as they need.
    path.write_text("\n".join([text[0], *text[-2:], "resnet50,gpu:a100,1,bf16,256,,JAX,2000"]))
    [own] = read_rates(path)
    assert own.rate == pytest.approx(2000) and not own.lower_bound


def test_a_wrong_row_of_rates_is_named(tmp_path):
    head = "network,device,num_devices,precision,batch_size,software,examples_per_s\n"
    for row, words in (
        ("vgg61,gpu:a100,1,bf16,256,JAX,2000", "did you mean 'vgg16'"),
        ("resnet50,gpu:a101,1,bf16,256,JAX,2000", "must name a GPU"),
        ("resnet50,gpu:a100,1,bf17,256,JAX,2000", "bf17"),
        ("resnet50,gpu:a100,1,bf16,0,JAX,2000", "batch_size"),
        ("resnet50,gpu:a100,1,bf16,256,JAX,nan", "examples_per_s"),
        ("resnet50,gpu:a100:8,1,bf16,256,JAX,2000", "must name one"),
        ("", "has no rate"),
    ):
        path = tmp_path / f"{abs(hash(row))}.csv"
        path.write_text(head + row + "\n")
        assert str(path) in refusal(read_rates, path, told=words)


@pytest.mark.parametrize(
    "damage",
    [
        lambda calibration: calibration["model"]["parameters"].pop("norm"),
        lambda calibration: calibration["model"]["parameters"].update(norm=float("nan")),
        lambda calibration: calibration["left_out"].update({"network on device": []}),
    ],
)
def test_a_damaged_calibration_is_refused(damage, tmp_path):
    calibration = json.loads(FILE.read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(calibration))
    assert predictions.load_calibration(str(path)).num_rates == len(read_rates())
    damage(calibration)
    (damaged := tmp_path / "damaged.json").write_text(json.dumps(calibration))
    refusal(predictions.load_calibration, str(damaged), told="no calibration")


def test_a_run_of_the_machine_shifts_the_prediction_and_shrinks_the_interval(resnet50):
    setting = setting_of(read_shape(resnet50)[0], parse_target("gpu:a100"), "bf16", 256)
    eight = setting._replace(target=parse_target("gpu:a100:8"), num_devices=8)
    alone = predict(eight, load())
    slow_s = 1.3 * float(load().model.step_s([setting])[0])
    anchored = predict(eight, load(), [Rate(setting, slow_s, False, "run", "")])
    shift = anchored.rate.value / alone.rate.value
    assert shift == pytest.approx(1.3**-ANCHOR_WEIGHT)
    widths = [np.log(one.rate.high / one.rate.low) for one in (anchored, alone)]
    assert widths[0] < 0.7 * widths[1]


def test_a_recorded_run_is_an_anchor(resnet50, tmp_path):
    macs, config = read_shape(resnet50)[0].macs, {"precision": "bf16", "batch_size": 256}
    run = str(trained(tmp_path / "run", 1500.0, forward_macs_per_image=macs, config=config))
    target = "gpu:h200:4"
    alone = predicted(resnet50, target)[target]["predicted"]
    shifted = predicted(resnet50, target, anchors=[run])[target]["predicted"]
    assert shifted["images_per_s"] < 0.8 * alone["images_per_s"]
    assert shifted["basis"]["anchor"]["rates"] == 1
    # Another machine, another precision, another network, nothing.
    other = entry_point.load_experiment("resnet50:synthetic", ["--experiment.precision=fp16"])
    small = str(trained(tmp_path / "small", forward_macs_per_image=1, config=config))
    for experiment, name, anchor, told in (
        (resnet50, "gpu:a100", run, "measured on NVIDIA H200"),
        (other, target, run, "no rate of this network in fp16"),
        (resnet50, target, small, "no rate of this network in bf16"),
        (resnet50, target, str(tmp_path / "none"), "no run directory"),
    ):
        refusal(predicted, experiment, name, anchors=[anchor], told=told)
