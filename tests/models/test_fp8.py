"""Products in 8 bits: how exact they are, what is in them, where they are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.hardware import peaks
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.targets.target import has_fp8, parse_target
from jaxbench.models.fp8 import fp8_dot_general
from jaxbench.predict.prediction import NotPredicted, setting_of
from jaxbench.xla.jaxpr import find_matmuls_and_convs
from tests.conftest import config_of, program_of, records, refusal

DENSE = (((2,), (0,)), ((), ()))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_products_and_gradients_are_near_those_in_16_bits_at_any_scale(size):
    random = np.random.default_rng(0)
    x, kernel, weights = (
        jnp.asarray(random.normal(size=shape), jnp.bfloat16)
        for shape in ((4, 16, 64), (64, 32), (4, 16, 32))
    )
    x *= size

    def results(dot_general):
        def total(x, kernel):
            return jnp.sum((dot_general(x, kernel, DENSE) * weights).astype(jnp.float32))

        return dot_general(x, kernel, DENSE), *jax.jit(jax.grad(total, (0, 1)))(x, kernel)

    for ours, exact in zip(results(fp8_dot_general), results(jax.lax.dot_general), strict=True):
        assert (ours.dtype, ours.shape) == (exact.dtype, exact.shape)
        ours, exact = np.asarray(ours, np.float64), np.asarray(exact, np.float64)
        assert 1e-3 < np.linalg.norm(ours - exact) / np.linalg.norm(exact) < 0.06
    assert not np.asarray(fp8_dot_general(0 * x, kernel, DENSE), np.float32).any()
    assert np.isnan(np.asarray(fp8_dot_general(x * jnp.nan, kernel, DENSE), np.float32)).all()


@pytest.mark.parametrize("name", ["gpt_bytes", "llama", "vit_cifar10", "dit"])
def test_the_dense_layers_of_blocks_multiply_8_bits_forward_and_backward(name):
    experiment = f"{name}:tiny"
    network = program_of(experiment, precision="fp8").network
    by_block = {}
    for op in find_matmuls_and_convs(network.trace.forward.jaxpr.jaxpr):
        by_block.setdefault(op.dtype, []).append(op.scope)
    layers = {scope.split("/")[-1] for scope in by_block["float8_e4m3fn"]}
    assert {"query", "key", "value", "out"} < layers
    assert not layers & {"head", "patches", "modulation"}
    work = network.analysis.work
    plain = program_of(experiment, precision="bf16").network.analysis.work
    assert work == plain
    # Of the backward products one operand is the gradient, in a wider type of 8 bits.
    traced = jax.jit(jax.grad(lambda x, k: jnp.sum(fp8_dot_general(x, k, DENSE)), (0, 1))).trace(
        jax.ShapeDtypeStruct((2, 3, 4), jnp.bfloat16), jax.ShapeDtypeStruct((4, 5), jnp.bfloat16)
    )
    products = [e for e in traced.jaxpr.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert [sorted(v.aval.dtype.name for v in e.invars) for e in products[-2:]] == [
        ["float8_e4m3fn", "float8_e5m2"]
    ] * 2


def test_training_in_fp8_follows_training_in_bf16(train):
    losses = {}
    for precision in ("bf16", "fp8"):
        result = train("gpt_bytes:tiny", precision=precision)
        losses[precision] = [one["eval_loss"] for one in records(result.run_dir.path, "epoch")]
    assert losses["fp8"] == pytest.approx(losses["bf16"], rel=0.02)
    assert losses["fp8"] != losses["bf16"]
    assert losses["fp8"][1] < losses["fp8"][0]


def test_fp8_is_for_transformers_and_for_devices_that_have_it(monkeypatch):
    config = config_of("cnn10", precision="fp8")
    refusal(config.validate, told="precision='fp8' with Cnn10Config: only transformers")
    for name, has in (
        *(("gpu:a100", False), ("gpu:l4", True), ("gpu:h100", True), ("gpu:b200", True)),
        *(("tpu:v5p:2x2x1", False), ("tpu:v6e:2x2", False), ("tpu:tpu7x:2x2x1", True)),
    ):
        [device, *_] = parse_target(name).devices
        assert has_fp8(device) == has
        if has:
            peaks = [find_peak(device.device_kind, one).flops_per_s for one in ("fp8", "bf16")]
            assert peaks[0] == pytest.approx(2 * peaks[1], rel=0.02)
    monkeypatch.setattr("jaxbench.training.program.has_fp8", lambda device: False)
    told = "precision='fp8': cpu has no units for it; NVIDIA GPUs of compute capability 8.9"
    refusal(program_of, "gpt_bytes:tiny", precision="fp8", told=told)


def test_mfu_is_that_of_the_fp8_peak_and_says_so(monkeypatch):
    monkeypatch.setattr(peaks, "find_peak", lambda _, *how: find_peak("NVIDIA H200", *how))
    analysis = program_of("llama:synthetic", precision="fp8").network.analysis
    fields = analysis.utilization(1.0)
    assert (fields["peak"]["arithmetic"], fields["peak"]["flops_per_s"]) == ("fp8", 1978.9e12)
    assert fields["mfu"] == pytest.approx(analysis.training_flops / 1978.9e12)
    assert not analysis.warnings()


def test_fp8_is_not_predicted_from_rates_of_others():
    shape = program_of("gpt_bytes:tiny").network.analysis.shape
    for target, told in (("gpu:h100", "no published rate of .* in fp8"), ("gpu:a100", "no fp8")):
        with pytest.raises(NotPredicted, match=told):
            setting_of(shape, parse_target(target), "fp8", 8)
