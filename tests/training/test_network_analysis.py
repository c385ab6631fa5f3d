"""A network that ignores an option is noticed: what is recorded is what is done."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from msgspec.structs import replace

from jaxbench.cli import registry
from jaxbench.config import ModelConfig
from jaxbench.hardware import peaks
from jaxbench.hardware.peak_table import find_peak
from jaxbench.modes.describe import list_layers
from jaxbench.modes.memory import measure_memory
from jaxbench.modes.runner import prepare_run
from jaxbench.records.writers.console import Console
from jaxbench.training import network_analysis
from tests.conftest import MICRO, config_of, prepared, program_of, refusal, set_fields
from tests.micro import config_for


class Net(nn.Module):
    """Convolutions with flax's batch norm, as a user would write them."""

    dtype: object
    norm_axes: tuple

    @nn.compact
    def __call__(self, images, train=False, keys_B=None):
        x = images
        for axis in self.norm_axes:
            x = nn.Conv(4, (3, 3), dtype=self.dtype)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, axis_name=axis)(x))
        return nn.Dense(10, dtype="float32")(x.mean((1, 2)))


def net(norms=("given", "given"), ignores_dtype=False):
    """`norms`: what becomes of the axis that batch norm is given, for each layer."""

    def create(*, dtype, norm_axis, **_):
        axes = {"given": norm_axis, "ignored": None, "always": "batch"}
        return Net("float32" if ignores_dtype else dtype, tuple(axes[norm] for norm in norms))

    return config_for(create)


def document(model, **fields):
    with prepared(MICRO, model=model, num_devices=2, **fields) as job:
        return job.document()


class Blind(nn.Module):
    """Multiplies its images, and looks at none of it."""

    @nn.compact
    def __call__(self, images, train=False, keys_B=None):
        nn.Conv(64, (3, 3))(nn.Conv(64, (3, 3))(images))
        return nn.Dense(10)(nn.BatchNorm(use_running_average=not train)(images[:, 0, 0]))


def test_arithmetic_that_xla_leaves_out():
    config = registry.load(MICRO)
    fields = {"gradient_accumulation_steps": 2, "batch_norm": "local", "num_devices": 1}
    set_fields(config, model=config_for(lambda **_: Blind()), **fields)
    with prepare_run(config, None, Console()) as job:
        _, state, _, _ = step_args(job)
        args = state, job.feed.eval_data, next(job.feed.eval_batches())
        compiled = job.compile("eval_step", job.program.eval_step, *args)
        [warning] = job.warnings([compiled])
        assert warning.startswith("the compiled eval_step does")
        # XLA counts the two parts of a training batch once.
        flops = job.program.network.analysis.training_flops * config.batch_size / 2
        for share, told in ((0.5, 0), (0.3, 1)):
            counted = {"function": "train_step", "xla_flops_per_device": share * flops}
            assert len(job.warnings([replace(compiled, **counted)])) == told


@pytest.mark.parametrize("fields", [{"replicas": "independent"}, {"parallelism": "shard_map"}])
def test_what_the_network_does_is_recorded(fields):
    recorded = document(net(), precision="bf16", **fields)
    macs = recorded["forward_macs_by_dtype"]
    assert macs["float32"] == 4 * 10
    assert macs["bfloat16"] + macs["float32"] == recorded["forward_macs_per_image"]
    assert recorded["batch_norm_examples"] == recorded["batch_per_device"]


@pytest.mark.parametrize(
    "batch_norm, norms, kind",
    [
        ("sync", ("ignored", "ignored"), "local"),
        ("sync", ("given", "ignored"), "local and sync"),
        ("local", ("always", "always"), "sync"),
        ("local", ("given", "always"), "local and sync"),
    ],
)
def test_an_axis_that_batch_norm_ignores(batch_norm, norms, kind):
    told = f"batch_norm={batch_norm}: the network's batch norm is {kind}; NetConfig must pass "
    refusal(document, net(norms), batch_norm=batch_norm, told=told)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_type_that_layers_ignore(precision, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        network_analysis, "utilization", lambda mesh, name, *_: asked.append(name) or {}
    )
    config = config_of(MICRO, model=net(ignores_dtype=True), num_devices=1, precision=precision)
    with prepare_run(config, None, Console()) as job:
        job.program.network.analysis.utilization(1.0)
    assert asked == ["fp32"]  # the peak that MFU is a share of
    summary = measure_memory(config, str(tmp_path / "run"), Console(), telemetry_s=0).summary
    [warning] = summary["warnings"]
    assert (
        "100% of the network's multiplications are in float32; NetConfig must pass dtype" in warning
    )


class Typed(nn.Module):
    """Multiplies in a type that no precision computes in."""

    product_dtype: str

    @nn.compact
    def __call__(self, images, train=False, keys_B=None):
        x = images.reshape(len(images), -1)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], 10))
        logits = x @ kernel
        x, kernel = (array.astype(self.product_dtype) for array in (x, jnp.tile(kernel, 9)))
        wide = jax.lax.dot_general(x, kernel, (((1,), (0,)), ((), ())), None, "float32")
        return logits + jnp.real(wide)[:, :10].astype(logits.dtype)


@pytest.mark.parametrize("dtype", ["complex64", "int8", "float8_e5m2"])
def test_a_type_that_has_no_peak_has_no_mfu(dtype, monkeypatch):
    with prepared(MICRO, model=config_for(lambda **_: Typed(dtype)), num_devices=1) as job:
        monkeypatch.setattr(peaks, "find_peak", lambda _, *how: find_peak("NVIDIA H200", *how))
        assert job.program.network.analysis.main_precision == dtype
        assert job.program.network.analysis.utilization(1.0)["mfu"] is None
        [warning] = job.warnings([])
        assert f"multiplications are in {dtype};" in warning


