"""Llama and its adapters: shared heads, what is trained, stored and counted, and refusals.

tests/integration/test_published_networks.py compares them with transformers and peft.
"""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxbench.config.custom import Code
from jaxbench.errors import BadInput
from jaxbench.hardware import peaks
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.targets.target import target_of_kind
from jaxbench.models.llama import LlamaConfig
from jaxbench.models.transformer_block import attend
from jaxbench.modes.measured_rates import unlike_published
from jaxbench.training.compilation import compile_step
from tests.conftest import config_of, program_of, records, refusal, step_args

TINY = config_of("llama:lora:tiny").model


def sgd(schedule):
    return optax.sgd(schedule)


@pytest.mark.device
@pytest.mark.usefixtures("fp32_products")
@pytest.mark.parametrize(
    ("attention", "dtype"), [("xla", jnp.float32), ("einsum", jnp.float32), ("xla", jnp.float64)]
)
def test_heads_of_queries_share_a_head_of_keys_and_values(attention, dtype):
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        query = jnp.asarray(random.normal(size=(2, 5, 6, 4)), dtype)
        key, value = jnp.asarray(random.normal(size=(2, 2, 5, 2, 4)), dtype)
        shared = attend(query, key, value, True, attention)
        repeated = [jnp.repeat(x, 3, axis=2) for x in (key, value)]
        np.testing.assert_allclose(shared, attend(query, *repeated, True, attention), rtol=1e-5)


@pytest.mark.parametrize("parallelism", ["pmap", "fsdp"])
def test_adapters_alone_are_trained_exchanged_and_kept_by_the_optimizer(train, parallelism):
    fields = {"num_devices": 4, "parallelism": parallelism, "batch_size": 16}
    program = program_of("llama:lora:tiny", **fields)
    before = jax.device_get(program.initial_state())
    params = flax.traverse_util.flatten_dict(before.params, sep="/")
    frozen = {*TINY.trainable_epochs()}
    assert frozen == {path for path in params if not path.endswith(("lora_a", "lora_b"))}
    # An update adds nothing to them: the type for computing is enough.
    for path, leaf in params.items():
        assert leaf.dtype == (jnp.bfloat16 if path in frozen else jnp.float32)
    trained = sum(leaf.size for path, leaf in params.items() if path not in frozen)
    moments = sum(leaf.size for leaf in jax.tree.leaves(before.opt_state) if leaf.ndim)
    assert moments == 2 * trained
    analysis = program.network.analysis
    assert (analysis.num_trained, analysis.flops_by_6n) == (trained, None)

    args = program.abstract_placed_state(), *step_args(program)
    exchanged = compile_step("train_step", program.train_step, *args).collectives
    sums = "all-reduce" if parallelism == "pmap" else "reduce-scatter"
    assert exchanged[sums]["bytes"] == pytest.approx(4 * trained, rel=0.01)

    result = train("llama:lora:tiny", **fields)
    assert not [line for line in result.summary["warnings"] if "exchanges" in line]
    after = flax.traverse_util.flatten_dict(jax.device_get(result.state.params), sep="/")
    for path in params:
        first = np.asarray(after[path]).reshape(params[path].shape)
        assert (first.tobytes() == params[path].tobytes()) == (path in frozen)
    first, second = records(result.run_dir.path, "epoch")
    assert second["eval_loss"] < first["eval_loss"]


def test_the_norm_that_clips_is_that_of_the_adapters(train):
    """The first update by plain SGD is as long as the bound, whatever the frozen gradients are."""
    rule = {"optimizer__name": "sgd", "optimizer__momentum": 0.0, "optimizer__weight_decay": 0.0}
    rule |= {"optimizer__max_gradient_norm": 1e-3, "optimizer__schedule": "constant"}
    result = train("llama:lora:tiny", max_steps=1, num_devices=1, precision="fp32", **rule)
    [epoch] = records(result.run_dir.path, "epoch")
    assert epoch["gradient_norm"] > 1e-3
    assert epoch["update_norm"] == pytest.approx(1e-3 * epoch["learning_rate"], rel=1e-4)


