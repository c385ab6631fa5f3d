"""What compilers, those for TPUs and GPUs too, make of the steps of all experiments."""

import json
import os

import pytest

from jaxbench.cli.registry import available, load
from jaxbench.config import Config
from tests.integration.conftest import run_program

PYTHONS = {name: os.environ.get(f"JAXBENCH_TEST_{name.upper()}") for name in ("tpu", "gpu")}
needs_tpu = pytest.mark.skipif(
    not PYTHONS["tpu"], reason="JAXBENCH_TEST_TPU names no Python that has jaxbench[tpu]"
)
needs_gpu = pytest.mark.skipif(
    not PYTHONS["gpu"], reason="JAXBENCH_TEST_GPU names no Python that has its compiler"
)
TARGETS = {"tpu": "tpu:v2:2x2", "gpu": "gpu:h100:2"}
PRECISIONS = ("fp32", "bf16")

# What XLA may do in a step of `:tiny`, fp32 and bf16, where it is not one all-reduce alone:
# (all-reduces, transposes, converts), the latter two of activations that are written only to change
# their layout or their type. docs/decisions/step.md, D25, says what they are.
MOST = {
    ("tpu", "quickstart"): ((1, 2, 0), (1, 2, 0)),
    ("tpu", "cnn10"): ((1, 1, 0), (1, 1, 0)),
    ("tpu", "mnist_cnn"): ((1, 6, 0), (1, 6, 0)),
    ("tpu", "vgg_cifar10"): ((1, 2, 0), (1, 3, 0)),
    ("tpu", "unet256"): ((1, 4, 2), (1, 31, 2)),
    ("tpu", "resnet50"): ((1, 2, 1), (1, 2, 1)),
    ("tpu", "resnet50_synthetic"): ((1, 1, 0), (1, 1, 0)),
    ("tpu", "wrn28_10"): ((1, 2, 1), (1, 2, 1)),
    ("tpu", "wrn28_10_2019"): ((1, 1, 0), (1, 1, 0)),
    ("tpu", "cifar10_speedrun94"): ((1, 3, 1), (1, 3, 1)),
    ("tpu", "cifar10_speedrun94_2025"): ((1, 3, 1), (1, 3, 1)),
    ("tpu", "vit_cifar10"): ((1, 2, 1), (1, 2, 1)),
    ("tpu", "vit_s16"): ((1, 7, 3), (1, 7, 3)),
    ("tpu", "vit_s16_synthetic"): ((1, 1, 0), (1, 1, 0)),
    ("gpu", "quickstart"): ((1, 6, 0), (2, 8, 4)),
    ("gpu", "resnet50"): ((1, 0, 0), (9, 0, 0)),
    ("gpu", "resnet50_step"): ((1, 0, 0), (9, 0, 0)),
    ("gpu", "resnet50_synthetic"): ((1, 0, 0), (9, 0, 0)),
    ("gpu", "gpt124m_synthetic"): ((1, 10, 0), (1, 0, 1)),
    ("gpu", "gpt_bytes"): ((1, 10, 0), (1, 0, 1)),
    ("gpu", "vit_cifar10"): ((1, 10, 0), (1, 1, 0)),
    ("gpu", "vit_s16"): ((1, 11, 0), (1, 2, 0)),
    ("gpu", "vit_s16_synthetic"): ((1, 10, 0), (1, 1, 0)),
}


# TARGET EXPERIMENT,LAYER,FIELD=VALUE,... ...: a line of JSON for each; LAYER, or none, is flax's.
# Starting a TPU's compiler takes seconds, which all steps share.
COMPILE = """
import contextlib, json, os, sys
from jaxbench.cli.entry_point import load_experiment
from jaxbench.hardware.targets.target import environment, parse_target

target = parse_target(sys.argv[1])
os.environ.update(environment(target))  # before JAX is imported
from tests.compiled_work import compile_work, flaxs_layer

for step in sys.argv[2:]:
    experiment, layer, *fields = step.split(",")
    config = load_experiment(experiment, [f"--experiment.{field}" for field in fields])
    with flaxs_layer(layer) if layer else contextlib.nullcontext():
        record, work = compile_work(config, target)
    answer = {"experiment": experiment, **record.to_json(), **work._asdict()}
    print(json.dumps(answer), flush=True)
"""


def networks():
    """Return the experiments that train a network."""
    return [name for name in available() if isinstance(load(f"{name}:tiny"), Config)]


def compile_steps(platform, steps):
    """Return the records of `COMPILE`."""
    done = run_program(
        [PYTHONS[platform], "-c", COMPILE, TARGETS[platform], *steps], timeout_s=3600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == len(steps)
    return records


def check_steps(platform, precision, names):
    """Compile each experiment's step, and name all that do more than `MOST`."""
    records = compile_steps(platform, [f"{name}:tiny,,precision={precision}" for name in names])
    faults = []
    for record in records:
        name = record["experiment"].removesuffix(":tiny")
        both = MOST.get((platform, name), ((1, 0, 0), (1, 0, 0)))
        most = both[PRECISIONS.index(precision)]
        collectives = dict(record["collectives"])
        found = (
            collectives.pop("all-reduce")["count"],
            record["transposes"],
            record["converts"],
        )
        if any(count > allowed for count, allowed in zip(found, most, strict=True)):
            faults.append(f"{name}: {found}, at most {most} (see MOST)")
        if collectives or not record["state_donated"] or not record["fits"]:
            faults.append(f"{name}: {record}")
    assert not faults, "\n".join(faults)


@needs_tpu
def test_steps_for_tpus_exchange_once_and_move_no_activation():
    """A network of convolutions, one that is laid out by hand, a transformer."""
    check_steps("tpu", "bf16", ("resnet50_synthetic", "cifar10_speedrun94", "gpt_bytes"))


@needs_tpu
@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_all_steps_for_tpus(precision):
    check_steps("tpu", precision, networks())


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_for_gpus(precision):
    check_steps("gpu", precision, networks())


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer"),
    [("cnn10", "BatchNorm"), ("vgg_cifar10", "max_pool"), ("mnist_cnn", "max_pool")],
)
def test_gradients_by_hand_save_a_tenth_of_the_bytes(name, layer):
    """docs/decisions/step.md, D17 to D19. A small batch moves little but the state."""
    large = "precision=bf16,batch_size=1024"
    ours, flaxs = compile_steps("gpu", [f"{name},{each},{large}" for each in ("", layer)])
    assert ours["moved_bytes"] < 0.9 * flaxs["moved_bytes"]
