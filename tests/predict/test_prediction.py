"""Predicted rates of experiments: their intervals, what they rest on, anchors, and refusals."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from jaxbench.analysis.published import RATES, read_published_rates
from jaxbench.cli import entry_point
from jaxbench.hardware.targets.target import parse_target
from jaxbench.modes.predictions import Predictor
from jaxbench.predict.calibration import load
from jaxbench.predict.networks import NETWORKS
from jaxbench.predict.prediction import predict, setting_of
from jaxbench.predict.rates import Rate, read_rates
from tests.cards import made
from tests.conftest import refusal
from tests.recorded import trained

_PRECISIONS = ("fp16", "fp32")
_RESNET = ["--experiment.precision=bf16", "--experiment.batch_size=256"]


def predicted(config, *targets, price=None, anchors=()):
    machines = [parse_target(name) for name in targets]
    predictor = Predictor(config, machines, anchors=anchors)
    return {machine.name: predictor.predict(machine, price) for machine in machines}


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


def test_an_anchor_has_the_attention_of_its_device(traced, tmp_path):
    overrides = ["--experiment.precision=fp16", "--experiment.batch_size=1024"]
    config = entry_point.load_experiment("gpt_bytes", overrides)
    macs, of = traced(config).macs, {"precision": "fp16", "batch_size": 1024}
    run = str(trained(tmp_path / "run", 30_000.0, forward_macs_per_image=macs, config=of))
    alone = predicted(config, "gpu:h200", anchors=[run])
    beside = predicted(config, "gpu:v100", "gpu:h200", anchors=[run])
    assert alone["gpu:h200"] == beside["gpu:h200"] and alone["gpu:h200"]["predicted"]
    # The same rate by slower attention is that of a faster device.
    fields = {"forward_macs_per_image": macs, "config": of, "attention": "xla"}
    run = str(trained(tmp_path / "xla", 30_000.0, **fields))
    faster = predicted(config, "gpu:h200", anchors=[run])["gpu:h200"]["predicted"]
    assert faster["images_per_s"] > 1.02 * alone["gpu:h200"]["predicted"]["images_per_s"]


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
    assert fast["predicted"] is None and "times faster than" in fast["not_predicted"]
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
    assert len(read_rates()) + len(marked) == len(read_published_rates()) and len(marked) == 46
    path = tmp_path / "own.csv"
    head, *lines = RATES.read_text().splitlines()
    lines = [
        line for line, rate in zip(lines, read_published_rates(), strict=True) if rate.not_fitted
    ]
    # A user's rows have as many of the columns as they need.
    path.write_text("\n".join([head, *lines, "resnet50,gpu:a100,1,bf16,256,,JAX,2000"]))
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


@pytest.mark.parametrize("batch", [256, 64])
def test_a_run_of_the_machine_shifts_the_prediction_and_shrinks_the_interval(traced, batch):
    setting = setting_of(NETWORKS["resnet50"], parse_target("gpu:a100"), "bf16", 256)
    asked = setting._replace(batch=batch)
    slow_s = 1.3 * float(load().model.step_s([setting])[0])
    alone, anchored, often = (
        predict(asked, load(), [Rate(setting, slow_s, False, "run", "")] * count)
        for count in (0, 1, 4)
    )
    shifts = [one.rate.value / alone.rate.value for one in (anchored, often)]
    assert 1 > shifts[0] > shifts[1] > 1 / 1.3
    assert anchored.basis["anchor"] == {"rates": 1, "shift": pytest.approx(shifts[0])}
    widths = [np.log(one.rate.high / one.rate.low) for one in (alone, anchored, often)]
    assert widths[0] > 1.05 * widths[1] > 1.05 * widths[2]


def test_an_interval_is_as_wide_as_what_is_known():
    """Of TPUs v6e only transformers were measured, of v3 this network."""
    widths = {}
    for name, network in itertools.product(("tpu:v3:2x2", "tpu:v6e:2x2"), ("resnet50", "vit_b16")):
        setting = setting_of(NETWORKS[network], parse_target(name), "bf16", 128)
        rate = predict(setting, load()).rate
        widths[name, network] = np.log(rate.high / rate.low)
    assert widths["tpu:v6e:2x2", "resnet50"] > 1.2 * widths["tpu:v3:2x2", "resnet50"]
    assert widths["tpu:v6e:2x2", "resnet50"] > 1.2 * widths["tpu:v6e:2x2", "vit_b16"]


def test_tpus_have_three_generations():
    names = ("v2:1x1", "v3:2x2", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1", "tpu7x:1x1x1")
    generations = [
        setting_of(NETWORKS["resnet50"], parse_target(f"tpu:{name}"), "bf16", 128).generation
        for name in names
    ]
    old, middle, new = dict.fromkeys(generations)
    assert generations == [old, old, middle, middle, middle, new, new]


def test_a_recorded_run_is_an_anchor(traced, resnet50, tmp_path):
    macs, config = traced(resnet50).macs, {"precision": "bf16", "batch_size": 256}
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