def test_frozen_weights_have_no_gradient_of_their_own_in_the_count():
    """By hand, with A multiply-accumulates of the adapters and P of the frozen projections."""
    analysis = program_of("llama:lora:tiny").network.analysis
    tokens, width, rank, hidden = 64, TINY.width, TINY.lora_rank, TINY.mlp_width
    narrow = width * TINY.kv_heads // TINY.heads
    sides = [(width, width), (width, narrow), (width, narrow), (width, width)]
    sides += [(width, hidden), (width, hidden), (hidden, width)]
    projections = sum(ins * outs for ins, outs in sides)
    adapters = rank * sum(ins + outs for ins, outs in sides)
    attention, head = 2 * tokens * width, width * 1000
    # Forward, and for inputs; adapters and attention's operands for themselves too.
    per_token = TINY.depth * (2 * projections + 3 * (adapters + attention)) + 2 * head
    # Nothing that is trained comes before the first block's queries, keys and values.
    per_token -= sum(ins * outs + rank * ins for ins, outs in sides[:3])
    assert analysis.training_flops == 2 * tokens * per_token
    # A scaled loss reads no gradient of a frozen weight either.
    scaled = program_of("llama:lora:tiny", precision="fp16").network.analysis
    assert scaled.training_flops == analysis.training_flops
    assert (scaled.num_trained, scaled.flops_by_6n) == (analysis.num_trained, None)


def test_an_fp16_step_is_skipped_for_its_adapters_gradients_alone(train):
    result = train("llama:lora:tiny", precision="fp16", num_devices=1)
    first, last = records(result.run_dir.path, "epoch")
    assert last["skipped_steps"] < 10 and last["eval_loss"] < first["eval_loss"]


def test_the_usual_count_takes_all_parameters_and_ours_those_of_products(monkeypatch):
    model = config_of("llama:synthetic").model
    analysis = program_of("llama:synthetic").network.analysis
    tokens, table = 2048, 32000 * model.width
    attention = 2 * model.depth * tokens * tokens * model.width
    norms = (2 * model.depth + 1) * model.width
    products = 1_100_048_384 - table - norms
    assert analysis.training_flops == 6 * (tokens * products + attention)
    assert analysis.flops_by_6n == 6 * (tokens * 1_100_048_384 + attention)
    monkeypatch.setattr(peaks, "find_peak", lambda _, *how: find_peak("NVIDIA H200", *how))
    fields = analysis.utilization(1.0)
    assert fields["mfu"] == pytest.approx(analysis.training_flops / 989.4e12)
    assert fields["mfu_by_6n"] == pytest.approx(analysis.flops_by_6n / 989.4e12)
    # A forward pass alone has no such count.
    assert "mfu_by_6n" not in analysis.utilization(1.0, analysis.training_flops // 3)


def test_a_network_with_adapters_is_not_predicted_from_rates_of_whole_training():
    target = target_of_kind("NVIDIA A100-SXM4-80GB", 1)
    for settings in (
        {"model": TINY},
        {"model": {"lora_rank": 16}},  # of a run's record
    ):
        assert "frozen" in unlike_published(settings, target)
    assert not unlike_published({"model": {"lora_rank": 0}}, target)


def test_a_llama_that_cannot_be_is_refused():
    refusal(LlamaConfig(kv_heads=5).validate, told="model.kv_heads=5: must divide model.heads=32")
    refusal(LlamaConfig(lora_rank=2049).validate, told="must be at most model.width=2048")
    refusal(LlamaConfig(lora_rank=8, lora_alpha=0.0).validate, told="adapters do nothing")
    refusal(LlamaConfig(width=2080).validate, told="no multiple of 64, twice the model.heads=32")
    last = program_of("llama:lora:tiny", optimizer__head_learning_rate=0.1)
    refusal(last.check, told="head_learning_rate=0.1: LlamaConfig does not train head/embedding")
    with pytest.raises(BadInput, match="trains block1/query/kernel and 20 others for another"):
        program_of("llama:lora:tiny", optimizer__name="custom", optimizer__update_rule=Code(sgd))
    fields = {"data__sequence_length": 4096, "data__train_examples": 8, "data__eval_examples": 8}
    program = program_of("llama:synthetic:tiny", **fields)
    refusal(program.check, told="data.sequence_length=4096: the network has positions for model")
