"""The dataclasses' own checks."""

import pytest

from jaxbench.cli import registry
from jaxbench.cli.entry_point import load_experiment
from jaxbench.cli.overrides import create_experiment
from jaxbench.config.fields import without_unused
from tests.conftest import config_of, refusal


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("batch_size", 0, "must be within [1, 2147483647]"),
        ("batch_size", 12.5, "must be a whole number"),
        ("batch_size", True, "must be a whole number"),
        ("batch_size", 2**31, "must be within [1, 2147483647]"),
        ("seed", -1, "must be within [0, 4294967295]"),
        ("precision", "fp4", "must be one of fp32, bf16, fp16, fp64, fp8"),
        ("batch_norm", "synch", "did you mean 'sync'?"),
        ("optimizer__learning_rate", float("nan"), "must be at least 0"),
        ("optimizer__learning_rate", float("inf"), "must be at least 0"),
        ("optimizer__momentum", 1.5, "must be within [0, 1]"),
        ("optimizer__norm_interval", (0.5,), "must be whole numbers in parentheses"),
        ("optimizer__decay_at", (60, 120), "must be within [0, 1]"),
        ("optimizer__schedule", "step", "needs optimizer.decay_at"),
        ("optimizer__name", "custom", "needs OptimizerConfig(update_rule=...)"),
        ("optimizer", None, "optimizer is a NoneType: must be a OptimizerConfig"),
        ("optimizer__warmup_epochs", 17, "must be at most epochs=16"),
        ("model__depth", 18, "must be 6n+4"),
        ("data__image_shape", (8, 8), "must be (height, width, channels)"),
        ("data__crop_padding", 8, "must be smaller than images, 8x8"),
        ("data__flip", 1, "must be true or false"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_what_is(field, value, told):
    config = config_of("quickstart", **{field: value})
    assert field.replace("__", ".") in refusal(config.validate, told=told)


def test_every_shipped_experiment_is_valid_and_says_what_it_is_for():
    purposes = registry.available()
    assert {"quickstart", "cnn10", "wrn28_10", "wrn28_10_2019"} <= set(purposes)
    for name, purpose in purposes.items():
        assert len(purpose) > 20, name
        for spec in (name, f"{name}:tiny"):
            config = registry.load(spec)
            config.validate()
            assert config.name == spec and without_unused(config) == (config, [])


@pytest.mark.parametrize("spec", ["resnet50:synth", "resnet50:tiny:synthetic", "conv2d:2019"])
def test_a_variant_that_does_not_exist_is_one_line_with_those_that_do(spec):
    assert ":tiny" in refusal(registry.load, spec, told="no variant ")


@pytest.mark.parametrize(
    ("spec", "override", "unused"),
    [
        ("gpt_bytes", "optimizer.name=sgd", "optimizer.b2=0.99"),
        ("cifar10_speedrun94", "optimizer.name=nesterov", "optimizer.sgd_momentum=0.85"),
        ("cifar10_speedrun94", "optimizer.name=adam", "optimizer.weight_decay_mode=decoupled"),
        ("resnet50", "data.source=synthetic", "data.random_resized_crop=True"),
        ("cnn10", "data.source=npz", "data.name=cifar10"),
        ("cifar10_speedrun94", "optimizer.weight_decay=0", "optimizer.weight_decay_mode=decoupled"),
        ("resnet50", "data.feed=resident", "data.random_resized_crop=True"),
        ("wrn28_10", "optimizer.schedule=cosine", "optimizer.decay_at=(0.3, 0.6, 0.8)"),
        ("vgg_cifar10", "data.cache_side=20", "data.cache_side=20"),
        ("gpt_bytes", "data.flip=true", "data.flip=True"),
        ("cifar10_speedrun94", "data.flip=false", "data.flip_order=alternating"),
    ],
)
def test_overrides_compose_and_a_warning_names_what_has_no_effect(spec, override, unused):
    config, warnings = without_unused(load_experiment(spec, [f"--experiment.{override}"]))
    assert len(warnings) == 1 and unused in warnings[0]
    assert without_unused(config) == (config, [])
    config.validate()


def test_the_rule_and_the_source_are_what_was_set_last():
    code = {"optimizer.update_rule": lambda schedule: None, "data.load": dict}
    config = create_experiment("quickstart", code)
    assert (config.optimizer.name, config.data.source) == ("custom", "custom")
    config = create_experiment(config, {"optimizer": {"name": "sgd"}, "data.source": "digits"})
    assert (config.optimizer.name, config.data.source) == ("sgd", "digits")
    assert without_unused(config)[0].optimizer.update_rule is None
    config = create_experiment(config, code)
    assert (config.optimizer.name, config.data.source) == ("custom", "custom")


def test_published_recipes_are_what_was_published():
    paper = registry.load("wrn28_10")
    assert (paper.model.depth, paper.model.width) == (28, 10)
    assert (paper.epochs, paper.batch_size) == (200, 128)
    assert (paper.optimizer.name, paper.optimizer.momentum) == ("nesterov", 0.9)
    assert (paper.optimizer.learning_rate, paper.optimizer.weight_decay) == (0.1, 5e-4)
    assert (paper.optimizer.decay_at, paper.optimizer.decay_factor) == ((0.3, 0.6, 0.8), 0.2)
    assert (paper.data.flip, paper.data.crop_padding) == (True, 4)
    for name in ("cnn10", "wrn28_10_2019"):
        config = registry.load(name)
        assert (config.epochs, config.optimizer.name) == (100, "sgd")
        assert (config.optimizer.momentum, config.optimizer.learning_rate) == (0.9, 0.1)
        assert config.optimizer.base_batch_size == 128
        assert (config.optimizer.decay_at, config.optimizer.decay_factor) == ((0.5, 0.8), 0.1)