@pytest.mark.parametrize("replicas", ["data_parallel", "independent"])
def test_an_exchange_that_is_not_the_configs(replicas):
    with prepared(MICRO, num_devices=2, replicas=replicas) as job:
        gradients = 4 * job.program.network.analysis.num_parameters
        compiled = job.compile("train_step", *step_args(job))
        assert job.warnings([compiled]) == []
        for bytes_ in (0, gradients - 4, gradients):
            reduced = {"all-reduce": {"count": 1, "bytes": bytes_, "largest_bytes": bytes_}}
            warnings = job.warnings([replace(compiled, collectives=reduced)])
            good = bytes_ == (gradients if replicas == "data_parallel" else 0)
            assert len(warnings) == (not good)
            assert good or f"the compiled step exchanges {bytes_:,} bytes" in warnings[0]


def step_args(job):
    """A job's training step and its arguments."""
    [batch] = job.feed.train_batches(0, 1)
    return job.program.train_step, job.program.place_train_state(), job.feed.train_data, batch


def convolve_frozen(images, kernel, *args, **options):
    return jax.lax.conv_general_dilated(images, jax.lax.stop_gradient(kernel), *args, **options)


class Partly(nn.Module):
    """Two convolutions and a head, of which the first layers may be frozen or computed again."""

    frozen: str
    remat: bool

    @nn.compact
    def __call__(self, images, train=False, keys_B=None):
        conv = nn.remat(nn.Conv) if self.remat else nn.Conv
        options = {"conv_general_dilated": convolve_frozen} if self.frozen == "first" else {}
        x = nn.relu(conv(4, (3, 3), use_bias=False, name="first", **options)(images))
        x = nn.relu(conv(6, (3, 3), padding="VALID", name="second")(x)).mean((1, 2))
        if self.frozen == "both":
            x = jax.lax.stop_gradient(x)
        return nn.Dense(10, name="head")(x)


@dataclasses.dataclass(kw_only=True)
class PartlyConfig(ModelConfig):
    frozen: str = ""
    remat: bool = False
    frozen_by_optimizer: bool = False

    def create(self, **_):
        return Partly(self.frozen, self.remat)

    def trainable_epochs(self):
        return {"first/kernel": 0.0} if self.frozen_by_optimizer else {}


@pytest.mark.parametrize(
    ("model", "counted", "computed"),
    [
        ({}, (3, 3, 3), (2, 3, 3)),
        ({"remat": True}, (3, 3, 3), (2, 3, 3)),
        ({"frozen": "first"}, (1, 3, 3), (1, 2, 3)),
        ({"frozen_by_optimizer": True}, (1, 3, 3), (1, 2, 3)),
        ({"frozen": "both"}, (1, 1, 2), (1, 1, 2)),
    ],
)
def test_frozen_layers_and_the_gradient_of_the_images_are_not_computed(model, counted, computed):
    """By layer, in forward passes; MFU counts three by convention, but of frozen layers."""
    network = program_of(MICRO, model=PartlyConfig(**model)).network
    layers = {row["layer"]: row["forward_macs_per_image"] for row in list_layers(network)}
    macs = [layers[name] for name in ("first", "second", "head")]
    assert network.analysis.training_flops == 2 * np.dot(macs, counted)
    assert network.analysis.work.step_macs_once == np.dot(macs, computed)


class Norm(nn.Module):
    """Batch norm written by hand: other names, two exchanges, frozen, or over pairs of devices."""

    kind: str
    axis: str | None

    @nn.compact
    def __call__(self, x, train):
        average = self.variable("batch_stats", "moving", lambda: jnp.zeros((2, x.shape[-1])))
        if self.kind == "frozen" or not train:
            return x - average.value[0]
        mean, square = x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))
        if self.kind == "twice" and self.axis:
            mean, square = jax.lax.pmean(mean, self.axis), jax.lax.pmean(square, self.axis)
        if self.kind == "looped":
            (mean, square), _ = jax.lax.scan(
                lambda both, _: (jax.lax.pmean(both, "batch"), None), (mean, square), length=2
            )
        if self.kind == "pairs":
            groups = [[0, 1], [2, 3]]
            mean, square = jax.lax.psum((mean / 2, square / 2), "batch", axis_index_groups=groups)
        average.value = jnp.stack([mean, square])
        return (x - mean) / jnp.sqrt(square - mean**2 + 1e-5)


class HandNet(nn.Module):
    axis: str | None
    kinds: tuple

    @nn.compact
    def __call__(self, images, train=False, keys_B=None):
        x = images
        for kind in self.kinds:
            x = Norm(kind, self.axis)(nn.Conv(4, (3, 3))(x), train)
        return nn.Dense(10)(x.mean((1, 2)))


def hand_net(kinds):
    return config_for(lambda norm_axis, **_: HandNet(norm_axis, kinds))


@pytest.mark.parametrize(
    "kinds, expected",
    [
        (("own",), "local"),
        (("frozen",), None),
        (("twice",), "sync"),
        (("looped", "twice"), "sync"),
        # As many exchanges as there are layers, and yet one of them is each device's own.
        (("twice", "own"), "local and sync"),
        (("pairs",), "local"),
    ],
)
def test_statistics_are_followed_to_the_images(kinds, expected):
    fields = {"model": hand_net(kinds), "num_devices": 4, "batch_norm": "sync"}
    assert program_of(MICRO, **fields).network.analysis.batch_norm == expected
